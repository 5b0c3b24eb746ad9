package interop_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/interop"
	"github.com/zsync/zsync/zktest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		f.Value.Set("4") // the tests wait for other processes more than they compute
	}
	os.Exit(interop.Main(m))
}

// A site is a ZooKeeper of three servers that the foreign programs are tried against.
type site struct {
	servers string      // connect string
	one     string      // one of the servers: who reads there sees what was written there before
	stop    func(i int) // takes server i down, from 0; nil where the test may not
	restart func(i int) // brings it back
}

// places are where the tests run, by name: on the in-process server and, as the control that
// shows what a program does by itself, on the real ensemble where there is one.
func places() map[string]func(t *testing.T) site {
	all := map[string]func(t *testing.T) site{"zktest": inProcess}
	if os.Getenv("ZSYNC_TEST_SERVERS") != "" {
		all["ensemble"] = onEnsemble
	}
	return all
}

func inProcess(t *testing.T) site {
	const free = "127.0.0.1:0"
	srv := zktest.Start(t, zktest.WithAddrs(free, free, free))
	addrs := srv.Addrs()
	return site{
		servers: strings.Join(addrs, ","),
		one:     addrs[0],
		stop:    func(i int) { srv.StopAddr(addrs[i]) },
		restart: func(i int) { srv.RestartAddr(addrs[i]) },
	}
}

func onEnsemble(t *testing.T) site {
	e, _ := ensemble.FromEnv(t)
	s := site{servers: e.Servers(), one: e.Addrs()[rand.N(len(e.Addrs()))]}
	if e.MayBeHurt() && len(e.Addrs()) >= 3 {
		s.stop = func(i int) { e.Kill(i + 1) }
		s.restart = func(i int) { e.Restart(i + 1) }
	}
	return s
}

// A driver starts a program that takes the commands of testdata/driver.py.
type driver struct {
	name  string
	start func(tb testing.TB, args ...string) *interop.Program
	alone func(tb testing.TB, args ...string) *interop.Program // one that may be killed
}

var (
	kazoo   = driver{"kazoo", interop.Kazoo, interop.Kazoo}
	curator = driver{"curator", interop.Curator, interop.CuratorAlone}
)

// program starts the driver's program and returns once it is connected.
func (d driver) program(t *testing.T, servers string, timeout time.Duration) *interop.Program {
	t.Helper()
	return begin(t, d.start, servers, timeout)
}

// mortal is program for one that is going to be killed.
func (d driver) mortal(t *testing.T, servers string, timeout time.Duration) *interop.Program {
	t.Helper()
	return begin(t, d.alone, servers, timeout)
}

func begin(t *testing.T, start func(tb testing.TB, args ...string) *interop.Program, servers string, timeout time.Duration) *interop.Program {
	t.Helper()
	p := start(t, servers, fmt.Sprint(timeout.Milliseconds()))
	p.Ok()
	return p
}

// everywhere runs f for every driver in every place, beside each other and other such tests.
// All sessions are at one server there: at different ones, a session that only reads may not see
// yet what another has written.
func everywhere(t *testing.T, f func(t *testing.T, d driver, server string)) {
	everySite(t, func(t *testing.T, d driver, s site) { f(t, d, s.one) })
}

// acrossServers is everywhere for what must hold between sessions at different servers too.
func acrossServers(t *testing.T, f func(t *testing.T, d driver, servers string)) {
	everySite(t, func(t *testing.T, d driver, s site) { f(t, d, s.servers) })
}

func everySite(t *testing.T, f func(t *testing.T, d driver, s site)) {
	t.Parallel()
	for name, open := range places() {
		for _, d := range []driver{kazoo, curator} {
			t.Run(name+"/"+d.name, func(t *testing.T) {
				t.Parallel()
				f(t, d, open(t))
			})
		}
	}
}

// fresh returns a path that no other test uses, made by p.
func fresh(p *interop.Program) string {
	return p.Do("create /interop- x s")
}

// check compares an answer with what it must be.
func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// eventually waits for f to return want, for what a program does in the background.
func eventually(t *testing.T, want string, f func() string) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		got := f()
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %q, want %q", got, want)
		}
		time.Sleep(5 * time.Millisecond) // real time: a foreign client is a process of its own
	}
}
