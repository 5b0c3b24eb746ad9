// Package semaphore holds what docs/guarantees.md promises of a Semaphore whose permits are
// deleted, whose limit is changed, and that writes in transactions. Its tests see the inside
// of the library.
package semaphore
