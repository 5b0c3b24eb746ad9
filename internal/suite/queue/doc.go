// Package queue holds what docs/guarantees.md promises of a Queue: its order, claims,
// losses, limits, costs and layouts.
package queue
