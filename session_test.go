package zsync_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestConnectStringIsSplitAndCheckedAtOnce(t *testing.T) {
	for in, want := range map[string]struct {
		hosts  []string
		chroot string
	}{
		"zk1":                             {[]string{"zk1:2181"}, ""},
		"zk1:2182,zk2 , zk3:1/":           {[]string{"zk1:2182", "zk2:2181", "zk3:1"}, ""},
		"10.0.0.1,[::1]:7,::1,[fe80::2]":  {[]string{"10.0.0.1:2181", "[::1]:7", "[::1]:2181", "[fe80::2]:2181"}, ""},
		"zk1:2181,zk2:2181/optional/root": {[]string{"zk1:2181", "zk2:2181"}, "/optional/root"},
	} {
		hosts, chroot, err := zsync.ParseServers(in)
		if err != nil || !slices.Equal(hosts, want.hosts) || chroot != want.chroot {
			t.Errorf("ParseServers(%q) = %q, %q, %v; want %q, %q", in, hosts, chroot, err, want.hosts, want.chroot)
		}
	}
	hosts, _, err := zsync.ParseServers("[fe80::1%eth0]:2182,fe80::2%1")
	if want := []string{"[fe80::1%eth0]:2182", "[fe80::2%1]:2181"}; err != nil || !slices.Equal(hosts, want) {
		t.Errorf("addresses with zones give %q, %v; want %q", hosts, err, want)
	}
	for _, in := range []string{
		"", ",", "a,", "a,,b", ":2181", "a:", "a:b", "a:0", "a:65536", "a:-1", "[::1", "::1]:2", "a:1:2", "[]", "[ ]", "a b:1", "a]", "[x:y]:1",
		"a/b/", "a//b", "a/..", "a:1/app,b:1/app", "a/b,c", "a/" + strings.Repeat("x", znodes.MaxPath), "/chroot",
	} {
		_, err := zsync.Connect(t.Context(), in)
		if !errors.Is(err, zsync.ErrInvalid) {
			t.Errorf("Connect to %.40q: %v, want ErrInvalid", in, err)
		}
	}
}

func FuzzConnectString(f *testing.F) {
	f.Add("zk1:2181,zk2:2181/chroot")
	f.Add("[::1]:2181,::1,a")
	f.Add("[fe80::1%eth0]:2181,fe80::2%1")
	f.Add("0000]")
	f.Add("[[::1]]")
	f.Add("[]")
	f.Add("[ ]")
	f.Add("")
	f.Fuzz(func(t *testing.T, in string) {
		hosts, chroot, err := zsync.ParseServers(in)
		if err != nil {
			return
		}
		again, root, err := zsync.ParseServers(strings.Join(hosts, ",") + chroot)
		if err != nil || !slices.Equal(again, hosts) || root != chroot {
			t.Errorf("%q gives %q and %q, and those give %q, %q, %v", in, hosts, chroot, again, root, err)
		}
		for _, h := range hosts {
			if _, _, err := net.SplitHostPort(h); err != nil {
				t.Errorf("%q gives the server %q: %v", in, h, err)
			}
		}
	})
}

func TestConnectRefusesBadOptionsAtOnce(t *testing.T) {
	for name, o := range map[string]zsync.Option{
		"nil":                nil,
		"no TLS":             zsync.WithTLS(nil),
		"no timeout":         zsync.WithSessionTimeout(0),
		"a negative timeout": zsync.WithSessionTimeout(-time.Second),
		"a long timeout":     zsync.WithSessionTimeout(1 << 62),
		"no ACL":             zsync.WithACL(nil),
		"no mechanism":       zsync.WithSASL(nil),
		"no scheme":          zsync.WithAuth("", []byte("x")),
		"long credentials":   zsync.WithAuth("digest", make([]byte, 1<<20)),
		"a long owner":       zsync.WithOwner(strings.Repeat("x", 5000)),
		"no backoff":         zsync.WithRetry(zsync.Backoff{}),
		"a shrinking one":    zsync.WithRetry(zsync.Backoff{Min: 1, Max: 1, Factor: 0.5}),
		"too much jitter":    zsync.WithRetry(zsync.Backoff{Min: 1, Max: 1, Jitter: 2}),
	} {
		if _, err := zsync.Connect(t.Context(), "127.0.0.1:1", o); !errors.Is(err, zsync.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := zsync.Connect(ctx, "127.0.0.1:1")
	wantErr(t, err, context.Canceled)
}

func TestABackoffIsRefusedInTheNameOfItsOption(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for _, b := range []zsync.Backoff{{}, {Min: time.Second}, {Min: 1, Max: 1, Factor: 0.5}, {Min: 1, Max: 1, Jitter: 2}} {
			_, retry := zsync.Connect(t.Context(), "127.0.0.1:1", zsync.WithRetry(b))
			_, retries := zsync.NewSchedule(s, "/s", zsync.WithRetries(3, b)).Last(t.Context())
			for name, err := range map[string]error{
				"WithRetry:": retry, "WithRetries:": retries, "WithRetryBackoff:": zsync.NewQueue[int](s, "/q", zsync.WithRetryBackoff(b)).Err(),
			} {
				if !errors.Is(err, zsync.ErrInvalid) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s %+v: %v", name, b, err)
				}
			}
		}
	})
}

func TestAnObserverThatIsNilObservesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		for _, o := range []zsync.Observer{nil, zsync.ObserverFunc(nil)} {
			must(t, open(t, srv, zsync.WithObserver(o)).Close())
		}
	})
}

// tlsFront accepts TLS connections for a server that knows none, and passes on
// what they carry. It returns its address, what trusts it, and what cuts all
// connections.
func tlsFront(t *testing.T, srv *zktest.Server) (addr string, trust *tls.Config, cut func()) {
	t.Helper()
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS() // for its certificate
	t.Cleanup(cert.Close)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cert.TLS)
	must(t, err)
	var mu sync.Mutex
	var conns []net.Conn
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
		conns = nil
	}
	var copying sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		cut()
		copying.Wait()
	})
	copying.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", srv.Addr())
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
				copying.Go(func() {
					io.Copy(c[0], c[1])
					c[0].Close()
					c[1].Close()
				})
			}
		}
	})
	pool := x509.NewCertPool()
	pool.AddCert(cert.Certificate())
	return ln.Addr().String(), &tls.Config{RootCAs: pool}, cut
}

// inVain tries what takes all the time that it gets, as it cannot succeed, and returns
// its error. A machine that stands still may leave it no time to find out why not: if
// the error does not have text, it gets more.
func inVain(t *testing.T, text string, f func(limit time.Duration) error) (err error) {
	t.Helper()
	for _, limit := range []time.Duration{500 * time.Millisecond, 5 * time.Second, time.Minute} {
		if err = f(limit); err == nil || strings.Contains(err.Error(), text) {
			break
		}
	}
	return err
}

func TestSessionOverTLS(t *testing.T) {
	srv := zktest.Start(t)
	addr, trust, cut := tlsFront(t, srv)
	ctx := within(t, 2*time.Minute)
	s, err := zsync.Connect(ctx, addr+"/below", zsync.WithTLS(trust), zsync.WithSessionTimeout(time.Minute))
	must(t, err)
	m := zsync.NewMutex(s, "/m")
	must(t, m.Lock(ctx))
	id := s.ID()
	for range 3 {
		cut()
		_, err := m.Contenders(ctx)
		must(t, err)
	}
	must(t, m.Unlock())
	if s.ID() != id || s.Stats().Reconnects == 0 {
		t.Errorf("session %x became %x after %d reconnects, want the same", id, s.ID(), s.Stats().Reconnects)
	}
	must(t, s.Close())

	// Each takes its time, so all at once.
	var log bytes.Buffer
	connect := func(addr, text string, opts ...zsync.Option) <-chan error {
		return async(func() error {
			return inVain(t, text, func(limit time.Duration) error {
				_, err := zsync.Connect(within(t, limit), addr, opts...)
				return err
			})
		})
	}
	untrusted := async(func() error {
		return inVain(t, "certificate", func(limit time.Duration) error {
			log.Reset()
			warns := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			_, err := zsync.Connect(within(t, limit), addr, zsync.WithTLS(&tls.Config{}), zsync.WithLogger(warns))
			return err
		})
	})
	without := connect(addr, "speaks TLS")
	with := connect(srv.Addr(), "does not speak TLS", zsync.WithTLS(trust))
	elsewhere := connect(addr, "", zsync.WithTLS(&tls.Config{RootCAs: trust.RootCAs, ServerName: "elsewhere.test"}))

	err = <-untrusted
	wantErr(t, err, context.DeadlineExceeded)
	var refused *tls.CertificateVerificationError
	if !errors.As(err, &refused) {
		t.Errorf("a server that is not trusted: %v, want the certificate's error", err)
	}
	if !strings.Contains(log.String(), "certificate") || strings.Count(log.String(), "cannot reach server") != 1 {
		t.Errorf("the refusal of a certificate is logged as %q", log.String())
	}
	err = <-without
	if wantErr(t, err, context.DeadlineExceeded); !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("a server that speaks TLS, without it: %v", err)
	}
	err = <-with
	if wantErr(t, err, context.DeadlineExceeded); !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("a server that does not speak TLS, with it: %v", err)
	}
	wantErr(t, <-elsewhere, context.DeadlineExceeded)
}

func TestAServerThatNeverAnswersTLSHoldsNobodyUp(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		var ends []net.Conn
		var mu sync.Mutex
		mute := func(string, string, time.Duration) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			a, b := net.Pipe()
			go io.Copy(io.Discard, b)
			ends = append(ends, b)
			return a, nil
		}
		start := time.Now()
		_, err := zsync.Connect(within(t, time.Second), "x:1", zsync.WithDialer(mute), zsync.WithTLS(&tls.Config{}))
		wantErr(t, err, context.DeadlineExceeded)
		if d := time.Since(start); d > 1100*time.Millisecond {
			t.Errorf("Connect took %v, want its context's second", d)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, c := range ends {
			c.Close()
		}
	})
}

// Who has abandoned a session with its connection does not wait behind himself
// until it expires; nor is anybody granted what he held before he has had his time.
func TestLossOnSuspendHoldsUpNobodyForLong(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv, zsync.WithLossOnSuspend()), open(t, srv)
		m, n := zsync.NewMutex(s, "/m"), zsync.NewMutex(other, "/m")
		must(t, m.Lock(t.Context()))
		got := async(func() error { return n.Lock(t.Context()) })
		pendingStill(t, got)
		srv.Disconnect(s.ID())
		<-m.Lost()
		told := time.Now()
		wantErr(t, m.Unlock(), zsync.ErrLost)
		must(t, <-got)
		if took := time.Since(told); took < testTimeout/10 || took > testTimeout/5 {
			t.Errorf("granted to another %v after the loss was told, want a tenth of %v", took, testTimeout)
		}
		must(t, n.Unlock())
		must(t, m.Lock(t.Context()))
		srv.Disconnect(s.ID())
		<-m.Lost()
		told = time.Now()
		wantErr(t, m.Unlock(), zsync.ErrLost)
		must(t, m.Lock(t.Context()))
		if took := time.Since(told); took < testTimeout/10 || took > testTimeout/5 {
			t.Errorf("granted to the same process %v after its loss, want a tenth of %v", took, testTimeout)
		}
		must(t, m.Unlock())
	})
}

func TestLossOnSuspendCountsADroppedConnection(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, plain := open(t, srv, zsync.WithLossOnSuspend()), open(t, srv)
		m, other := zsync.NewMutex(s, "/m"), zsync.NewMutex(plain, "/n")
		must(t, m.Lock(t.Context()))
		must(t, other.Lock(t.Context()))
		srv.Disconnect(s.ID())
		srv.Disconnect(plain.ID())
		synctest.Wait()
		if !session.IsClosed(m.Lost()) || session.IsClosed(other.Lost()) {
			t.Errorf("lost with WithLossOnSuspend: %v, without: %v", session.IsClosed(m.Lost()), session.IsClosed(other.Lost()))
		}
		wantErr(t, m.Unlock(), zsync.ErrLost)
		must(t, m.Lock(t.Context())) // in the next session
		must(t, m.Unlock())
		must(t, other.Unlock())
	})
}

func TestCredentialsAreSentFirstOnEachConnection(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var ops []zktest.Op
		srv.Intercept(func(r zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, r.Op)
			return zktest.Pass
		})
		s := open(t, srv, zsync.WithAuth("digest", []byte("a:1")), zsync.WithAuth("digest", []byte("b:2")))
		m := zsync.NewMutex(s, "/m")
		for range 3 {
			must(t, m.Lock(t.Context()))
			must(t, m.Unlock())
			srv.Disconnect(s.ID())
			time.Sleep(time.Second)
		}
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for i, op := range ops {
			if op != zktest.OpConnect || i+1 < len(ops) && ops[i+1] == zktest.OpConnect {
				continue // the last handshake of the session that had expired
			}
			n++
			if i+2 >= len(ops) || ops[i+1] != zktest.OpAuth || ops[i+2] != zktest.OpAuth {
				t.Errorf("connection %d begins with %v", n, ops[i:min(i+3, len(ops))])
			}
		}
		if n != 5 {
			t.Errorf("%d connections, want 5: %v", n, ops)
		}
	})
}

func TestCredentialsThatAreRefusedEndTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, err := zsync.Connect(within(t, time.Minute), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithAuth("kerberos", []byte("x")))
		if err == nil { // the refusal may come right behind the handshake
			defer s.Close()
			err = zsync.NewMutex(s, "/m").Lock(within(t, time.Minute))
		}
		wantErr(t, err, zk.ErrAuthFailed)
	})
}

func TestEveryZnodeHasTheACL(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		acl := zk.DigestACL(zk.PermAll, "me", "secret")
		s, err := zsync.Connect(t.Context(), srv.Addr()+"/deep/root", zsync.WithDialer(srv.Dial),
			zsync.WithACL(acl), zsync.WithAuth("digest", []byte("me:secret")))
		must(t, err)
		defer s.Close()
		m := zsync.NewMutex(s, "/a/m")
		must(t, m.Lock(t.Context()))
		_, err = m.Txn(t.Context(), &zk.CreateRequest{Path: "/a/data"})
		must(t, err)
		must(t, zsync.NewBarrier(s, "/a/b").Close(t.Context()))
		must(t, zsync.NewOnce(s, "/a/once").Do(t.Context(), func(context.Context) error { return nil }))
		synctest.Wait() // what is deleted in the background is gone
		me := plain(t, srv, "me:secret")
		var walk func(path string)
		walk = func(path string) {
			inc := live(t, s)
			if path != "/" && path != "/zookeeper" {
				got, _, err := me.GetACL(path)
				must(t, err)
				if !slices.Equal(got, acl) {
					t.Errorf("%s has the ACL %v", path, got)
				}
			}
			names, _, err := inc.Children(t.Context(), path)
			must(t, err)
			for _, name := range names {
				if name != "zookeeper" {
					walk(znodes.ChildPath(path, name))
				}
			}
		}
		walk("/")
		must(t, m.Unlock())
	})
}

func TestFailoverIsImmediateAndThenBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var dials []time.Time
		s := open(t, srv, zsync.WithRetry(zsync.Backoff{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond, Factor: 2}),
			zsync.WithDialer(func(network, addr string, timeout time.Duration) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dials = append(dials, time.Now())
				return srv.Dial(network, addr, timeout)
			}))
		time.Sleep(time.Second)
		mu.Lock()
		dials = nil
		mu.Unlock()
		down := time.Now()
		srv.Stop()
		time.Sleep(3 * time.Second)
		srv.Restart()
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(dials) < 6 || len(dials) > 70 {
			t.Fatalf("%d dials in 3 s", len(dials))
		}
		for i, at := range dials[:3] { // every server once
			if d := at.Sub(down); d > time.Millisecond {
				t.Errorf("dial %d came after %v, want it at once", i, d)
			}
		}
		if d := dials[len(dials)-1].Sub(down); d > 3200*time.Millisecond {
			t.Errorf("back %v after the servers went away for 3s", d)
		}
		if s.State() != zsync.StateConnected {
			t.Errorf("state %v", s.State())
		}
	}, zktest.WithAddrs("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"))
}

func TestStatesThatNobodyReadsDoNotHoldCloseUpAndAreNotDropped(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		states := s.States(t.Context())
		const drops = 100
		for range drops {
			srv.Disconnect(s.ID())
			time.Sleep(time.Second)
		}
		start := time.Now()
		must(t, s.Close())
		if d := time.Since(start); d > time.Second {
			t.Errorf("Close took %v", d)
		}
		var got []zsync.State
		for st := range states {
			got = append(got, st)
		}
		if len(got) != 2*drops+1 || got[len(got)-1] != zsync.StateClosed {
			t.Errorf("%d changes, the last of them %v; want %d and closed", len(got), got[len(got)-1], 2*drops+1)
		}
		for st := range s.States(t.Context()) {
			t.Errorf("a change after the end: %v", st)
		}
	})
}

func TestStatesEndWithTheirContext(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		states := s.States(ctx)
		for range 100 {
			srv.Disconnect(s.ID())
			time.Sleep(time.Second)
		}
		cancel()
		synctest.Wait()
		for range states { // what the buffer held
		}
	})
}

func TestStatsCountWhatThereIs(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		a, b := open(t, srv), open(t, srv)
		m, n := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		must(t, m.Lock(t.Context()))
		got := async(func() error { return n.Lock(t.Context()) })
		synctest.Wait()
		if st := a.Stats(); st.Holds != 1 || st.Waiters != 0 || st.Watches != 0 {
			t.Errorf("the holder: %+v", st)
		}
		if st := b.Stats(); st.Holds != 0 || st.Waiters != 1 || st.Watches != 2 || st.Requests != 4 {
			t.Errorf("the waiter: %+v", st)
		}
		srv.Disconnect(a.ID())
		srv.Expire(b.ID())
		time.Sleep(time.Second)
		must(t, m.Unlock())
		must(t, <-got)
		if st := a.Stats(); st.Holds != 0 || st.Reconnects != 1 || st.Expiries != 0 {
			t.Errorf("who was disconnected: %+v", st)
		}
		if st := b.Stats(); st.Holds != 1 || st.Waiters != 0 || st.Expiries != 1 {
			t.Errorf("who was expired: %+v", st)
		}
		srv.Expire(b.ID())
		time.Sleep(time.Second)
		if st := b.Stats(); st.Holds != 0 {
			t.Errorf("who has lost its hold and does not know: %+v", st)
		}
		wantErr(t, n.Unlock(), zsync.ErrLost)
		must(t, b.Close())
		if st := b.Stats(); st.Holds != 0 || st.Waiters != 0 || st.Watches != 0 {
			t.Errorf("who is closed: %+v", st)
		}
	})
}

func TestObserverIsToldEverythingOnceAndMayAskTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var told []string
		var session atomic.Pointer[zsync.Session]
		a := open(t, srv, zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if s := session.Load(); s != nil { // what only reads must not deadlock
				s.Stats()
				s.State()
				s.ID()
			}
			mu.Lock()
			defer mu.Unlock()
			if e.Op != "" && e.Path != "/m" || e.Wait < 0 || (e.Err != nil) != (e.Kind == zsync.EventGaveUp || e.Kind == zsync.EventLost || e.Kind == zsync.EventExpired) {
				t.Errorf("event %+v", e)
			}
			told = append(told, strings.TrimSpace(e.Kind.String()+" "+e.Op))
		})))
		session.Store(a)
		b := open(t, srv)
		m, other := zsync.NewMutex(a, "/m"), zsync.NewMutex(b, "/m")
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
		must(t, other.Lock(t.Context()))
		wantErr(t, m.Lock(within(t, time.Second)), context.DeadlineExceeded)
		must(t, other.Unlock())
		must(t, m.Lock(t.Context()))
		srv.Disconnect(a.ID())
		time.Sleep(time.Second)
		srv.Expire(a.ID())
		time.Sleep(time.Second)
		wantErr(t, m.Unlock(), zsync.ErrLost)
		ok, err := m.TryLock(t.Context())
		if must(t, err); !ok {
			t.Fatal("not locked")
		}
		must(t, m.Unlock())
		must(t, a.Close())
		want := []string{
			"connected", "acquired lock", "released lock", "gave up lock", "acquired lock",
			"suspended", "reconnected", "suspended", "expired", "connected",
			"acquired lock", "released lock",
		}
		mu.Lock()
		defer mu.Unlock()
		// The hold hears of the loss beside the session: once it is suspended, and before the next hold.
		i := slices.Index(told, "lost lock")
		if i < 8 || i > 10 {
			t.Fatalf("told %q, want the loss behind what leads to it", told)
		}
		if told = slices.Delete(told, i, i+1); !slices.Equal(told, want) {
			t.Errorf("told %q\nwant %q", told, want)
		}
	})
}

func TestSyncLockerPanicsWithTheError(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		panicsWith := func(want error, f func()) {
			t.Helper()
			defer func() {
				t.Helper()
				if err, _ := recover().(error); !errors.Is(err, want) {
					t.Errorf("panicked with %v, want %v", err, want)
				}
			}()
			f()
		}
		l := zsync.SyncLocker(t.Context(), zsync.NewMutex(s, "/m"))
		l.Lock()
		pass := async(func() error { zsync.SyncLocker(t.Context(), zsync.NewMutex(s, "/m")).Lock(); return nil })
		pendingStill(t, pass)
		l.Unlock()
		must(t, <-pass)
		srv.Expire(s.ID()) // whose Mutex is gone with it
		time.Sleep(time.Second)
		panicsWith(zsync.ErrNotLocked, l.Unlock)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		panicsWith(context.Canceled, zsync.SyncLocker(ctx, zsync.NewMutex(s, "/m")).Lock)
		panicsWith(zsync.ErrInvalid, zsync.SyncLocker(t.Context(), zsync.NewMutex(s, "bad")).Lock)
		l.Lock()
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		panicsWith(zsync.ErrLost, l.Unlock)
	})
}

func TestAClosedSessionSaysSoUnlessTheContextHasEnded(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		e := zsync.NewElection(s, "/e")
		must(t, m.Lock(t.Context()))
		nothing := func(context.Context) error { return nil }
		once, running, deaf := zsync.NewOnce(s, "/o"), make(chan struct{}), make(chan struct{})
		ran := async(func() error {
			return once.Do(t.Context(), func(context.Context) error { close(running); <-deaf; return nil })
		})
		<-running
		waits := []<-chan error{
			async(func() error { return zsync.NewMutex(s, "/m").Lock(t.Context()) }),
			async(func() error { return m.Lock(t.Context()) }), // behind the one of its own process
			async(func() error { return once.Do(t.Context(), nothing) }),
			async(func() error { return zsync.NewMutex(s, "/m", zsync.WithHandoffs(0)).Lock(t.Context()) }),
			async(func() error {
				return e.Run(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
			}),
		}
		synctest.Wait()
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMulti {
				return zktest.Hang
			}
			return zktest.Pass
		})
		waits = append(waits, async(func() error { _, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/x"}); return err }))
		synctest.Wait()
		must(t, s.Close())
		for i, w := range waits {
			if err := <-w; !errors.Is(err, zsync.ErrClosed) {
				t.Errorf("call %d: %v, want ErrClosed", i, err)
			}
		}
		close(deaf)
		wantErr(t, <-ran, zsync.ErrLost, zsync.ErrClosed)
		wantErr(t, m.Unlock(), zsync.ErrLost, zsync.ErrClosed)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for i, f := range []func(context.Context) error{
			m.Lock, zsync.NewBarrier(s, "/b").Wait, zsync.NewBarrier(s, "/b").Open, e.Campaign,
			zsync.NewOnce(s, "/o").Reset,
			func(ctx context.Context) error { _, err := m.TryLock(ctx); return err },
			func(ctx context.Context) error { _, err := m.Contenders(ctx); return err },
			func(ctx context.Context) error { _, err := e.Leader(ctx); return err },
			func(ctx context.Context) error { _, err := s.Txn(ctx, &zk.DeleteRequest{Path: "/x"}); return err },
			func(ctx context.Context) error {
				return m.Do(ctx, func(context.Context) error { return errors.New("ran") })
			},
		} {
			if err := f(t.Context()); !errors.Is(err, zsync.ErrClosed) {
				t.Errorf("method %d: %v, want ErrClosed", i, err)
			}
			if err := f(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("method %d with an ended context: %v", i, err)
			}
		}
	})
}

func TestDoRunsNothingInsideAHoldThatIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, rw := zsync.NewMutex(s, "/m"), zsync.NewRWMutex(s, "/rw")
		f := func(context.Context) error { t.Error("ran without the lock"); return nil }
		err := m.Do(t.Context(), func(ctx context.Context) error {
			return rw.Do(ctx, func(ctx context.Context) error {
				srv.Expire(s.ID())
				<-ctx.Done()
				wantErr(t, m.Do(ctx, f), zsync.ErrLost)
				wantErr(t, rw.Do(ctx, f), zsync.ErrLost)
				wantErr(t, rw.RDo(ctx, f), zsync.ErrLost)
				return nil
			})
		})
		wantErr(t, err, zsync.ErrLost)
	})
}

func TestTxnWhoseContextEndsLeavesNoReceipt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := znodes.Create(t.Context(), live(t, s), "/dir", nil)
		must(t, err)
		for i, hurt := range []func(){
			func() { // applied, and then nobody answers until the context has ended
				srv.Intercept(first(zktest.DropReply, op(zktest.OpMulti)))
				go func() { time.Sleep(time.Millisecond); srv.Stop(); time.Sleep(2 * time.Second); srv.Restart() }()
			},
			func() { srv.Intercept(first(zktest.Delay(1500*time.Millisecond), op(zktest.OpMulti))) },
			func() { srv.Intercept(first(zktest.HangReply, op(zktest.OpMulti))) },
		} {
			srv.SetLatency(time.Millisecond)
			hurt()
			_, err := s.Txn(within(t, time.Second), &zk.CreateRequest{Path: fmt.Sprintf("/dir/%d", i)})
			wantErr(t, err, context.DeadlineExceeded)
			time.Sleep(8 * time.Second)
			srv.Intercept(nil)
			for _, name := range childrenOf(t, s, "/dir") {
				if strings.HasPrefix(name, "_c_") {
					t.Errorf("case %d: the receipt %s is left", i, name)
				}
			}
		}
	})
}

// Exists is refused by servers that ask for the permission to read. Nobody knows then what
// became of a transaction without a reply, and its receipt is of no use to the next.
func TestATxnWhoseReceiptMayNotBeReadIsOfUnknownOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for i := range 3 { // with a new receipt, and with one that was used before
			path := fmt.Sprintf("/%d", i)
			lost := first(zktest.DropReply, op(zktest.OpMulti))
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpExists && strings.HasSuffix(r.Path, "-txn") {
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return lost(r)
			})
			_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: path})
			if err == nil || !strings.Contains(err.Error(), "it may have been applied") || errors.Is(err, zk.ErrNoAuth) {
				t.Errorf("%v; want that it may have been applied, and no refusal", err)
			}
			srv.Intercept(nil)
			for range 20 {
				_, err = s.Txn(t.Context(), &zk.SetDataRequest{Path: path, Version: -1})
				must(t, err)
			}
		}
		time.Sleep(10 * time.Second)
		if names := childrenOf(t, s, "/"); len(names) != 5 { // 3, a page and the servers' own
			t.Errorf("left: %q", names)
		}
	})
}

func TestTheLargestTxnPassesWithItsReceiptAndProof(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		path := "/" + strings.Repeat("m", 1000)
		m := zsync.NewMutex(s, path)
		must(t, m.Lock(t.Context()))
		// Whatever is not refused must not cost the connection.
		largest := 0
		for size := znodes.MaxPacket - 8000; size < znodes.MaxPacket; size += 50 {
			_, err := m.Txn(within(t, time.Second), &zk.SetDataRequest{Path: path, Data: make([]byte, size), Version: -1})
			if errors.Is(err, zsync.ErrTooLarge) {
				break
			}
			must(t, err)
			largest = size
		}
		if n := s.Stats().Reconnects; n != 0 || largest == 0 {
			t.Errorf("%d reconnects; the largest that passed has %d bytes", n, largest)
		}
		must(t, m.Unlock())
	})
}

// resolving answers all questions for addresses with the one that is stored,
// as long as the test runs.
func resolving(t *testing.T, addr *atomic.Value) {
	old := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = old })
	answer := func(c net.Conn) {
		defer c.Close()
		for {
			var size [2]byte // DNS over TCP
			if _, err := io.ReadFull(c, size[:]); err != nil {
				return
			}
			q := make([]byte, int(size[0])<<8|int(size[1]))
			if _, err := io.ReadFull(c, q); err != nil {
				return
			}
			end := 12 + strings.IndexByte(string(q[12:]), 0) + 5
			a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
			if q[end-3] == 1 { // an A record is wanted
				a[7] = 1
				a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				a = append(a, net.ParseIP(addr.Load().(string)).To4()...)
			}
			c.Write(append([]byte{byte(len(a) >> 8), byte(len(a))}, a...))
		}
	}
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		go answer(b)
		return a, nil
	}}
}

func TestANameIsLookedUpAgainForEachConnection(t *testing.T) {
	var addr atomic.Value
	addr.Store("127.0.0.1")
	resolving(t, &addr)
	one := zktest.Start(t, harness.Patient)
	_, port, err := net.SplitHostPort(one.Addr())
	must(t, err)
	two := zktest.Start(t, harness.Patient, zktest.WithAddr("127.0.0.2:"+port))
	// A handshake of which the client hears too late leaves a session behind.
	s, err := zsync.Connect(within(t, 2*time.Minute), "zk.example.test:"+port, zsync.WithSessionTimeout(time.Minute))
	must(t, err)
	defer s.Close()
	if n := len(one.Sessions()); n != 1 {
		t.Fatalf("%d sessions on the first server", n)
	}
	states := s.States(t.Context())
	addr.Store("127.0.0.2") // the server has moved
	one.Stop()
	for st := range states {
		if st == zsync.StateExpired { // it is another ensemble, to be exact
			break
		}
	}
	must(t, zsync.NewBarrier(s, "/b").Wait(within(t, 2*time.Minute)))
	if n := len(two.Sessions()); n != 1 {
		t.Errorf("%d sessions on the second server", n)
	}
}

// What a caller is told of a Txn is what it would be told without a receipt.
func TestReceiptOfATxnIsNotInTheWay(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx := t.Context()
		_, err := s.Txn(ctx, &zk.CreateRequest{Path: "/d"}, &zk.CreateRequest{Path: "/d/x"})
		must(t, err)
		_, err = s.Txn(ctx, &zk.DeleteRequest{Path: "/d/x", Version: -1}, &zk.DeleteRequest{Path: "/d", Version: -1})
		must(t, err)

		rs, err := s.Txn(ctx, &zk.CreateRequest{Path: "/e"}, &zk.CreateRequest{Path: "/no/such"})
		wantErr(t, err, zk.ErrNoNode)
		if len(rs) != 2 || !errors.Is(rs[1].Error, zk.ErrNoNode) {
			t.Errorf("responses %+v; want NoNode for the second", rs)
		}

		// Where nothing may be created there is no receipt.
		_, err = s.Txn(ctx, &zk.CreateRequest{Path: "/ro"}, &zk.CreateRequest{Path: "/ro/x"})
		must(t, err)
		setACL(t, srv, "/ro", zk.WorldACL(zk.PermRead))
		_, err = s.Txn(ctx, &zk.SetDataRequest{Path: "/ro/x", Data: []byte("1"), Version: -1})
		must(t, err)

		_, err = s.Txn(ctx, &zk.CreateRequest{Path: "/big", Data: make([]byte, 700_000), Acl: slices.Repeat(zk.DigestACL(zk.PermAll, "u", "p"), 20_000)})
		wantErr(t, err, zsync.ErrTooLarge)
		if n := s.Stats().Reconnects; n != 0 {
			t.Errorf("%d reconnects", n)
		}
	})
}

func TestTxnMakesAMissingChroot(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, err := zsync.Connect(t.Context(), srv.Addr()+"/deep/er", zsync.WithDialer(srv.Dial))
		must(t, err)
		defer s.Close()
		_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: "/x"})
		must(t, err)
		_, err = s.Txn(t.Context(), &zk.CreateRequest{Path: "/y/z"})
		wantErr(t, err, zk.ErrNoNode)
	})
}

func TestTxnWhoseReplyIsLostTellsWhatItMade(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/d"}, &zk.CreateRequest{Path: "/d/s-", Flags: zk.FlagSequence})
		must(t, err)
		srv.Intercept(first(zktest.DropReply, op(zktest.OpMulti)))
		rs, err := s.Txn(t.Context(),
			&zk.CreateRequest{Path: "/d/s-", Flags: zk.FlagSequence},
			&zk.SetDataRequest{Path: "/d", Data: []byte("1"), Version: -1},
			&zk.CreateRequest{Path: "/d/s-", Flags: zk.FlagSequence})
		must(t, err)
		time.Sleep(time.Second) // the receipt goes
		names := childrenOf(t, s, "/d")
		slices.Sort(names)
		if len(names) != 3 || rs[0].String != "/d/"+names[1] || rs[2].String != "/d/"+names[2] {
			t.Errorf("made %q and %q; there are %v", rs[0].String, rs[2].String, names)
		}
		if rs[1].Stat == nil || rs[1].Stat.Version != 1 {
			t.Errorf("Stat %+v", rs[1].Stat)
		}
	})
}

func TestConnectFailsWithCredentialsThatAreRefused(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		servers := inside.Manager(connect()).Hosts
		for range 20 {
			s, err := zsync.Connect(within(t, 2*time.Minute), strings.Join(servers, ","), zsync.WithAuth("nosuch", []byte("x")))
			if err == nil {
				s.Close()
			}
			wantErr(t, err, zk.ErrAuthFailed)
		}
		s := connect(zsync.WithAuth("digest", []byte("u:p")), zsync.WithAuth("digest", []byte("v:q")))
		must(t, zsync.NewMutex(s, "/m").Lock(within(t, 2*time.Minute)))
	})
}

func TestConnectTellsThatAServerIsNone(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 64)) // what is not read would have the connection reset
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			c.Close()
		}
	})
	defer served.Wait()
	defer l.Close()
	err = inVain(t, "handshake", func(limit time.Duration) error {
		_, err := zsync.Connect(within(t, limit), l.Addr().String())
		return err
	})
	wantErr(t, err, context.DeadlineExceeded)
	if !strings.Contains(err.Error(), "handshake") {
		t.Errorf("%v; want what is wrong with the server", err)
	}
}

func TestClosedSessionHasNoWatches(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, other := open(t, srv), open(t, srv)
		must(t, zsync.NewMutex(other, "/m").Lock(t.Context()))
		got := async(func() error { return zsync.NewMutex(s, "/m").Lock(t.Context()) })
		pendingStill(t, got)
		if s.Stats().Watches == 0 {
			t.Error("a waiter has no watch")
		}
		must(t, s.Close())
		wantErr(t, <-got, zsync.ErrClosed)
		if n := s.Stats().Watches; n != 0 {
			t.Errorf("%d watches", n)
		}
	})
}

func TestWhatIsLostIsNotCountedAsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m, p, wg := zsync.NewMutex(s, "/m"), zsync.NewSemaphore(s, "/p", 5), zsync.NewWaitGroup(s, "/w")
		must(t, m.Lock(t.Context()))
		must(t, p.Acquire(t.Context(), 3))
		must(t, wg.Enter(t.Context(), 1))
		if n := s.Stats().Holds; n != 5 {
			t.Errorf("%d holds, want 5", n)
		}
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		if n := s.Stats().Holds; n != 0 {
			t.Errorf("%d holds after the loss", n)
		}
		wantErr(t, m.Unlock(), zsync.ErrLost)
		wantErr(t, p.Release(3), zsync.ErrLost)
		wantErr(t, wg.Leave(t.Context()), zsync.ErrLost)
		if n := s.Stats().Holds; n != 0 {
			t.Errorf("%d holds in the end", n)
		}
	})
}

// Who knows sync declares a Mutex and uses it. That must be an error that says
// what to do.
func TestZeroValuesSayWhatToDo(t *testing.T) {
	ctx := t.Context()
	nop := func(context.Context) error { return nil }
	var (
		m  zsync.Mutex
		rw zsync.RWMutex
		wg zsync.WaitGroup
		o  zsync.Once
		c  zsync.Cond
		e  zsync.Election
		b  zsync.Barrier
		p  zsync.Semaphore
		v  zsync.Value[int]
		q  zsync.Queue[int]
		me zsync.Membership[int]
		s  zsync.Session
	)
	_, txn := s.Txn(ctx)
	_, _, get := s.Get(ctx, "/x")
	_, _, children := s.Children(ctx, "/")
	_, tryLock := m.TryLock(ctx)
	_, token := m.Token(ctx)
	_, contenders := m.Contenders(ctx)
	_, tryR := rw.TryRLock(ctx)
	_, count := wg.Count(ctx)
	_, done := o.Done(ctx)
	_, leader := e.Leader(ctx)
	_, tryAcquire := p.TryAcquire(ctx, 1)
	_, _, load := v.Load(ctx)
	_, update := v.Update(ctx, increment)
	_, _, tryRecv := q.TryRecv(ctx)
	_, length := q.Len(ctx)
	_, _, peek := q.Peek(ctx)
	_, clear := q.Clear(ctx)
	in, sent := q.In(ctx)
	close(in)
	for i, err := range []error{
		m.Lock(ctx), m.Unlock(), m.Do(ctx, nop), tryLock, token, contenders,
		rw.Lock(ctx), rw.RLock(ctx), rw.Unlock(), rw.RUnlock(), rw.RDo(ctx, nop), rw.Downgrade(ctx), tryR,
		wg.Add(ctx, 1), wg.Done(), wg.Wait(ctx), wg.Go(ctx, func() {}), wg.Enter(ctx, 2), wg.Leave(ctx), count,
		o.Do(ctx, nop), o.Reset(ctx), done,
		c.Wait(ctx), c.Signal(ctx), c.Broadcast(ctx),
		e.Campaign(ctx), e.Resign(), e.Run(ctx, nop), leader,
		b.Close(ctx), b.Open(ctx), b.Wait(ctx),
		p.Acquire(ctx, 1), p.Release(1), tryAcquire,
		v.Store(ctx, 1), load, update,
		q.Send(ctx, 1), tryRecv, length, peek, clear, <-sent,
	} {
		if !errors.Is(err, zsync.ErrInvalid) || !strings.Contains(err.Error(), "New") {
			t.Errorf("%d: %v", i, err)
		}
	}
	for i, err := range []error{
		me.Set(ctx, 1), me.Leave(),
		s.Close(), txn, get, children, zsync.NewMutex(&s, "/m").Lock(ctx), zsync.NewQueue[int](&s, "/q").Send(ctx, 1),
	} {
		if !errors.Is(err, zsync.ErrInvalid) || !strings.Contains(err.Error(), "Join") && !strings.Contains(err.Error(), "Connect") {
			t.Errorf("of another, %d: %v", i, err)
		}
	}
	for range zsync.NewQueue[int](&s, "/q").Recv(ctx) {
		t.Error("received something")
	}
	for _, s := range []*zsync.Session{&s, nil} {
		if s.State() != zsync.StateClosed || s.ID() != 0 || s.Timeout() != 0 || s.Margin() != 0 || s.Stats() != (zsync.Stats{}) {
			t.Errorf("a Session that Connect has not created is %v, with the id %d and %+v", s.State(), s.ID(), s.Stats())
		}
		for state := range s.States(ctx) {
			t.Errorf("it became %v", state)
		}
	}
	for i, lost := range []<-chan struct{}{m.Lost(), rw.Lost(), wg.Lost(), e.Lost(), p.Lost()} {
		if !session.IsClosed(lost) {
			t.Errorf("Lost %d is open", i)
		}
	}
}

func TestCreateThatWasRefusedLeavesNobodyTrying(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		must(t, m.Unlock())
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpCreate {
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		srv.SetLatency(100 * time.Millisecond)
		wantErr(t, m.Lock(within(t, 50*time.Millisecond)), context.DeadlineExceeded)
		time.Sleep(time.Second)
		stacks := make([]byte, 1<<20)
		if n := strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "inBackground"); n > 0 {
			t.Errorf("%d goroutines delete what was never made", n)
		}
	})
}

func TestSuccessOfATxnIsNotForgottenWhenItsContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		ctx, cancel := context.WithCancel(t.Context())
		multis := 0
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpMulti && multis == 0:
				multis++
				return zktest.DropRequest
			case r.Op == zktest.OpExists:
				cancel()
			}
			return zktest.Pass
		})
		_, err := s.Txn(ctx, &zk.CreateRequest{Path: "/a"})
		must(t, err)
	})
}

// A connection that breaks before the credentials are answered has given no
// session to anyone.
func TestSessionOfAConnectionThatBreaksAtOnceDoesNotCount(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		srv.Intercept(first(zktest.DropRequest, op(zktest.OpAuth)))
		s := open(t, srv, zsync.WithAuth("digest", []byte("u:p")))
		if st := s.Stats(); st.Expiries != 0 {
			t.Errorf("%d sessions have expired", st.Expiries)
		}
	})
}

// The same of a real server: it ends a session by its id and password, and nobody
// waits until it expires.
func TestASessionIsEndedOverAnotherConnectionByItsServers(t *testing.T) {
	t.Parallel()
	anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
		var mu sync.Mutex
		var newest net.Conn
		// The servers would end it themselves after that long: a machine may stand still for
		// much of it before the other is granted what they end earlier.
		const timeout = 30 * time.Second
		s := connect(zsync.WithLossOnSuspend(), zsync.WithSessionTimeout(timeout), zsync.WithAuth("digest", []byte("u:p")),
			zsync.WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
				c, err := net.DialTimeout(network, addr, limit)
				mu.Lock()
				defer mu.Unlock()
				newest = c
				return c, err
			}))
		other := connect()
		m, n := zsync.NewMutex(s, "/m"), zsync.NewMutex(other, "/m")
		must(t, m.Lock(within(t, time.Minute)))
		got := async(func() error { return n.Lock(within(t, time.Minute)) })
		told := time.Now() // or later: at least a tenth of the timeout passes from then
		mu.Lock()
		newest.Close()
		mu.Unlock()
		<-m.Lost()
		wantErr(t, m.Unlock(), zsync.ErrLost)
		must(t, <-got)
		if took := time.Since(told); took < timeout/12 || took > timeout*2/3 {
			t.Errorf("granted to another %v after the loss was told, want %v, and not %v", took, timeout/10, timeout)
		}
		must(t, n.Unlock())
	})
}

func TestAPrimitiveHasThePathThatItWasMadeWith(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		m := zsync.NewMutex(s, "/p")
		for _, x := range []interface{ Path() string }{
			m, zsync.NewRWMutex(s, "/p"), zsync.NewRWMutex(s, "/p").RLocker().(interface{ Path() string }), zsync.NewSemaphore(s, "/p", 2),
			zsync.NewWaitGroup(s, "/p"), zsync.NewOnce(s, "/p"), zsync.NewCond(s, "/p", m), zsync.NewBarrier(s, "/p"),
			zsync.NewElection(s, "/p"), zsync.NewSchedule(s, "/p"), zsync.NewPartition(s, "/p"),
			zsync.NewGroup[int](s, "/p"), zsync.NewFlight[int](s, "/p", time.Minute), zsync.NewQueue[int](s, "/p"),
			zsync.NewMap[int](s, "/p"), zsync.NewValue[int](s, "/p"), zsync.NewInt64(s, "/p"),
		} {
			if got := x.Path(); got != "/p" {
				t.Errorf("%T: %q", x, got)
			}
		}
	})
}

// The kinds and states that are public are counted as the session counts its
// own, as one is made of the other by conversion.
func TestPublicKindsStatesAndReasonsAreThoseOfTheSession(t *testing.T) {
	for public, own := range map[zsync.EventKind]session.ReportKind{
		zsync.EventAcquired: session.EventAcquired, zsync.EventGaveUp: session.EventGaveUp, zsync.EventReleased: session.EventReleased, zsync.EventLost: session.EventLost, zsync.EventDead: session.EventDead,
		zsync.EventConnected: session.EventConnected, zsync.EventSuspended: session.EventSuspended, zsync.EventReconnected: session.EventReconnected, zsync.EventExpired: session.EventExpired,
		zsync.EventStarted: session.EventStarted, zsync.EventEnded: session.EventEnded, zsync.EventJoined: session.EventJoined, zsync.EventLeft: session.EventLeft,
	} {
		if zsync.EventKind(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[zsync.LossReason]session.LossCause{
		zsync.LossExpired: session.LossExpired, zsync.LossCutOff: session.LossCutOff, zsync.LossPaused: session.LossPaused, zsync.LossReplaced: session.LossReplaced,
		zsync.LossDeleted: session.LossDeleted, zsync.LossClosed: session.LossClosed, zsync.LossSuspended: session.LossSuspended, zsync.LossGivenUp: session.LossGivenUp,
	} {
		if zsync.LossReason(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
	for public, own := range map[zsync.State]session.ConnState{
		zsync.StateConnecting: session.StateConnecting, zsync.StateConnected: session.StateConnected, zsync.StateSuspended: session.StateSuspended,
		zsync.StateExpired: session.StateExpired, zsync.StateClosed: session.StateClosed,
	} {
		if zsync.State(own) != public {
			t.Errorf("%v is %d, in the session %d", public, public, own)
		}
	}
}
