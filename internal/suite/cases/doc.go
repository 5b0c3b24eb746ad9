// Package cases tests the promises of docs/guarantees.md in situations in which other libraries had
// faults. It also causes a fault at each request of an operation, and changes znodes between two
// requests. Its tests use the inside of the library.
package cases
