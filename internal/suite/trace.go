package suite

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/verify"
)

// This file keeps the traces of sessions and checks them. The rules for a trace are the business of
// package verify.

// A TraceBuffer keeps the trace of a Session.
type TraceBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write adds p.
func (t *TraceBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

// File parses the trace.
func (t *TraceBuffer) File(tb testing.TB, name string) *verify.File {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := verify.Parse(bytes.NewReader(t.b.Bytes()), name)
	harness.Must(tb, err)
	return f
}

// String returns the whole trace.
func (t *TraceBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}

// traceFile returns a file for the traces of all sessions that the test opens. After these are
// closed, it checks the traces as zsync verify does. If the function `alive` returns false for a
// session, the test has ended the session at the servers. Its client can learn of that end too
// late, so violations by the session are ignored.
func traceFile(t *testing.T, alive func(session int64) bool) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "trace"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	harness.Must(t, err)
	t.Cleanup(func() { // the cleanups that close the sessions are registered later, so they run first
		defer f.Close()
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		r, err := verify.Inputs([]verify.Input{{Name: t.Name(), Reader: f}}, verify.DefaultTolerance)
		if err != nil {
			t.Fatal(err)
		}
		r.Violations = slices.DeleteFunc(r.Violations, func(v verify.Finding) bool {
			return slices.ContainsFunc(sessionText.FindAllString(v.Text, -1), func(text string) bool {
				id, err := strconv.ParseUint(text, 0, 64)
				return err == nil && !alive(int64(id))
			})
		})
		var out strings.Builder
		_ = r.Print(&out)
		if text := out.String(); len(r.Violations) > 0 || r.Traces == 0 {
			t.Errorf("the traces, which are kept in %s:\n%s", keep(t, f.Name()), text)
		} else {
			first, _, _ := strings.Cut(text, "\n")
			t.Logf("the traces have no violation: %s", first)
		}
	})
	return f
}

// The function `keep` moves a file of the test's directory, which is deleted at the end of the test,
// and returns its new name.
func keep(t *testing.T, name string) string {
	dir, err := os.MkdirTemp("", "zsync-trace-")
	harness.Must(t, err)
	kept := filepath.Join(dir, filepath.Base(name))
	harness.Must(t, os.Rename(name, kept))
	return kept
}

var sessionText = regexp.MustCompile(`0x[0-9a-f]+`)
