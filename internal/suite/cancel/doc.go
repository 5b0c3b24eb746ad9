// Package cancel tests the promises of docs/guarantees.md about contexts:
//
//   - A call returns within milliseconds after its context ends, even if no server answers.
//   - zsync never mistakes the error of a context for the answer of a server, even if the context's
//     cause is an error of a server.
//   - A wait that was cancelled or timed out leaves no znode behind.
package cancel
