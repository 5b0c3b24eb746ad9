// Package model runs random programs of all methods of each primitive, while servers lag,
// connections drop and sessions end. It compares the results with the possible results in
// one process, as docs/guarantees.md promises for each primitive.
package model
