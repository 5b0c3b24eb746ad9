package suite

import (
	"bytes"
	"sync"
	"testing"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/trace"
)

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
func (t *TraceBuffer) File(tb testing.TB, name string) *trace.File {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := trace.Parse(bytes.NewReader(t.b.Bytes()), name)
	harness.Must(tb, err)
	return f
}

// String returns all that was written.
func (t *TraceBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.String()
}
