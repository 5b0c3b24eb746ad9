// Package cancel holds what docs/guarantees.md promises of contexts:
//
//   - A context decides within milliseconds, whatever the servers do.
//   - An error of a context is never taken for a server's answer, whatever its
//     cause.
//   - Nothing is left behind by a wait that was cancelled or timed out.
package cancel
