// Package locks holds what docs/guarantees.md promises of every lock: who holds it, whose
// znode it is, and how a hold ends, also with several locks, limits, revocation, transfer and
// retention. Its tests see the inside of the library.
package locks
