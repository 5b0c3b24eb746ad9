package fence

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// This file fences writes to files, for writers on one machine. It does not
// fence writers on several machines, because a lock of a file (flock) is local.

// WriteFile replaces the whole file called name in one step. If a greater token
// has written to the file, WriteFile leaves the file unchanged and returns a
// [*StaleError]. Readers need no special code: they see the old contents or the
// new contents.
//
// A second file, name.fence, keeps the greatest token. During a write,
// WriteFile locks the second file (flock). So all writers must use this
// function or [DoFile]. The directory must be on a local file system.
//
// ctx limits the wait for another writer. If a process is paused during a
// write, other writers wait until it continues or ends.
//
// WriteFile works on Linux, macOS and the BSDs. On other systems, the error is
// errors.ErrUnsupported.
func WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode, token int64) error {
	return DoFile(ctx, name, token, func() error { return replace(name, data, perm) })
}

// DoFile calls write, which may change the file called name in any way. If a
// greater token was used for the file before, DoFile does not call write and
// returns a [*StaleError]. See [WriteFile].
func DoFile(ctx context.Context, name string, token int64, write func() error) error {
	if err := given("write", write != nil); err != nil {
		return err
	}
	if name == "" || token <= 0 {
		return fmt.Errorf("%w: file %q, token %d, want a name and a positive number", ErrInvalid, name, token)
	}
	return advance(ctx, name+suffix, name, token, write)
}

const suffix = ".fence"

// A Dir is the name of a directory, which must exist. It is a [Store] that
// keeps the token of each resource in its own file. The file's name is the
// SHA-256 of the resource, because some file systems treat "a" and "A" as one
// name.
type Dir string

// Advance implements [Store].
func (d Dir) Advance(ctx context.Context, resource string, token int64) error {
	if err := check(resource, token); err != nil {
		return err
	}
	file := filepath.Join(string(d), fmt.Sprintf("%x", sha256.Sum256([]byte(resource)))+suffix)
	return advance(ctx, file, resource, token, func() error { return nil })
}

// width is the length of a token in its file. All tokens have this length, so a
// single write replaces the old token.
const width = 20

// The function `advance` stores the token in its file, and then calls write, while the file is
// locked. The token comes first, because write can fail half way: a smaller token must not write
// after that.
func advance(ctx context.Context, file, resource string, token int64, write func() error) (err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // Close also unlocks f
	if err := lock(ctx, f); err != nil {
		return err
	}
	newest, err := stored(f)
	if err != nil {
		return err
	}
	if token < newest {
		return &StaleError{resource, token, newest}
	}
	if token > newest {
		if _, err := f.WriteAt(fmt.Appendf(nil, "%0*d\n", width, token), 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if newest == 0 { // a new file must survive a power failure
			if err := syncDir(filepath.Dir(file)); err != nil {
				return err
			}
		}
	}
	return write()
}

// The function `stored` returns the token in a file. For an empty file, it returns 0.
func stored(f *os.File) (int64, error) {
	data, err := io.ReadAll(io.LimitReader(f, width+2))
	if err != nil || len(data) == 0 {
		return 0, err
	}
	text, whole := strings.CutSuffix(string(data), "\n")
	token, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !whole || token <= 0 {
		return 0, fmt.Errorf("fence: %s is damaged: got %q, want a number of %d digits", f.Name(), data, width)
	}
	return token, nil
}

// The shortest and the longest pause before the next try if another process has
// the lock.
const (
	soon = time.Millisecond
	late = 50 * time.Millisecond
)

// The function `lock` waits until f is free, and locks it.
func lock(ctx context.Context, f *os.File) error {
	for pause := soon; ; pause = min(2*pause, late) {
		if ok, err := tryLock(f); ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("fence: %s is locked by another writer: %w", f.Name(), context.Cause(ctx))
		}
	}
}

// The function `replace` replaces the content of the file called name by data.
func replace(name string, data []byte, perm fs.FileMode) (err error) {
	dir := filepath.Dir(name)
	f, err := os.CreateTemp(dir, "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err1 := f.Write(data)
	if err := errors.Join(err1, f.Chmod(perm), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return syncDir(dir)
}

// syncDir writes the names in dir to the disk.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
