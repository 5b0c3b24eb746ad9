// Package loss tests the first two guarantees of docs/guarantees.md:
//
//   - At most one live session holds a Mutex, a leadership or a write lock, and all
//     sessions hold at most n permits. A client that is cut off from every server
//     gives up its holds before the servers can grant them to another client.
//   - A holder can learn of a loss in several ways. Each of them gives the reason (LostError).
package loss
