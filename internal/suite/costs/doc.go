// Package costs measures each row of docs/costs.md. A row has two numbers for an operation without
// faults: its requests, also in the background, and the round trips for which the caller waits.
// Other tests check the promises of docs/guarantees.md.
package costs
