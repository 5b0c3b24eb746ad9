// Package closing holds what docs/guarantees.md promises of Session.Close:
//
//   - Close ends the contexts of the functions of Do, Run and Work, and waits until they have
//     returned. Only then can another session hold what they held.
//   - It waits no longer than WithCloseTimeout. After that the hold is lost, and its holder
//     can know before another session holds it.
package closing
