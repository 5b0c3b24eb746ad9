// Package observe holds what docs/guarantees.md promises of traces, logs and tracers: they
// tell each grant and each loss, hold up no caller, and a trace shows whether two have held
// one lock.
package observe
