// Package observe tests the promises of docs/guarantees.md about traces, logs and tracers: they
// report each grant and each loss, and delay no caller. A trace shows whether two sessions held
// one lock at the same time.
package observe
