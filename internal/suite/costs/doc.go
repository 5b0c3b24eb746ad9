// Package costs measures each row of docs/costs.md. A row has the number of
// requests of an operation without faults, including requests in the background,
// and the number of round trips for which its caller waits. Other tests check the promises of
// docs/guarantees.md.
package costs
