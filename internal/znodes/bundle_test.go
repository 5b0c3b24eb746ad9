package znodes

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

func FuzzParseBundleNeverPanics(f *testing.F) {
	one := append([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x'}, make([]byte, wire.StatSize)...)
	end := []byte{0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff}
	missing := []byte{0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0x9b, 0xff, 0xff, 0xff, 0x9b}
	if nodes, err := parseBundle(&wire.Scanner{Rest: bytes.Join([][]byte{one, missing, end}, nil)}, 2); err != nil ||
		len(nodes) != 2 || string(nodes[0].Data) != "x" || nodes[1].Stat != nil {
		f.Fatal(nodes, err)
	}
	f.Add(append(one, end...), 1)
	f.Add(append(missing, end...), 1)
	f.Add(end, 0)
	f.Fuzz(func(t *testing.T, p []byte, n int) {
		s := &wire.Scanner{Rest: p}
		nodes, err := parseBundle(s, n)
		if !s.Bad && len(nodes) != n {
			t.Errorf("%d nodes, %v; asked for %d", len(nodes), err, n)
		}
	})
}

func TestGetAllSurvivesLostRequestsAndRepliesAndSmallPieces(t *testing.T) {
	for name, action := range map[string]zktest.Action{
		"lost request": zktest.DropRequest, "lost reply": zktest.DropReply, "throttled": zktest.Fail(zktest.CodeThrottled),
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				var seen int
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMultiRead {
						if seen++; seen <= 2 {
							return action
						}
					}
					return zktest.Pass
				})
				harness.Must(t, s.During(t.Context(), func(inc *session.Incarnation) error {
					_, err := Create(t.Context(), inc, "/a", []byte("x"))
					harness.Must(t, err)
					nodes, err := GetAll(t.Context(), inc, []string{"/a", "/b", "/a", "/c"})
					harness.Must(t, err)
					if seen != 3 || string(nodes[0].Data) != "x" || nodes[1].Stat != nil || string(nodes[2].Data) != "x" {
						t.Errorf("got %v after %d attempts", nodes, seen)
					}
					return nil
				}))
			})
		})
	}
}

// A throttling connection changes the first NoNode in a reply to a bundle to Throttled.
type throttling struct {
	net.Conn
	done *atomic.Bool
}

func (c throttling) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	noNode := []byte{0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0x9b, 0xff, 0xff, 0xff, 0x9b}
	if i := bytes.Index(p[:n], noNode); i >= 0 && c.done.CompareAndSwap(false, true) {
		p[i+8], p[i+12] = 0x81, 0x81
	}
	return n, err
}

// A bundle of which a server has put off one znode is read again, and no znode comes twice.
func TestABundleIsReadAgainIfAServerPutsOffOneOfItsZnodes(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var done atomic.Bool
		inc := live(t, open(t, srv, func(c *session.Config) {
			c.Dialer = func(network, addr string, limit time.Duration) (net.Conn, error) {
				socket, err := srv.Dial(network, addr, limit)
				return throttling{socket, &done}, err
			}
		}))
		_, err := Create(t.Context(), inc, "/a", []byte("x"))
		harness.Must(t, err)
		nodes, err := GetAll(t.Context(), inc, []string{"/a", "/b", "/a"})
		harness.Must(t, err)
		if len(nodes) != 3 || string(nodes[2].Data) != "x" || !done.Load() {
			t.Errorf("%d znodes instead of 3: %v", len(nodes), nodes)
		}
	})
}

// How large znodes are is not known before any was read, but the first few tell.
func TestGetAllOfManyTakesFewRequestsThoughNothingWasReadBefore(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		var bundles atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMultiRead {
				bundles.Add(1)
			}
			return zktest.Pass
		})
		harness.Must(t, s.During(t.Context(), func(inc *session.Incarnation) error {
			paths := make([]string, 1000)
			for i := range paths {
				paths[i] = fmt.Sprintf("/n%03d", i)
				_, err := Create(t.Context(), inc, paths[i], []byte(paths[i]))
				harness.Must(t, err)
			}
			nodes, err := GetAll(t.Context(), inc, paths)
			harness.Must(t, err)
			for i, path := range paths {
				if string(nodes[i].Data) != path {
					t.Fatalf("got %q at place %d, want %q", nodes[i].Data, i, path)
				}
			}
			if n := bundles.Load(); n > 10 {
				t.Errorf("%d reads of many, want at most 10: 16 znodes, 64, and then 128 each", n)
			}
			return nil
		}))
	})
}

// A server puts the reply to a bundle together in memory, and small znodes say nothing of the size of those that come next.
func TestABundleIsSmallWhateverTheZnodesBeforeItWere(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		var small, large []string
		for i := range 300 {
			small = append(small, fmt.Sprintf("/small-%03d", i))
			_, err := Create(t.Context(), inc, small[i], []byte("x"))
			harness.Must(t, err)
		}
		for i := range 3 * bundleFirst {
			large = append(large, fmt.Sprintf("/large-%03d", i))
			_, err := Create(t.Context(), inc, large[i], make([]byte, 900<<10))
			harness.Must(t, err)
		}
		var most atomic.Int64 // of the large in one request
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMultiRead && strings.HasPrefix(r.Ops[0].Path, "/large") {
				most.Store(max(most.Load(), int64(len(r.Ops))))
			}
			return zktest.Pass
		})
		_, err := GetAll(t.Context(), inc, small)
		harness.Must(t, err)
		nodes, err := GetAll(t.Context(), inc, append(small[:1:1], large...))
		harness.Must(t, err)
		if n := most.Load(); n > bundleFirst || len(nodes) != len(large)+1 {
			t.Errorf("one request asks for %d znodes of 900 KiB", n)
		}
		most.Store(0)
		_, err = GetAll(t.Context(), inc, large)
		harness.Must(t, err)
		if n := most.Load(); n > 0 {
			t.Errorf("behind large znodes one request asks for %d of these", n)
		}
	})
}

// A large znode is followed by many small ones: each round of small znodes is larger than the one before it.
func TestGetAllReadsManyTogetherAgainBehindALargeZnode(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		inc := live(t, open(t, srv))
		paths := []string{"/large"}
		_, err := Create(t.Context(), inc, "/large", make([]byte, 900<<10))
		harness.Must(t, err)
		for i := range 1000 {
			paths = append(paths, fmt.Sprintf("/n%03d", i))
			_, err := Create(t.Context(), inc, paths[1+i], []byte(paths[1+i]))
			harness.Must(t, err)
		}
		for range 2 {
			before := srv.Counts()
			nodes, err := GetAll(t.Context(), inc, paths)
			harness.Must(t, err)
			if len(nodes) != len(paths) || len(nodes[0].Data) != 900<<10 || string(nodes[1000].Data) != paths[1000] {
				t.Errorf("%d znodes, the first of %d bytes, the last %q", len(nodes), len(nodes[0].Data), nodes[1000].Data)
			}
			if n := srv.Counts().Sub(before).Total(); n > 100 {
				t.Errorf("%d requests for a large znode and 1000 small ones", n)
			}
		}
	})
}

// A server that dies of the reply to a bundle must not be asked for the same again.
func TestABundleUnderWhichTheConnectionBrokeIsHalved(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		inc := live(t, s)
		var paths []string
		for i := range bundleFirst {
			paths = append(paths, fmt.Sprintf("/n-%03d", i))
			_, err := Create(t.Context(), inc, paths[i], []byte(paths[i]))
			harness.Must(t, err)
		}
		var sizes []int
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMultiRead {
				if sizes = append(sizes, len(r.Ops)); len(r.Ops) > 4 {
					return zktest.DropRequest
				}
			}
			return zktest.Pass
		})
		nodes, err := GetAll(t.Context(), inc, paths)
		harness.Must(t, err)
		for i, path := range paths {
			if string(nodes[i].Data) != path {
				t.Fatalf("got %q at place %d, want %q", nodes[i].Data, i, path)
			}
		}
		if want := []int{16, 8, 4, 4, 8, 4, 4}; !slices.Equal(sizes, want) {
			t.Errorf("asked for %d znodes in each request, want %d", sizes, want)
		}
	})
}

// A reply to a read of many znodes that breaks the protocol costs the connection, as
// any other does.
func TestAMalformedBundleCostsTheConnection(t *testing.T) {
	r := &session.Pending[[]session.Node]{Done: make(chan struct{}), Call: bundleCall([]string{"/a", "/b"})}
	if _, ok := r.Reply(0, []byte{1, 2, 3}); ok {
		t.Error("taken for a reply")
	}
}

func TestBundlesFitIntoTheirRequestsHoweverLongThePaths(t *testing.T) {
	var paths []string
	for i := range 300 {
		paths = append(paths, "/"+strings.Repeat("x", i*i*7))
	}
	bundles := bundlesOf(paths, 128)
	if !slices.Equal(slices.Concat(bundles...), paths) {
		t.Error("the paths are not those that were given, in their order")
	}
	for i, b := range bundles {
		size := 0
		for _, p := range b {
			size += len(p) + 16
		}
		if len(b) > 128 || len(b) == 0 || len(b) > 1 && size > MaxPacket/2 {
			t.Errorf("bundle %d: %d paths, %d bytes", i, len(b), size)
		}
	}
	if n := len(bundlesOf(paths[:100], 50)); n < 2 {
		t.Errorf("%d bundles of 50 for 100 paths", n)
	}
}
