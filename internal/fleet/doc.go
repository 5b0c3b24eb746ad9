// Package fleet is the judge of the library: random programs of all its primitives at once, by
// several processes over an ensemble of zktest in virtual time, under faults. It sees the public API
// alone, and holds what docs/guarantees.md promises.
//
// # A program
//
// A seed stands for a [plan]: how many members the ensemble has and how quick they are, how many
// processes live how many lives, which primitives they use, and which faults come when. Each process
// is a [life]: a Session, and actors. An actor is a goroutine that calls methods at random (step of an
// [arena]), with contexts that end at any step, late or never.
//
// # The faults
//
// They stand in plan.go, and what they do in faults.go: connections of a process are reset; one
// direction between a process and a member, or all, stands still for a while; a process is driven from
// member to member, and back to one that has told the leader nothing yet; what one member sends to
// another stands still or is late; members are cut off, killed, stopped, behind; the leader is late to
// look at requests; members grant different timeouts; a majority goes on without its leader; a process
// is closed, or dies, at any moment; the servers lose all they had.
//
// # What must hold
//
//   - At most one holder, of a Mutex, the write side of an RWMutex, an Election, an element of a Queue, or
//     the right to run a function, and no more than its permits of a Semaphore: whoever is told nothing of
//     a loss holds (ledger.go).
//   - What was confirmed is so, once: of a Value, an Int64, a Map, a Barrier by a linearization of all
//     calls ([register]); of a Once, a Queue, a transaction by what the program has recorded.
//   - Whoever waits is granted when the faults end, each call fails with its context and its Session alone,
//     and Close returns.
//   - Nothing is left in the servers' tree when all are closed and two timeouts have passed.
//
// The oracles know nothing of the inside of the library: the program records what it was told, and the
// servers' tree is read at the end.
//
// # Replay
//
// A program that fails prints its seed, and ZSYNC_TEST_SEED runs it again. Every message arrives at an
// instant of its own that follows from the seed ([network]), so what one message sets off is over before
// the next arrives; timers, which begin with messages, are spread by this as well. GUIDs follow from the
// seed. The programs run on one processor of Go's.
//
// What Go decides all the same: which of the goroutines that one message or timer has made runnable runs
// first, where it is preempted or the collector runs; which case of a select is taken when several are
// ready; the order of maps; and the few pauses that the library draws itself (of Value.Update, of a WaitGroup,
// of a queue's consumers).
package fleet
