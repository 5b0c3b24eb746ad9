// Package costs holds the tables "Requests" of docs/guarantees.md: what an
// operation costs its session in requests when nothing goes wrong, those in the
// background included, and how many round trips its caller waits for.
package costs
