// Package txn tests a promise of docs/guarantees.md: no write of a primitive is applied
// twice or left half done. It also tests that the logs of transactions are deleted. Its
// tests use the inside of the library.
package txn
