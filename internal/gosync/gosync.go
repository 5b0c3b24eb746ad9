// Package gosync runs Go's own tests of package sync, and the tests of semaphore
// and singleflight in golang.org/x/sync, against zsync.
//
// The tests are read where Go and the module cache have them, at test time;
// none is copied. Their imports are turned to the packages sync, semaphore and
// singleflight below this one, which are thin adapters: each type has the methods, the zero
// value and the panics of its model, and does nothing but call the primitive
// of zsync, which has a path of its own. Packages testenv and isync replace
// internal/testenv and internal/sync.
//
// This package has what the adapters share: the sessions, and the paths.
package gosync

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// EnvSessions names the variable that says how many sessions there are. With
// more than one, the calls of a test go to them in turn, as if its goroutines
// lived in as many processes.
const EnvSessions = "ZSYNC_GOSYNC_SESSIONS"

// EnvServers names the variable with the connect string of real servers. If it
// is empty, the tests use an in-process server.
const EnvServers = "ZSYNC_TEST_SERVERS"

// sessions connects when the first primitive is used, and stays connected
// until the process ends.
var sessions = sync.OnceValue(func() []*zsync.Session {
	n, err := strconv.Atoi(os.Getenv(EnvSessions))
	if err != nil || n < 1 {
		n = 1
	}
	opts := []zsync.Option{zsync.WithSessionTimeout(40 * time.Second)}
	servers := os.Getenv(EnvServers)
	if servers == "" {
		srv := zktest.NewServer()
		servers = srv.Addr()
		opts = append(opts, zsync.WithDialer(srv.Dial))
	}
	// All sessions have one server. A later call in any session must see the effect of an
	// earlier call. A leader does not promise that to its own clients (see "When a promise is
	// weaker" in docs/guarantees.md).
	servers, _, _ = strings.Cut(servers, ",")
	servers += "/zsync-gosync-" + uuid.NewString()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all := make([]*zsync.Session, n)
	for i := range all {
		if all[i], err = zsync.Connect(ctx, servers, opts...); err != nil {
			Fatal(err)
		}
	}
	return all
})

var paths, turns atomic.Int64

// A Shared is one primitive, as each session sees it. Its zero value is ready
// for use, as the zero values of sync are.
type Shared[T any] struct {
	once sync.Once
	all  []T
}

// All returns the primitive for each session. The first call makes them, at a
// path of its own.
func (s *Shared[T]) All(make func(s *zsync.Session, path string) T) []T {
	s.once.Do(func() {
		path := fmt.Sprintf("/%d", paths.Add(1))
		for _, session := range sessions() {
			s.all = append(s.all, make(session, path))
		}
	})
	return s.all
}

// Next returns the next of n, in turn.
func Next(n int) int { return int(turns.Add(1) % int64(n)) }

// Fatal ends the process as the runtime does at misuse that cannot be
// recovered from.
func Fatal(v any) {
	fmt.Fprintln(os.Stderr, "fatal error:", v)
	os.Exit(2)
}

// Must panics if err is not nil: package sync has no errors to return.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
