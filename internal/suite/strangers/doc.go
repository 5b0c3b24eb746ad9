// Package strangers holds what docs/guarantees.md promises whatever other clients of
// the servers make, or delete, at a path: znodes with chosen numbers, copies of
// znodes of ours, contenders of other libraries.
package strangers
