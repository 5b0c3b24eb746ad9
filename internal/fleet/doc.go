// Command fleet is the judge of the library. It has two parts. Its tests run random programs, and
//
//	go run ./internal/fleet -days 20
//
// runs days of a fleet. Both see the public API alone and check the promises of docs/guarantees.md.
//
// A random program uses all primitives at once: a few processes over an ensemble of zktest, in
// virtual time, under faults.
//
// # A program
//
// A program follows from its seed, by a [plan]. The plan draws the number of members and their
// speed, the number of processes, the primitives, and the faults with their times. Each process is
// a [life]: a Session with actors. An actor is a goroutine that calls random methods (step of an
// [arena]). Its contexts end at any step, late or never.
//
// # The faults
//
// The file plan.go lists them, the file faults.go does them:
//
//   - The network resets the connections of a process.
//   - One direction between a process and a member stalls, or all directions do.
//   - A process moves from member to member, and back to a member whose requests are still on their
//     way to the leader.
//   - One direction between two members stalls or is slow.
//   - A member is cut off, killed, stopped or slow to apply. The leader is slow to look at
//     requests.
//   - A member grants a shorter timeout than the others.
//   - A majority elects a leader while the old leader still serves.
//   - A process closes its Session, or dies, at any moment.
//   - A stranger deletes znodes of contenders and of consumers, makes them again, and makes znodes with
//     numbers of its choice. A consumer may hear of it late.
//   - The servers lose all their data.
//
// # The invariants
//
//   - At most one holder: of a Mutex, of the write side of an RWMutex, of an Election, of an
//     element of a Queue, of the right to run a function; and at most n permits of a Semaphore. A
//     process holds until it gives up, or until the library has reported a loss (ledger.go).
//
//   - Confirmed calls are applied, once. A linearization of all calls checks a Value, an Int64, a
//     Map and a Barrier ([register]). The records of the program check a Once, a Queue and the
//     transactions.
//
//   - In one program of eight, all methods of a Queue run at random, with keys, priorities, IDs, attempts
//     and dead letters (orders.go). Each element has one fate, and no two marks have claimed one.
//
//   - Every waiter is granted after the faults have ended. A call fails with its context or its
//     Session only. Close returns when the functions have returned or its timeout is over. While only strangers disturb, a waiter whose znode is deleted is soon in
//     line again.
//
//   - The servers' tree holds no ephemeral znode and no marker after all Sessions are closed and two
//     timeouts have passed. Logs of transactions stay only if a process died, or closed its Session under
//     a fault. They are no more than such a process can have had, and zsync doctor or a sweep of the queue
//     deletes them.
//
//   - The leader has not ended the session of a process that believes that it holds, and that
//     session has a znode there.
//
// # A day
//
// A day is a program of 50 processes on five members for 24 hours (day.go). Each process has the
// role of a program in examples: a nightly job, a leader, a worker, a pool, a cache, or rounds of a
// barrier. Besides the faults above there are deploys, restarts of all members in turn, wrong wall
// clocks and strangers. The faults come one at a time, or a few together. After three timeouts
// without a fault, every call that began before them must have returned. Two timeouts serve the
// call, and the third is for the holders before it. A nightly job runs each instant once. At the
// end, the command prints the number of steps, the number of faults, and a table: how often each
// kind of fault found a process in which state.
//
// A day that fails shrinks itself. The command leaves out faults as long as the day still fails.
// Then it prints the remaining faults and a timeline. With -whole, it prints the whole day.
//
// A day does not have the following: a machine that sleeps (in a bubble all processes share one
// clock), a full quota and a slow disk (zktest has neither; a member that applies late and a leader
// that looks late are near the second).
//
// # Replay
//
// A program that fails prints its seed, and ZSYNC_TEST_SEED runs it again. Each message arrives at
// its own instant, which the seed decides ([network]). Virtual time advances only when all
// goroutines wait, so all effects of a message are over before the next message arrives. Timers
// begin with messages, so they are spread, too. The seed decides the GUIDs and the random numbers of
// the library (package dice). zktest lists children in the order of a hash. The programs run on one
// processor of Go's.
//
// The seed does not decide the following:
//
//   - the order of the goroutines, if one message makes several runnable;
//   - preemption and the garbage collector;
//   - the choice of a select with several ready cases, and of two timers of one instant;
//   - the order in which a context that ends tells its children (package context keeps a map), and
//     the few other ranges over maps.
package main
