// Package model runs random programs of all methods of each primitive, while servers lag,
// connections drop and sessions end. It compares the results with the possible results in
// one process, as docs/guarantees.md promises for each primitive. It also runs small programs in
// every way that a server can serve them.
package model
