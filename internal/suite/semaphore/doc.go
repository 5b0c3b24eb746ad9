// Package semaphore tests the promises of docs/guarantees.md for a Semaphore: another client
// deletes its permits, Resize changes its limit, and Txn writes with its permits. The tests see
// the inside of the library.
package semaphore
