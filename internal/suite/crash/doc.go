// Package crash tests these promises of docs/guarantees.md for every operation that writes:
//
//   - A process killed with SIGKILL, at any request of an operation, blocks no other process after
//     the end of its session.
//   - After the end of its session, no znode of a killed process remains.
//   - No operation is applied twice or left half done.
package crash
