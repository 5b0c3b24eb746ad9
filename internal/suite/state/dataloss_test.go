package state

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// servers are a server that can lose its data.
type servers struct {
	t   testing.TB
	now atomic.Pointer[zktest.Server]
}

func startServers(t testing.TB) *servers {
	s := &servers{t: t}
	s.now.Store(zktest.Start(t))
	return s
}

func (s *servers) loseData() {
	old := s.now.Swap(zktest.Start(s.t))
	_ = old.Close()
}

func (s *servers) connect() *zsync.Session {
	dial := func(network, _ string, timeout time.Duration) (net.Conn, error) {
		srv := s.now.Load()
		return srv.Dial(network, srv.Addr(), timeout)
	}
	z, err := zsync.Connect(harness.Within(s.t, time.Minute), s.now.Load().Addr(), zsync.WithDialer(dial), zsync.WithSessionTimeout(harness.Timeout))
	harness.Must(s.t, err)
	s.t.Cleanup(func() { z.Close() })
	return z
}

// A register is a Value, or a key of a Map.
type register struct {
	make  func(s *zsync.Session) any
	store func(t *testing.T, v any, x string)
	load  func(t *testing.T, v any) zsync.Version
	swap  func(t *testing.T, v any, old zsync.Version, x string) bool
	watch func(t *testing.T, v any) func() string // returns what comes next
}

var registers = map[string]register{
	"Value": {
		make: func(s *zsync.Session) any { return zsync.NewValue[string](s, "/v") },
		store: func(t *testing.T, v any, x string) {
			harness.Must(t, v.(*zsync.Value[string]).Store(t.Context(), x))
		},
		load: func(t *testing.T, v any) zsync.Version {
			_, version, err := v.(*zsync.Value[string]).Load(t.Context())
			harness.Must(t, err)
			return version
		},
		swap: func(t *testing.T, v any, old zsync.Version, x string) bool {
			ok, err := v.(*zsync.Value[string]).CompareAndSwap(t.Context(), old, x)
			harness.Must(t, err)
			return ok
		},
		watch: func(t *testing.T, v any) func() string {
			c := v.(*zsync.Value[string]).Watch(t.Context())
			return func() string {
				select {
				case x := <-c:
					return x
				case <-time.After(time.Minute):
					return "nothing"
				}
			}
		},
	},
	"Map": {
		make: func(s *zsync.Session) any { return zsync.NewMap[string](s, "/m") },
		store: func(t *testing.T, v any, x string) {
			harness.Must(t, v.(*zsync.Map[string]).Store(t.Context(), "k", x))
		},
		load: func(t *testing.T, v any) zsync.Version {
			_, version, err := v.(*zsync.Map[string]).Load(t.Context(), "k")
			harness.Must(t, err)
			return version
		},
		swap: func(t *testing.T, v any, old zsync.Version, x string) bool {
			ok, err := v.(*zsync.Map[string]).CompareAndSwap(t.Context(), "k", old, x)
			harness.Must(t, err)
			return ok
		},
		watch: func(t *testing.T, v any) func() string {
			c := v.(*zsync.Map[string]).Watch(t.Context())
			return func() string {
				for end := time.After(time.Minute); ; {
					select {
					case m := <-c:
						if m["k"] != "" {
							return m["k"]
						}
					case <-end:
						return "nothing"
					}
				}
			}
		},
	},
}

// When the servers lose their data, czxids, mzxids and versions begin again. The same calls in the
// same order then give the same three numbers to another value.
func TestAVersionFromBeforeALossOfTheServersDataIsOfNoValueAfterIt(t *testing.T) {
	for name, r := range registers {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := startServers(t)
				write := func(x string) zsync.Version {
					s := srv.connect()
					defer s.Close()
					v := r.make(s)
					r.store(t, v, x)
					return r.load(t, v)
				}
				old := write("old")
				time.Sleep(time.Millisecond) // the servers' clock tells the writes apart
				srv.loseData()
				now := write("new")
				if old == now {
					t.Errorf("the Version %v is of two values", old)
				}
				if old.String() != now.String() {
					t.Errorf("the numbers differ: %v, %v: the test shows nothing", old, now)
				}
				v := r.make(srv.connect())
				if r.swap(t, v, old, "swapped") {
					t.Error("CompareAndSwap has taken another value for the one that it was given the Version of")
				}
				if !r.swap(t, v, now, "swapped") {
					t.Error("CompareAndSwap with the present Version has failed")
				}
			})
		})
	}
}

func TestAWatchSendsWhatIsStoredAfterALossOfTheServersData(t *testing.T) {
	for name, r := range registers {
		t.Run(name, func(t *testing.T) {
			harness.VirtualTime(t, func(t *testing.T) {
				srv := startServers(t)
				store := func(xs ...string) {
					s := srv.connect()
					defer s.Close()
					for _, x := range xs {
						r.store(t, r.make(s), x)
						time.Sleep(time.Millisecond)
					}
				}
				store("old")
				next := r.watch(t, r.make(srv.connect()))
				if x := next(); x != "old" {
					t.Fatalf("Watch has sent %q", x)
				}
				srv.loseData()
				store("new")
				// All that has come since, until it is quiet.
				var got string
				for x := next(); x != "nothing"; x = next() {
					got = x
				}
				if got != "new" {
					t.Errorf("Watch has last sent %q, and the value is %q", got, "new")
				}
				store("newer", "newest")
				for x := next(); x != "nothing"; x = next() {
					got = x
				}
				if got != "newest" {
					t.Errorf("Watch has last sent %q, and the value is %q", got, "newest")
				}
			})
		})
	}
}
