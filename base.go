package zsync

import (
	"slices"

	"github.com/zsync/zsync/internal/session"
)

// noCopy makes go vet report a copy of what contains it.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// made has the arguments of every primitive's constructor.
type made struct {
	_    noCopy
	s    *Session
	path string
	err  error // of the constructor's arguments
}

// tracers returns the tracers of the Session, or nil without a Session.
func (m *made) tracers() *tracers {
	if m.s == nil {
		return nil
	}
	return &m.s.tracers
}

// misuse returns why a primitive cannot be used, if so.
func (m *made) misuse() error {
	if m.s == nil && m.err == nil {
		return session.Invalid("a zero value; every primitive is made by its New function, with a Session and a path")
	}
	return m.err
}

// checkNew checks the arguments of every constructor.
func checkNew(s *Session, path string, err error) error {
	if s == nil {
		return session.Invalid("the Session is nil")
	}
	if err != nil {
		return err
	}
	return session.CheckPath(path)
}

// opError adds operation and path to err. An error that has them is returned unchanged.
// opError(op, path, nil) is nil.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok {
		return err
	}
	if err == ErrNotLocked && slices.Contains(releases, op) {
		err = notHeld{}
	}
	return &Error{Op: op, Path: path, Err: err}
}

// releases are the operations on holds other than locks.
var releases = []string{"resign", "transfer", "release", "leave", "ack", "nack", "reject", "return"}

// notHeld is [ErrNotLocked] in words that fit permits, leaderships, memberships and claims.
type notHeld struct{}

func (notHeld) Error() string        { return "not held" }
func (notHeld) Is(target error) bool { return target == ErrNotLocked }

// An Error has the operation that failed, its path and the reason, as [os.PathError] has in
// os.
type Error struct {
	Op   string // the operation, such as "lock"
	Path string // the path of the primitive; empty for the session itself
	Err  error  // the reason
}

// Error returns the operation, the path and the reason: "zsync: lock /locks/backup: lost:
// …".
func (e *Error) Error() string {
	if e.Path == "" {
		return "zsync: " + e.Op + ": " + e.Err.Error()
	}
	return "zsync: " + e.Op + " " + e.Path + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }
