// Package repo tests that the code and its documents agree. The tests, errors and files in
// docs/guarantees.md and in the other documents exist. The commands and programs of the
// README work, and the reference is complete. Each package imports only lower layers and
// keeps its bounds. Each test that sleeps in real time says why. The tests run in the root
// folder of the repository.
package repo
