// Package doublebarrier tests the promises of docs/guarantees.md about Enter and Leave of a
// WaitGroup. Its tests use the inside of the library.
package doublebarrier
