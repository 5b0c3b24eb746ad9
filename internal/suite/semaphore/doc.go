// Package semaphore tests the promises of docs/guarantees.md about a Semaphore. In its tests, other
// clients delete permits, Resize changes the limit, and holders of permits write with Txn. Its
// tests use the inside of the library.
package semaphore
