// Package locks tests the promises of docs/guarantees.md about every lock: who holds it, whose
// session owns its znode, and how a hold ends. It also tests several locks together, limits,
// revocation, transfer and retention. Its tests use the inside of the library.
package locks
