// Package closing tests the promises of docs/guarantees.md about Session.Close:
//
//   - Close ends the contexts of the functions of Do, Run and Work, and waits until the functions
//     have returned. Only then can another session get their holds.
//   - It waits no longer than WithCloseTimeout. After that time the hold is lost, and the holder
//     can learn of the loss before another session gets the hold.
package closing
