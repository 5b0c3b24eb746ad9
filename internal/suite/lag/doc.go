// Package lag tests promises of docs/guarantees.md on servers that lag behind each
// other. At most one live session has an exclusive hold. A read that begins after a
// change has returned sees that change.
package lag
