// Package harness helps the tests of all layers: bubbles of virtual time with a server, contexts,
// errors, and calls that wait. It imports zktest but not zsync, so the tests of every layer can use
// it.
package harness

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/zsync/zsync/zktest"
)

// Timeout is the session timeout of tests in a bubble. It is so long that a wait in real time would
// be noticed.
const Timeout = 10 * time.Second

// Main runs the tests of a package, and fails if they leave a goroutine behind. It calls
// [CollectLess] and [DeepStacks].
//
// Sessions log nothing unless a test sets a logger. Otherwise, they would warn of the faults that
// the tests cause.
func Main(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	CollectLess()
	DeepStacks()
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/zsync/zsync/internal/harness.deep"))
}

// WaitTogether lets n parallel tests run at once, on however few cores. It is for a package whose
// parallel tests mostly wait. TestMain calls it before it runs the tests.
func WaitTogether(n int) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err)
	}
}

// CollectLess makes the garbage collector run less often in this process and in the processes that
// it starts, unless the environment sets GOGC. Each client of go-zookeeper takes 1.5 MB of an
// otherwise small heap. So with the default GOGC, the collector runs for every second or third
// session, and takes a third of the time of the tests.
func CollectLess() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(1000)
	os.Setenv("GOGC", "1000")
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(1 << 30)
		os.Setenv("GOMEMLIMIT", "1GiB")
	}
}

// DeepStacks makes the stacks of later goroutines begin with 8 KB. The runtime begins a stack with
// the average of what all goroutines used at the last collection, which would be 2 KB. Stacks that
// grow take 6 to 9 % of the time of a random program, which starts many goroutines that end soon.
// So DeepStacks leaves 100 goroutines behind that use 5 KB each.
func DeepStacks() {
	var begun sync.WaitGroup
	begun.Add(100)
	never := make(chan struct{})
	for range 100 {
		go deep(&begun, never)
	}
	begun.Wait()
	runtime.GC()
}

// The function `deep` waits, and uses 5 KB of its stack.
func deep(begun *sync.WaitGroup, never <-chan struct{}) {
	var room [5 << 10]byte
	begun.Done()
	<-never
	runtime.KeepAlive(&room)
}

// Long reports whether ZSYNC_TEST_LONG asks for the long run of a test.
func Long() bool { return os.Getenv("ZSYNC_TEST_LONG") != "" }

// InMemory marks a test that always runs in memory, even if ZSYNC_SERVERS names servers. It skips
// the test if ZSYNC_TEST_ONLY is "servers".
func InMemory(t testing.TB) {
	t.Helper()
	if os.Getenv("ZSYNC_TEST_ONLY") == "servers" {
		t.Skip("ZSYNC_TEST_ONLY=servers, and this runs in memory")
	}
}

// Bubble runs f in a synctest bubble with a server of its own.
func Bubble(t *testing.T, f func(t *testing.T, srv *zktest.Server), opts ...zktest.Option) {
	t.Helper()
	InMemory(t)
	VirtualTime(t, func(t *testing.T) { f(t, zktest.Start(t, opts...)) })
}

// VirtualTime runs f in a synctest bubble. After ten days of virtual time, it panics with the
// stacks of all goroutines. Without this limit, a goroutine that never ends would keep a core busy
// until the tests' timeout, because virtual time advances with the pings of the sessions.
func VirtualTime(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(10*24*time.Hour, func() {
			debug.SetTraceback("all")
			panic(t.Name() + " has waited for ten days")
		})
		f(t)
	})
}

// Within returns a context that ends after d.
func Within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// WantErr ends the test unless `got` matches each error in `want`.
func WantErr(t testing.TB, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(got, w) {
			t.Fatalf("got error %v, want one that is %v", got, w)
		}
	}
}

// Async runs f in a goroutine and returns the channel of its result.
func Async(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

// PendingStill ends the test if c has a result when all goroutines of the bubble wait.
func PendingStill(t testing.TB, c <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Fatalf("returned %v, want it to wait", err)
	default:
	}
}

// Patient is an option of a server that makes a minute its shortest session timeout. It is for
// tests in real time that expect no loss, because a busy machine can stop a process for seconds.
var Patient = zktest.WithSessionTimeouts(time.Minute, time.Hour)

// Plain returns a client of go-zookeeper, for the requests that zsync does not send.
func Plain(t testing.TB, srv *zktest.Server, credentials ...string) *zk.Conn {
	t.Helper()
	c, _, err := zk.Connect(srv.Addrs(), Timeout, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	Must(t, err)
	t.Cleanup(c.Close)
	for _, text := range credentials {
		Must(t, c.AddAuth("digest", []byte(text)))
	}
	return c
}

// Dial connects a plain client of go-zookeeper over TCP, and waits a minute for the server. By
// default, such a client waits one second and then fails its requests. One second is too short on a
// busy machine.
func Dial(network, addr string, _ time.Duration) (net.Conn, error) {
	return net.DialTimeout(network, addr, time.Minute)
}

// DialUnless returns a dialer to srv that fails while `cut` is true.
func DialUnless(cut *atomic.Bool, srv *zktest.Server) zk.Dialer {
	return func(network, addr string, timeout time.Duration) (net.Conn, error) {
		if cut.Load() {
			return nil, errors.New("the network is down")
		}
		return srv.Dial(network, addr, timeout)
	}
}

// SetACL sets the ACL of a znode.
func SetACL(t testing.TB, srv *zktest.Server, path string, acl []zk.ACL) {
	t.Helper()
	_, err := Plain(t, srv).SetACL(path, acl, -1)
	Must(t, err)
}

// Children returns the sorted children of a znode, through a plain client of go-zookeeper. If the
// znode does not exist, it returns none.
func Children(t testing.TB, c *zk.Conn, path string) []string {
	t.Helper()
	names, _, err := c.Children(path)
	if err == zk.ErrNoNode {
		return nil
	}
	Must(t, err)
	slices.Sort(names)
	return names
}
