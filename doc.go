// Package zsync is Go's sync package across processes: locks, queues, elections and shared values
// for a whole fleet. Apache ZooKeeper keeps the state.
//
//	s, err := zsync.Connect(ctx, "zk1:2181,zk2:2181,zk3:2181")
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//
//	accounts := zsync.NewMutex(s, "/locks/accounts")
//	err = accounts.Do(ctx, func(ctx context.Context) error {
//		return work(ctx) // one process at a time; ctx ends if the lock is lost
//	})
//
// Names and meanings are as in package sync. A method that waits takes a [context.Context], and a
// method that can fail returns an error.
//
// # Choose a primitive
//
//   - let one process at a time do something: [Mutex], [RWMutex]; let n: [Semaphore]; take
//     several locks: [LockAll]
//   - keep one process active, with standby: [Election]
//   - run a job at each scheduled time, in one process: [Schedule]
//   - run something once, ever: [Once], [OnceValue]
//   - wait for tasks: [WaitGroup]; begin and end together: [WaitGroup.Enter]; wait at a gate:
//     [Barrier]; wait for a condition: [Cond]
//   - hand out work: [Queue]; divide shards: [Partition]; list processes: [Group]
//   - share state: [Value], [Map], [Int64]; share the result of a call: [Flight]
//
// # Rules for all primitives
//
// Two values with the same path are the same primitive, in any process. Give each primitive its own
// path: if something else, or another layout, uses the path, a call can return [ErrMixed]. Curator
// programs can share a path by default, kazoo programs by option ([WithLayout], [WithQueueLayout]).
// A constructor does no I/O. If an argument is bad, every method reports it: it returns
// [ErrInvalid], or a closed channel.
//
// Lock, RLock, Acquire, Campaign and Wait fail after the end of ctx, even if there is nothing to
// wait for. A wait that fails leaves nothing behind. If its session ends, a wait continues in the
// next session, at the back of the line. In a function that Do, RDo or Run calls, a call with the
// function's ctx for the same path returns [ErrDeadlock] if it would wait for its own caller.
//
// A hold belongs to one ZooKeeper session. If that session ends, or could have ended, the hold is
// lost: Lost is closed, the context of Do or Run ends with cause [ErrLost], and the release returns
// ErrLost. A client that is cut off from the servers learns of the loss before the servers can
// grant the lock again.
//
// A release takes no context, because it cannot be refused. It wakes only waiters that can proceed.
// Unlock, RUnlock, Release and Resign return within half a second, and at once if the connection is
// down; the Session then releases in the background. Without a hold, these methods, Token and Txn
// return [ErrNotLocked]; after a loss, all of them return [ErrLost].
//
// A write is applied exactly once or not at all: if a connection drops between a request and its
// reply, the Session first finds out what the servers did, and then continues. If ctx ends while a
// write is on its way, the write may be applied or not. Data that does not fit into ZooKeeper's
// packet of 1 MiB is [ErrTooLarge].
//
// A channel of Watch or Observe has no buffer: a slow reader misses changes, but always gets the
// last one. A value that cannot be decoded is logged and left out. The channel is closed when ctx
// ends, the Session is closed, or the servers refuse a read. The refusal is logged.
//
// An error is an [*Error] around an error of this package or of go-zookeeper, or around the cause
// of a context. Misuse that crashes a program with package sync returns an error here, and changes
// nothing. "Synchronizes before" is a term of the Go memory model, for callers in one process.
//
// # Costs and znodes
//
// A comment gives the round trips of the common case; docs/costs.md has the rest, and
// docs/interop.md all znodes. In their names, <uuid> and <guid> are random, and <seq> is the number
// that ZooKeeper appends. A contender is an ephemeral, sequential znode below path. Unless a
// comment says otherwise, path is a container, which the servers remove when it is empty, and its
// parents are persistent.
//
// # What zsync cannot do
//
// zsync cannot stop a program that does not look. The garbage collector, the scheduler or the whole
// machine may pause the program between the loss of a hold and the moment at which its holder
// notices the loss. If that matters, send [Mutex.Token] with each write to the storage, or write to
// ZooKeeper with [Mutex.Txn].
package zsync
