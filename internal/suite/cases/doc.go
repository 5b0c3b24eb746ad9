// Package cases tests docs/guarantees.md in the situations of known faults of other
// libraries. It also causes faults at each request of an operation, and changes of znodes
// between two requests. Its tests use the inside of the library.
package cases
