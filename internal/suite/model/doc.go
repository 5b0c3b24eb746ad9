// Package model runs random programs of all methods of each primitive, while servers lag,
// connections drop and sessions end, and compares what the calls return with what they could
// return in one process. It holds for the programs what docs/guarantees.md promises of each
// primitive.
package model
