// Package zsync is Go's sync package across processes: locks, queues, elections and shared
// values for a whole fleet. Apache ZooKeeper keeps the state.
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
// Names and meanings are as in package sync. A method that waits takes a [context.Context],
// and a method that can fail returns an error.
//
// # Choose a primitive
//
//   - let one process at a time do something: [Mutex], [RWMutex]; let n: [Semaphore]; take
//     several locks: [LockAll]
//   - keep one process active, with standby: [Election]
//   - run a job at each scheduled time, in one process: [Schedule]
//   - run something once, ever: [Once], [OnceValue]
//   - wait for tasks: [WaitGroup]; begin and end together: [WaitGroup.Enter]; wait at a
//     gate: [Barrier]; wait for a condition: [Cond]
//   - hand out work: [Queue]; divide shards: [Partition]; list processes: [Group]
//   - share state: [Value], [Map], [Int64]; share the result of a call: [Flight]
//
// # Rules for all primitives
//
// Two values with the same path are the same primitive, in any process. Programs that use
// Apache Curator can share a path by default, and programs that use kazoo by option
// ([WithLayout], [WithQueueLayout]). Give each primitive its own path.
//
// A method that may wait takes a context first. A method that releases takes none, because
// a release cannot be refused. A cancelled wait leaves nothing behind.
//
// A hold belongs to one ZooKeeper session. If that session ends, or could have ended, the
// hold is lost: Lost is closed, the context of Do ends with cause [ErrLost], and the
// release returns ErrLost. A client that is cut off from the servers learns of the loss
// before the servers can grant the lock again. A wait outlives its session: it carries on
// in the next one, at the back of the line.
//
// If a connection drops between a request and its reply, the Session finds out whether the
// servers applied the request before it continues. A release wakes only waiters that can
// proceed.
//
// An error is an [*Error] around an error of this package, an error of go-zookeeper, or the
// cause of a context. Misuse that crashes a program with sync returns an error and changes
// nothing.
//
// # What zsync cannot do
//
// It cannot stop a program that does not look. Between the loss of a hold and the moment at
// which its holder notices, the garbage collector, the scheduler or the whole machine may
// pause. If that matters, send [Mutex.Token] with each write to the storage, or write to
// ZooKeeper with [Mutex.Txn].
package zsync
