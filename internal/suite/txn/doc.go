// Package txn holds that no write of a primitive is applied twice or left half done, as
// docs/guarantees.md promises, and that the logs of transactions are deleted. Its tests see
// the inside of the library.
package txn
