// Command fleet tests the library: it runs random programs under faults, and checks the promises of
// docs/guarantees.md. The programs use the public API alone. The tests of the package run short
// programs. The command runs long programs, called days:
//
//	go run ./internal/fleet -days 20
//
// A short program is a few processes over an ensemble of zktest, in virtual time. Most programs use
// one to three primitives, and some use all of them.
//
// # A program
//
// A [plan] describes a program, and follows from a seed. The seed decides the number of members and
// their speed, the number of processes, the primitives, and the faults with their times. Each
// process is a [life]: a Session with actors. An actor is a goroutine that calls random methods
// (step of an [arena]). The context of a call may end at any moment, late or never.
//
// # The faults
//
// The file plan.go lists the faults, and the file faults.go causes them:
//
//   - The connections of a process are reset.
//   - Messages between a process and a member stall, in one direction or in both.
//   - A process moves from one member to another and back. The requests that the first member has
//     forwarded reach the leader late.
//   - Messages from one member to another stall or are slow.
//   - A member is cut off, killed or stopped, or applies transactions late. The leader is slow to
//     look at requests.
//   - A member grants a shorter timeout than the others.
//   - A majority elects a leader while the old leader still serves.
//   - A process closes its Session, or dies, at any moment.
//   - A stranger is a client with its own session. It deletes znodes of contenders and of
//     consumers, makes copies of these znodes, and creates znodes with numbers of its choice. The
//     consumer may learn of the deletion late.
//   - The servers lose all their data.
//
// # The invariants
//
//   - A Mutex, the write side of an RWMutex, an Election, an element of a Queue, and the right to
//     run a function have at most one holder. At most n permits of a Semaphore are held. A hold
//     ends if its process releases it, or if the library reports its loss (ledger.go).
//
//   - A confirmed call is applied exactly once. A linearization of all calls checks this for a Value,
//     an Int64, a Map and a Barrier ([register]). The records of the program check it for a Once, a
//     Queue and transactions.
//
//   - In one program of about eight, all methods of a Queue run at random, with keys, priorities,
//     IDs, attempts and dead letters (orders.go). No removed element remains, no element
//     disappears, and no element has two claims at once.
//
//   - After the faults, every waiter is granted. A call fails only if its context has ended or its
//     Session is closed. Close returns when all functions have returned, or when the timeout of
//     Close ends. If strangers are the only fault and delete a waiter's znode, the waiter soon has
//     another one in the line.
//
//   - Two timeouts after all Sessions are closed, the servers hold no ephemeral znode and no marker.
//     Logs of transactions remain only if a process died or closed its Session under a fault. Their
//     number is limited, and zsync doctor or a sweep of the queue deletes them.
//
//   - If a process believes that it has a hold, its session is alive at the leader, and the hold's
//     znode exists there.
//
// # A day
//
// A day is a program of 50 processes on five members for 24 hours (day.go). Each process has a
// role, such as a nightly job, a leader, a worker, a pool, a cache, or rounds of a barrier. A day
// also has deploys, restarts of all members in turn, wrong wall clocks and strangers. The faults
// come one at a time, or a few together. If three timeouts pass without a fault, every call from
// before that time must have returned. The earlier holders need one timeout, and the call itself
// needs two. Each run of a nightly job happens once. At the end, the command prints the number of
// steps, the number of faults, and a table. The table counts how often each kind of fault met each
// state of a process.
//
// The command shrinks a day that fails. It leaves out faults as long as the day still fails. Then it
// prints the remaining faults and a timeline. With -whole, it does not shrink the day.
//
// Three things never happen in a day. No machine sleeps, because all processes of a bubble share
// one clock. No quota is full and no disk is slow, because zktest has neither. The nearest faults
// to a slow disk are a member that applies late and a leader that looks at requests late.
//
// # Replay
//
// A failure prints the seed of its program. Set ZSYNC_TEST_SEED to the seed to run the program
// again. Each message arrives at its own instant, which the seed decides ([network]). Virtual time
// advances only when all goroutines wait, so all effects of a message are over before the next
// message arrives. Timers begin with messages, so they end at different instants, too. The seed
// decides the GUIDs and the random numbers of the library (package dice). The order in which zktest
// lists children follows from a hash of their names. The programs run on one processor of Go's
// scheduler.
//
// The seed does not decide the following:
//
//   - the order of the goroutines, if one message makes several runnable;
//   - preemption and the garbage collector;
//   - the choice of a select with several ready cases, and of two timers of one instant;
//   - the order in which a context that ends cancels its children (package context keeps a map),
//     and the few other ranges over maps.
package main
