// Package linear tests that zsync's values are linearizable, as docs/guarantees.md promises.
// Overlapping calls have the results that they would have one after the other, in some order. For a
// Queue, this is true of Send and TryRecv. It is also true of Send and Recv, if there is only one
// Recv. A write of a Value is correct at a server that lags. A Watch never yields an older value
// after a newer one.
package linear
