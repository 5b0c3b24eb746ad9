// Package semaphore tests the promises of docs/guarantees.md about a Semaphore: another client
// deletes its permits, Resize changes its limit, and Txn writes with its permits. Its tests use
// the inside of the library.
package semaphore
