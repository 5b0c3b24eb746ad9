// Package locks tests the promises of docs/guarantees.md about every lock: its holder, the
// session that owns its znode, and the end of a hold. It also tests several locks together,
// limits, revocation, transfer and retention. Its tests use the inside of the library.
package locks
