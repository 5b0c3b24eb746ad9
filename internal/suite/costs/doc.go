// Package costs measures each row of docs/costs.md. A row has the number of
// requests of an operation without faults, including requests in the background,
// and the number of round trips for which its caller waits. The promises of
// docs/guarantees.md are not its business.
package costs
