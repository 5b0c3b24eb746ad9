// Package locks tests the promises of docs/guarantees.md about every lock. They are about three
// things: the holder of a lock, the session that owns the holder's znode, and the end of the hold.
// It also tests several locks together, limits, revocation, transfer and retention. Its tests use
// the inside of the library.
package locks
