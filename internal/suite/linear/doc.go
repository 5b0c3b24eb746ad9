// Package linear tests that zsync's values are linearizable: their answers are
// possible for values of one process, in some order of the overlapping calls. See
// docs/guarantees.md. A Queue is linearizable in Send and TryRecv together, and in
// Send with one Recv. Writes of a Value do not depend on an up-to-date server, and
// its Watch never returns to an older value.
package linear
