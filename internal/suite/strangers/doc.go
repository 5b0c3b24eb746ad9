// Package strangers tests the promises of docs/guarantees.md while other clients
// create and delete znodes at the same path: znodes with chosen numbers, copies of
// zsync's znodes, and contenders of other libraries.
package strangers
