// Package linear holds that what zsync's values answer is what values of one
// process could have answered, in some order of the calls that overlapped.
// docs/guarantees.md says it of Queue: it is linearizable in Send, TryRecv, Peek
// and Len together, and in Send with one Recv; and of Value: writes, and Watch
// never going back, do not depend on any server being up to date.
package linear
