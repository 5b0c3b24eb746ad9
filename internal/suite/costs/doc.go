// Package costs measures each row of docs/costs.md: the requests that an operation
// costs its session if nothing fails, with the requests in the background, and the
// round trips for which its caller waits.
package costs
