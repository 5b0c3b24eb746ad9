// Package queue tests the promises of docs/guarantees.md about a Queue: its order, claims, losses,
// limits, costs and layouts.
package queue
