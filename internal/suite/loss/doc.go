// Package loss holds the first two guarantees of docs/guarantees.md:
//
//   - At most one live session holds a Mutex (a leadership, a write lock; at most
//     n permits). A client that is cut off from every server gives up before the
//     servers can give what it held to someone else.
//   - Loss is told, with its reason (LostError), in every way there is.
package loss
