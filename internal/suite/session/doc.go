// Package session holds what docs/guarantees.md promises of a Session whose connection or
// servers fail, hang or send garbage. Its tests see the inside of the library.
package session
