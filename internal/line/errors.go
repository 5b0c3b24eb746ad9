package line

import (
	"errors"

	"github.com/zsync/zsync/internal/session"
)

var (

	// ErrNotLocked means a release of something that this value does not hold.
	ErrNotLocked = errors.New("not locked")

	// ErrMixed means that a contender of another kind, or of another layout,
	// stands in the line: a Mutex and an Election at one path, for example. They
	// would not keep each other out.
	ErrMixed = session.ErrMixed
)
