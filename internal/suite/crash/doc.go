// Package crash tests a promise of docs/guarantees.md, for every operation that
// writes:
//
//   - A process killed with SIGKILL at any request of any operation blocks no other
//     process after the end of its session.
//   - After the end of its session, nothing of a killed process is left.
//   - No operation is applied twice, and none is left half done.
package crash
