// Package crash holds, for every operation that writes, what docs/guarantees.md
// promises of processes that are killed:
//
//   - A process killed with SIGKILL at any request of any operation blocks nobody
//     once its session has expired.
//   - Nothing is left behind by a process that was killed, once its session has
//     expired.
//   - No operation is applied twice, none is left half done.
package crash
