// Package doublebarrier holds what docs/guarantees.md promises of Enter and Leave of a
// WaitGroup. Its tests see the inside of the library.
package doublebarrier
