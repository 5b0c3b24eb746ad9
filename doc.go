// Package zsync is Go's sync package, across processes. Whoever knows
// [sync.Mutex], [sync.RWMutex], [sync.WaitGroup], [sync.Once], [sync.Cond] and
// channels can coordinate a fleet: the names and meanings are the same, with a
// [context.Context] where something waits and an error where something can
// fail. Apache ZooKeeper keeps the state.
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
// # What to use
//
//   - one at a time: [Mutex], [RWMutex]; up to n at a time: [Semaphore]; several
//     locks at once: [LockAll]
//   - one of all processes, as long as it lives: [Election]
//   - a job that one process runs at each of its times: [Schedule]
//   - what is done once and for all: [Once], [OnceValue]
//   - wait for tasks: [WaitGroup]; begin and end together: [WaitGroup.Enter]; a
//     gate: [Barrier]; a condition: [Cond]
//   - work to hand out: [Queue]; shards to share out: [Partition]; who is there:
//     [Group]
//   - state that all see: [Value], [Map], [Int64]; one call for all who ask: [Flight]
//
// # Rules that hold everywhere
//
// Values made with the same path are the same primitive, in whatever process,
// and in whatever language: the znodes are those of Apache Curator, or of kazoo
// by option, where these have the primitive and its state can be kept safely in
// their znodes (WaitGroup, Once, Cond and, unless an option says otherwise,
// Queue have znodes of their own).
//
// A method that may wait takes a context first. A method that gives something up
// takes none, because giving up cannot be refused. A cancelled wait leaves nothing
// behind.
//
// A hold belongs to one ZooKeeper session. When that session is over, or may
// be over as far as this client can know, the hold is lost and everyone is
// told: Lost is closed, the context of Do's function ends with cause [ErrLost],
// and the release returns ErrLost. A client that is cut off from the servers
// learns so before the servers can give the hold to someone else.
//
// A wait outlives a session: it carries on in the next, at the back of the
// line.
//
// When a connection drops between a request and its reply, the Session finds
// out what became of the request before it goes on.
//
// A release wakes exactly those who can now go on.
//
// Errors are [*Error] around a sentinel of this package, an error of
// go-zookeeper, or the cause of a context. Misuse that sync answers with a
// crash comes back as an error and changes nothing.
//
// # What zsync cannot do
//
// It cannot stop a program that does not look. Between the loss of a hold and the
// moment at which its holder notices, the garbage collector, the scheduler or the
// whole machine may pause. Where that matters, give [Mutex.Token] to the storage
// that is written to, or write to ZooKeeper with [Mutex.Txn].
package zsync
