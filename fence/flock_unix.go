//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence

import (
	"os"
	"syscall"
)

// This file locks a file on systems that have flock. It does not wait: see lock in file.go.

// tryLock locks f unless another process has locked it. It reports whether it
// has locked f.
func tryLock(f *os.File) (bool, error) {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case nil:
			return true, nil
		case syscall.EWOULDBLOCK:
			return false, nil
		case syscall.EINTR:
		default:
			return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}
