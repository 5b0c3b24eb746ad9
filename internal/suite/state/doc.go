// Package state tests a guarantee of docs/guarantees.md: confirmed state lasts, even if
// another primitive uses the same path for the parent of its znodes. Either no state is
// in a container, which the servers may remove, or zsync refuses the call.
package state
