//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package fence

import (
	"errors"
	"os"
)

func tryLock(f *os.File) (bool, error) {
	return false, &os.PathError{Op: "flock", Path: f.Name(), Err: errors.ErrUnsupported}
}
