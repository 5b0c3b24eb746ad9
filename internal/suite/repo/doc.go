// Package repo tests that the code and its documents agree. If docs/guarantees.md or another
// document names a test, an error or a file, then it exists. The commands and programs of the
// README work, and the reference is complete. Each package imports only lower layers and keeps its
// bounds. Each test that sleeps in real time says why. The tests run in the root folder of the
// repository.
package repo
