// Package cases holds docs/guarantees.md against the faults of other libraries, and against
// faults at, and changes between, any two requests of an operation. Its tests see the inside
// of the library.
package cases
