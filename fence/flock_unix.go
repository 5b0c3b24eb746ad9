//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fence

import (
	"os"
	"syscall"
)

// tryLock locks f unless it is locked, and reports whether it did.
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
