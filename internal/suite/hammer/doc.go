// Package hammer has many goroutines of several sessions use a primitive at
// random, while connections break, requests and replies are lost and sessions end.
// It holds, for each primitive, these guarantees of docs/guarantees.md:
//
//   - At most one live session holds a Mutex (a leadership, a write lock; at most
//     n permits).
//   - Nothing is left behind by a wait that was cancelled or timed out, or by a
//     release that could not be sent.
//   - No operation is applied twice, none is left half done, whatever replies are
//     lost.
package hammer
