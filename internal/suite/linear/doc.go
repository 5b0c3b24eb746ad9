// Package linear tests that zsync's values are linearizable, as docs/guarantees.md promises: the
// results of the calls are possible for a value in one process, in some order of overlapping calls.
// For a Queue, this holds for Send and TryRecv, and for Send and Recv if there is only one Recv. A
// write of a Value is correct at a server that lags. A Watch never yields an older value after a
// newer one.
package linear
