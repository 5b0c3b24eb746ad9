// Package costs measures each row of docs/costs.md. For an operation without faults, a row has two
// numbers: the requests, including those in the background, and the round trips for which the
// caller waits. Other tests check the promises of docs/guarantees.md.
package costs
