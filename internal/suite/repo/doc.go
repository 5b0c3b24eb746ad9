// Package repo holds that the code and its documents agree: the tests, errors and files that
// docs/guarantees.md and the other documents name exist, README's commands and programs work,
// the reference is complete, and the packages keep their layers and bounds. Its tests run in
// the root folder of the repository.
package repo
