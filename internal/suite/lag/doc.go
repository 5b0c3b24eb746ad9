// Package lag holds what docs/guarantees.md promises whatever the servers do, for
// servers that lag behind each other: at most one live session holds what one may
// hold, and who asks after a change that has returned is not answered from the
// past.
package lag
