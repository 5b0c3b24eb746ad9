// Package session tests the promises of docs/guarantees.md about a Session whose connection or
// servers fail, hang or send garbage. Its tests use the inside of the library.
package session
