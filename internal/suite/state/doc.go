// Package state tests a guarantee of docs/guarantees.md: confirmed state lasts, even if another
// primitive uses the same path for the parent of its znodes. The servers may remove a container. So
// zsync never stores state in a container: it refuses the call instead.
package state
