// Package state tests a guarantee of docs/guarantees.md: confirmed state lasts, even if
// another primitive has its directory at the same path. Either the state is never in a
// znode that the servers may remove, or zsync refuses the call.
package state
