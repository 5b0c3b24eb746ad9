package cases

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

var (
	saslUsers = map[string]string{"bob": "secret", "eve": "evil"}
	asBob     = zsync.WithSASL(zsync.SASLDigestMD5("bob", "secret"))
	three     = zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
)

// A lockedText collects a log.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// saslServer is setUp with a server that demands SASL.
func saslServer(t *testing.T, f func(t *testing.T, srv *zktest.Server), opts ...zktest.Option) {
	setUp(t, f, append(opts, zktest.WithSASL(saslUsers), zktest.WithRequiredAuth("sasl"))...)
}

func TestSASLAuthenticatesEachConnectionBeforeAnythingElseIsSent(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		ops := map[string][]zktest.Op{} // by connection
		srv.Intercept(func(r zktest.Request) zktest.Action {
			mu.Lock()
			defer mu.Unlock()
			ops[r.RemoteAddr] = append(ops[r.RemoteAddr], r.Op)
			return zktest.Pass
		})
		s := suite.Open(t, srv, asBob, zsync.WithAuth("digest", []byte("a:1")), zsync.WithACL(zk.AuthACL(zk.PermAll)))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		for range 3 {
			srv.Disconnect(s.ID())
			time.Sleep(time.Second)
			_, err := zsync.NewInt64(s, "/n").Add(t.Context(), 1)
			harness.Must(t, err)
		}
		if harness.Closed(m.Lost()) {
			t.Error("the lock was lost")
		}
		srv.Expire(s.ID())
		time.Sleep(time.Second)
		harness.WantErr(t, m.Unlock(), zsync.ErrLost)
		harness.Must(t, m.Lock(t.Context()))
		mu.Lock()
		defer mu.Unlock()
		want := []zktest.Op{zktest.OpConnect, zktest.OpSASL, zktest.OpSASL, zktest.OpAuth}
		for addr, ops := range ops {
			if len(ops) > 1 && !slices.Equal(ops[:min(4, len(ops))], want) { // alone: the handshake of a session that has expired
				t.Errorf("%s: %v", addr, ops)
			}
		}
		if len(ops) < 5 {
			t.Errorf("%d connections", len(ops))
		}
	})
}

func TestSASLWorksInAnEnsembleWhoseLeaderChanges(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		e := zktest.StartEnsemble(t, 3, zktest.WithTick(time.Second), zktest.WithSASL(saslUsers), zktest.WithRequiredAuth("sasl"))
		s, err := zsync.Connect(harness.Within(t, time.Minute), strings.Join(e.Addrs(), ","), zsync.WithDialer(e.Dial), asBob, zsync.WithSessionTimeout(30*time.Second))
		harness.Must(t, err)
		defer s.Close()
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		for range 3 {
			i := e.MemberOf(s.ID())
			e.Server(i).Stop()
			time.Sleep(10 * time.Second)
			e.Server(i).Restart()
			time.Sleep(10 * time.Second)
		}
		if harness.Closed(m.Lost()) {
			t.Error("the lock was lost")
		}
		harness.Must(t, m.Unlock())
	})
}

// Another attempt would fail, too: each server is asked once.
func TestConnectFailsAtOnceAndNamesTheMechanismIfThePasswordIsWrong(t *testing.T) {
	for name, opts := range map[string][]zktest.Option{
		"required": {zktest.WithSASL(saslUsers), zktest.WithRequiredAuth("sasl"), three},
		"optional": {zktest.WithSASL(saslUsers), three},
		"no SASL":  {three},
	} {
		for user, password := range map[string]string{"bob": "wrong", "nobody": "secret", "": ""} {
			t.Run(name+" "+user, func(t *testing.T) {
				setUp(t, func(t *testing.T, srv *zktest.Server) {
					start := time.Now()
					var err error
					n := handshakes(srv, func() {
						_, err = zsync.Connect(harness.Within(t, time.Hour), strings.Join(srv.Addrs(), ","), zsync.WithDialer(srv.Dial), zsync.WithSASL(zsync.SASLDigestMD5(user, password)))
					})
					harness.WantErr(t, err, zk.ErrAuthFailed)
					want := "SASL DIGEST-MD5: the server refuses the credentials"
					if name == "no SASL" {
						want = "SASL DIGEST-MD5: the server sends no challenge: it is not set up for SASL"
					}
					if took := time.Since(start); !strings.Contains(err.Error(), want) || took > time.Second || n != 3 {
						t.Errorf("%v, after %v and %d connections", err, took, n)
					}
				}, opts...)
			})
		}
	}
}

func TestEveryCallFailsAtOnceOnceTheCredentialsAreRefused(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		var log lockedText
		s := suite.Open(t, srv, asBob, zsync.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		srv.SetSASLUsers(map[string]string{"bob": "new"})
		n := handshakes(srv, func() {
			srv.Disconnect(s.ID())
			<-m.Lost()
			harness.WantErr(t, m.Unlock(), zsync.ErrLost)
			for name, call := range everyCall {
				if err := call(t.Context(), s); !errors.Is(err, zk.ErrAuthFailed) || !strings.Contains(err.Error(), "DIGEST-MD5") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
		if n > 3 {
			t.Errorf("%d connections", n)
		}
		if text := log.String(); strings.Count(text, "credentials are refused") != 1 || !strings.Contains(text, "DIGEST-MD5") {
			t.Errorf("the log: %s", text)
		}
	}, three)
}

func TestASessionGoesOnIfOneOfTheServersRefusesItsSASL(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Addr == "127.0.0.1:2" && r.Op == zktest.OpSASL {
				return zktest.Refuse(zktest.CodeAuthFailed)
			}
			return zktest.Pass
		})
		s := suite.Open(t, srv, asBob)
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		for range 5 {
			srv.Disconnect(s.ID())
			time.Sleep(time.Second)
			_, err := zsync.NewInt64(s, "/n").Add(t.Context(), 1)
			harness.Must(t, err)
		}
		if harness.Closed(m.Lost()) {
			t.Error("the hold was lost")
		}
	}, three)
}

func TestALockSurvivesFaultsInTheMiddleOfTheExchange(t *testing.T) {
	for name, fault := range map[string]zktest.Action{
		"a request lost": zktest.DropRequest, "a reply lost": zktest.DropReply, "a hung server": zktest.Hang,
		"a reply cut off": zktest.HangReply, "a slow server": zktest.Delay(time.Second),
	} {
		for step := range int64(2) {
			t.Run(name, func(t *testing.T) {
				saslServer(t, func(t *testing.T, srv *zktest.Server) {
					s := suite.Open(t, srv, asBob, zsync.WithSessionTimeout(10*time.Second))
					m := zsync.NewMutex(s, "/m")
					harness.Must(t, m.Lock(t.Context()))
					var n atomic.Int64
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if r.Op == zktest.OpSASL && n.Add(1) == 1+step {
							return fault
						}
						return zktest.Pass
					})
					srv.Disconnect(s.ID())
					time.Sleep(time.Minute)
					if harness.Closed(m.Lost()) {
						t.Error("the lock was lost")
					}
					harness.Must(t, m.Unlock())
				}, three)
			})
		}
	}
}

// A mechanism is one exchange at a time, so a hung one must not be used twice, nor keep Close.
type flaky struct {
	zsync.SASLMechanism
	start func() error
}

func (f flaky) Start(server string) ([]byte, error) {
	if err := f.start(); err != nil {
		return nil, err
	}
	return f.SASLMechanism.Start(server)
}

func TestAMechanismThatFailsForNowIsTriedAgainAndOneThatIsRefusedIsNot(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		tries := 0
		s := suite.Open(t, srv, zsync.WithSASL(flaky{zsync.SASLDigestMD5("bob", "secret"), func() error {
			if tries++; tries < 4 {
				return errors.New("no ticket yet")
			}
			return nil
		}}))
		harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))

		tries = 0
		_, err := zsync.Connect(harness.Within(t, time.Hour), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithSASL(flaky{zsync.SASLDigestMD5("bob", "secret"), func() error {
			tries++
			return zk.ErrAuthFailed
		}}))
		harness.WantErr(t, err, zk.ErrAuthFailed)
		if tries != 1 {
			t.Errorf("%d tries", tries)
		}
	})
}

func TestCloseDoesNotWaitForAMechanismThatHangs(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		hang := make(chan struct{})
		defer close(hang)
		var hangs atomic.Bool
		s := suite.Open(t, srv, zsync.WithSASL(flaky{zsync.SASLDigestMD5("bob", "secret"), func() error {
			if hangs.Load() {
				<-hang
			}
			return nil
		}}))
		hangs.Store(true)
		srv.Disconnect(s.ID())
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		s.Close()
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

func TestSessionsMayShareTheOptionWithSASL(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		for _, opt := range []zsync.Option{asBob, zsync.WithSASL(flaky{zsync.SASLDigestMD5("bob", "secret"), func() error { return nil }})} {
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), opt)
					if err != nil {
						t.Error(err)
						return
					}
					s.Close()
				})
			}
			wg.Wait()
		}
	})
}

// With the ACL of its creator, a session has to know who it is: only the servers know that for SASL and certificates.
func TestAZnodeOfAnotherUserBySASLOrCertificateIsUnprotected(t *testing.T) {
	for id, mine := range map[string]bool{"sasl:bob": true, "x509:CN=me": true, "sasl:eve": false, "x509:CN=eve": false, "sasl:CN=me": false, "world:anyone": false} {
		for _, own := range []string{"auth:", "sasl:bob"} {
			t.Run(id+" "+own, func(t *testing.T) {
				saslServer(t, func(t *testing.T, srv *zktest.Server) {
					entry := func(text string) []zk.ACL {
						scheme, id, _ := strings.Cut(text, ":")
						return []zk.ACL{{Perms: zk.PermAll, Scheme: scheme, ID: id}}
					}
					both := append(entry(id), zk.ACL{Perms: zk.PermAll, Scheme: "sasl", ID: "bob"})
					if id == "sasl:bob" {
						both = both[:1]
					}
					_, err := suite.Open(t, srv, asBob).Txn(t.Context(), &zk.CreateRequest{Path: "/p", Acl: both})
					harness.Must(t, err)
					s := suite.Open(t, srv, asBob, zsync.WithACL(entry(own)))
					before := srv.Counts().Requests["whoAmI"]
					err = zsync.NewMutex(s, "/p").Lock(t.Context())
					if want := mine && (own == "auth:" || id == own); want {
						harness.Must(t, err)
					} else {
						harness.WantErr(t, err, zsync.ErrUnprotected)
					}
					if n := srv.Counts().Requests["whoAmI"] - before; own != "auth:" && n != 0 || n > 1 {
						t.Errorf("%d times asked who it is", n)
					}
				}, zktest.WithClientCertificate("CN=me"))
			})
		}
	}
}

// A server that cannot say who the client is may not be understood as one that says yes.
func TestAnIdentityThatAnOldServerCannotConfirmIsUnprotected(t *testing.T) {
	saslServer(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv, asBob, zsync.WithACL(zk.AuthACL(zk.PermAll)))
		_, err := s.Txn(t.Context(), &zk.CreateRequest{Path: "/p", Acl: []zk.ACL{{Perms: zk.PermAll, Scheme: "sasl", ID: "bob"}}})
		harness.Must(t, err)
		harness.WantErr(t, zsync.NewMutex(s, "/p").Lock(t.Context()), zsync.ErrUnprotected)
		named := suite.Open(t, srv, asBob, zsync.WithACL([]zk.ACL{{Perms: zk.PermAll, Scheme: "sasl", ID: "bob"}}))
		harness.Must(t, zsync.NewMutex(named, "/p").Lock(t.Context()))
	}, zktest.WithoutRequests(zktest.OpWhoAmI))
}
