package lock

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/session/sessiontest"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

// permitsOf returns n permits of m, with one znode.
func permitsOf(t *testing.T, m *session.Manager, n int64) *Permits {
	t.Helper()
	inc := incarnation(t, m)
	stake, err := inc.Stake(t.Context())
	harness.Must(t, err)
	const dir = "/s/leases"
	p := NewPermits(inc, stake, "/s", dir, nil, new(atomic.Int64))
	made := znodes.Creation{Dir: znodes.Dir{Path: dir}, Paths: []string{dir + "/all"}}
	harness.Must(t, znodes.MakeDir(t.Context(), inc, made.Dir))
	harness.Must(t, znodes.CreateEphemeral(t.Context(), inc, &made))
	harness.Must(t, p.Add([]Permit{{Path: made.Paths[0], Weight: n}}, n))
	return p
}

// Release has taken the last permit, and has not ended the hold yet. A Token or a Txn at that moment must send no
// request: it has no znode to write or to check.
func TestATokenOrATxnOfPermitsWithoutAZnodeSendsNoRequest(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		p := permitsOf(t, open(t, srv), 1)
		p.mu.Lock()
		p.give(1) // as Release does before it calls `finish`
		p.mu.Unlock()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpSetData || r.Op == zktest.OpMulti {
				t.Errorf("a write of %q", r.Path)
			}
			return zktest.Pass
		})
		_, err := p.Token(t.Context())
		harness.WantErr(t, err, ErrNotLocked)
		_, err = p.Txn(t.Context(), []any{&zk.CreateRequest{Path: "/x"}})
		harness.WantErr(t, err, ErrNotLocked)
		p.n = 0
		p.finish()
		_, err = p.Token(t.Context())
		harness.WantErr(t, err, ErrNotLocked)
	})
}

// The servers refuse the reads that watch the znode of two permits. One of the permits is released, and
// another znode replaces this znode. The session keeps no watch of the deleted znode.
func TestAReleaseOfSomePermitsLeavesTheWatchOfTheirZnode(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		p := permitsOf(t, open(t, srv), 2)
		srv.Intercept(harness.First(zktest.Fail(zktest.CodeNoAuth), func(r zktest.Request) bool { return r.Op == zktest.OpGetChildren2 }))
		time.Sleep(time.Second)
		_, r, lost := p.Release(1, nil)
		harness.Must(t, lost)
		harness.Must(t, p.Result(r))
		time.Sleep(time.Second)
		for _, w := range p.Incarnation.Watches.All() {
			if w.Key.Path != p.leases[0].Path {
				t.Errorf("a watch of %s is left", w.Key.Path)
			}
		}
		p.Release(1, nil)
	})
}

// Two calls of Do acquire permits at the same moment: each says that its function has them, and then the functions
// begin. One of them has returned. Close must not release the permits while the other runs.
func TestCloseKeepsThePermitsOfAFunctionThoughAnotherHasBegunAtTheSameMoment(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := open(t, srv)
		p := permitsOf(t, m, 2)
		long, short := m.Function(nil), m.Function(nil)
		p.Within(&long, 0)
		p.Within(&short, 0)
		harness.Must(t, long.Begin())
		harness.Must(t, short.Begin())
		short.End()
		p.ReleaseBare() // as Close does
		if err := p.Err(); err != nil {
			t.Errorf("while the function runs: %v", err)
		}
		long.End()
	})
}

// A function that never began, or whose caller has returned, is forgotten.
func TestPermitsForgetTheFunctionsThatAreOver(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := open(t, srv)
		p := permitsOf(t, m, 1)
		for i := range 3 {
			f := m.Function(nil)
			p.Within(&f, 0)
			if i > 0 {
				harness.Must(t, f.Begin())
			}
			f.End()
		}
		if len(p.within) > 1 {
			t.Errorf("%d functions", len(p.within))
		}
	})
}

// Close has released the holds without a function, and waits for a function. Permits whose Stake was just before it
// are not held after it.
func TestNoPermitsAreHeldThatComeBehindClose(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		m := sessiontest.Open(t, srv.Addrs(), srv.Dial, func(cfg *session.Config) { cfg.CloseTimeout = time.Minute })
		f := m.Function(nil)
		began := make(chan error)
		go func() { began <- f.Begin(); time.Sleep(time.Second); f.End() }()
		harness.Must(t, <-began)
		inc := incarnation(t, m)
		stake, err := inc.Stake(t.Context())
		harness.Must(t, err)
		closed := harness.Arrive(t, func() error { m.Close(); return nil })
		const dir = "/s/leases"
		p := NewPermits(inc, stake, "/s", dir, nil, new(atomic.Int64))
		harness.WantErr(t, p.Add([]Permit{{Path: "/s/leases/all", Weight: 1}}, 1), session.ErrClosed)
		if owners := len(inc.Ended.Owners()); owners > 0 {
			t.Errorf("%d holds", owners)
		}
		harness.Must(t, <-closed)
	})
}
