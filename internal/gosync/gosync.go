// Package gosync runs Go's tests of package sync against zsync, and the tests of packages semaphore
// and singleflight of golang.org/x/sync.
//
// The test run reads the tests from GOROOT and from the module cache; this repository has
// no copy. It replaces their imports with the packages sync, semaphore and singleflight in
// this folder, which are thin adapters. Each type has the methods, the zero value and the
// panics of the original type, and calls a primitive of zsync with a path of its own.
// Packages testenv and isync replace Go's internal/testenv and internal/sync.
//
// The package itself has the sessions and the paths for the adapters.
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

// EnvSessions names the variable with the number of sessions. With more than
// one, the calls of a test use the sessions in turn, as if its goroutines were
// in several processes.
const EnvSessions = "ZSYNC_GOSYNC_SESSIONS"

// EnvServers names the variable with the connect string of real servers. If the variable is empty,
// the tests use an in-process server.
const EnvServers = "ZSYNC_TEST_SERVERS"

// sessions returns the sessions. They connect at the first use of a primitive, and remain until the
// process ends.
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
	// All sessions use the same server, because a later call in any session must see the
	// effect of an earlier call. Otherwise, a session of the leader can briefly miss the
	// newest write (see "When a promise is weaker" in docs/guarantees.md).
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

// A Shared is one primitive, with a value for each session. Its zero value is ready for use, like
// the zero values of package sync.
type Shared[T any] struct {
	once sync.Once
	all  []T
}

// All returns the values of the primitive, one for each session. The first call makes them, with a
// new path.
func (s *Shared[T]) All(make func(s *zsync.Session, path string) T) []T {
	s.once.Do(func() {
		path := fmt.Sprintf("/%d", paths.Add(1))
		for _, session := range sessions() {
			s.all = append(s.all, make(session, path))
		}
	})
	return s.all
}

// Next returns the numbers from 0 to n-1 in turn.
func Next(n int) int { return int(turns.Add(1) % int64(n)) }

// Fatal ends the process, as the Go runtime does after a misuse without recovery.
func Fatal(v any) {
	fmt.Fprintln(os.Stderr, "fatal error:", v)
	os.Exit(2)
}

// Must panics if err is not nil, because the methods of package sync return no errors.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
