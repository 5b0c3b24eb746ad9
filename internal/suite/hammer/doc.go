// Package hammer tests each primitive with many goroutines of several sessions
// that call it at random. During this, connections break, requests and replies are
// lost, and sessions end. It tests these guarantees of docs/guarantees.md:
//
//   - At most one live session holds a Mutex, a leadership or a write lock, and all sessions hold
//     at most n permits.
//   - No znode remains of a wait that was cancelled or timed out, or of a release that could not be
//     sent.
//   - No operation is applied twice or left half done, even if replies are lost.
package hammer
