// Package state holds a guarantee of docs/guarantees.md: what was confirmed to be
// stored stays, whatever else has its directory at the same path. Either it is
// never in a znode that the servers may remove, or the call was refused.
package state
