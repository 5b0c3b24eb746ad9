// Package fence refuses writes that come too late.
//
// No lock service can stop a process that held a lock, was paused, and
// continues to write after another process has the lock. The resource itself
// can refuse its writes. Each hold has a fencing token
// ([github.com/zsync/zsync.Mutex.Token] and similar methods), greater than the
// token of every earlier hold. A writer sends its token with each write. The
// resource keeps the greatest token that it has seen, and refuses writes with
// smaller ones:
//
//   - [Table], for the writes of a database/sql transaction;
//   - [NewHandler], for an HTTP service;
//   - [WriteFile] and [DoFile], for files.
//
// A refused write returns a [StaleError], which matches [ErrStale], and leaves
// its resource unchanged.
//
// A resource is anything that a single lock protects: an account, a table, a
// file. Its tokens must all come from the same path of the same ZooKeeper
// ensemble. Tokens of etcd (revisions) or of your own lock work too: any
// positive numbers that grow from one holder to the next. A token may be used
// for many writes.
package fence

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrStale means that the resource refused the write because it has seen a
// greater token: the writer no longer holds the lock.
var ErrStale = errors.New("fence: stale token")

// ErrInvalid means that an argument breaks a rule. Nothing was written.
var ErrInvalid = errors.New("fence: invalid argument")

// A StaleError describes a refused write. errors.Is(err, ErrStale) is true.
type StaleError struct {
	Resource string
	Token    int64 // of the write
	Newest   int64 // the greatest token that the resource is known to have seen; 0 if it could not be read
}

// Error names the resource, the token and, if it is known, the newest token.
func (e *StaleError) Error() string {
	if e.Newest == 0 {
		return fmt.Sprintf("fence: %s: token %d is stale", e.Resource, e.Token)
	}
	return fmt.Sprintf("fence: %s: token %d is stale, %d has been seen", e.Resource, e.Token, e.Newest)
}

// Is reports whether target is ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// A Store keeps the greatest token of each resource. [Memory], [Dir] and the
// result of [Table.Store] are Stores.
type Store interface {
	// Advance records that a token was seen. If the store has seen a greater
	// token, Advance changes nothing and returns a *StaleError.
	Advance(ctx context.Context, resource string, token int64) error
}

// A Memory is a Store that lasts as long as its process. Its zero value is
// ready for use.
//
// A new process knows no tokens, and accepts the first token, even if it is
// stale. Use a Memory only for a resource that ends with the process too.
type Memory struct {
	mu     sync.Mutex
	newest map[string]int64 // guarded by mu
}

// Advance implements [Store].
func (m *Memory) Advance(_ context.Context, resource string, token int64) error {
	if err := check(resource, token); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if newest := m.newest[resource]; token < newest {
		return &StaleError{resource, token, newest}
	}
	if m.newest == nil {
		m.newest = make(map[string]int64)
	}
	m.newest[resource] = token
	return nil
}

// longest is the longest name of a resource, in bytes.
const longest = 255

func check(resource string, token int64) error {
	switch {
	case resource == "" || len(resource) > longest:
		return fmt.Errorf("%w: a resource of %d bytes, want 1 to %d", ErrInvalid, len(resource), longest)
	case token <= 0:
		return fmt.Errorf("%w: token %d for %s, want a positive number", ErrInvalid, token, resource)
	}
	return nil
}

// The function `given` returns an error for a nil argument.
func given(name string, ok bool) error {
	if !ok {
		return fmt.Errorf("%w: %s is nil", ErrInvalid, name)
	}
	return nil
}
