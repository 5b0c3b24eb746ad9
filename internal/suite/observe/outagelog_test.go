package observe

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"regexp"
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
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/zktest"
)

// A defaultLog is what a program that chooses no logger finds in its log, with the time of day in
// seconds since the test began.
type defaultLog struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func recordDefaultLog(t *testing.T) *defaultLog {
	l, began := &defaultLog{}, time.Now()
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	at := func(then time.Time) string { return then.Sub(began).Round(100 * time.Millisecond).String() }
	slog.SetDefault(slog.New(slog.NewTextHandler(locked{&l.mu, &l.out}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if then, ok := a.Value.Any().(time.Time); ok {
			return slog.String(a.Key, at(then))
		}
		return a
	}})))
	return l
}

// want compares what was said since the last call with the lines of a story. There A, B and so on
// are sessions, SERVER is the server, ZNODE is a
// znode in the line of /m, ~ stands for a time or a duration, and lines of one moment may
// come in any order.
func (l *defaultLog) want(t *testing.T, srv *zktest.Server, story string, sessions ...int64) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	said := regexp.MustCompile(`/m/_c_[-0-9a-z]+`).ReplaceAllString(strings.ReplaceAll(l.out.String(), srv.Addr(), "SERVER"), "ZNODE")
	l.out.Reset()
	l.mu.Unlock()
	for i, id := range sessions {
		said = strings.ReplaceAll(said, session.Text(id), string(rune('A'+i)))
	}
	got, want := strings.FieldsFunc(said, newline), []string(nil)
	for line := range strings.Lines(story) {
		if line = strings.TrimSpace(line); line != "" {
			want = append(want, line)
		}
	}
	matched := 0
	for _, line := range want {
		pattern := regexp.MustCompile(`^` + strings.ReplaceAll(regexp.QuoteMeta(line), "~", `[-.:0-9a-zµ]+`) + `$`)
		if slices.ContainsFunc(got, pattern.MatchString) {
			matched++
		}
	}
	if matched != len(want) || len(got) != len(want) {
		t.Errorf("the log is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func newline(r rune) bool { return r == '\n' }

// Each story is all that the log has at its default level, for a person who reads it at night: who
// is cut off and since when, what is held and until when, what is lost, and what is back.
func TestTheLogTellsAnOutageAsAStory(t *testing.T) {
	open := func(t *testing.T, srv *zktest.Server) *zsync.Session {
		s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(10*time.Second))
		harness.Must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	stories := map[string]func(t *testing.T, srv *zktest.Server, log *defaultLog){
		"a server restarts within a second": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
			srv.Stop()
			time.Sleep(200 * time.Millisecond) // the next attempts come within a second, whatever the jitter
			srv.Restart()
			time.Sleep(time.Hour)
			log.want(t, srv, "")
		},
		"a lock is held through a short outage": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
			time.Sleep(time.Minute)
			srv.Stop()
			time.Sleep(2500 * time.Millisecond)
			srv.Restart()
			time.Sleep(time.Hour)
			log.want(t, srv, `
				time=1m1s level=WARN msg="zsync: no connection to any server" since=1m0s holds=1 until=~ err="SERVER: dial tcp SERVER: connect: connection refused"
				time=~ level=WARN msg="zsync: connected again" since=~ lasted=~ session=A`, s.ID())
		},
		"a lock is lost in a long outage": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			harness.Must(t, errors.Join(zsync.NewMutex(s, "/m").Lock(t.Context()), zsync.NewElection(s, "/e").Campaign(t.Context())))
			before := s.ID()
			time.Sleep(time.Minute)
			srv.Stop()
			time.Sleep(10 * time.Second)
			log.want(t, srv, `
				time=1m1s level=WARN msg="zsync: no connection to any server" since=1m0s holds=2 until=~ err="SERVER: dial tcp SERVER: connect: connection refused"
				time=~ level=WARN msg="zsync: lost" op=lock path=/m session=A reason="lost: the session was not confirmed in time"
				time=~ level=WARN msg="zsync: lost" op=campaign path=/e session=A reason="lost: the session was not confirmed in time"
				time=~ level=WARN msg="zsync: session lost" session=A reason="lost: the session was not confirmed in time"`, before)
			srv.Restart()
			time.Sleep(time.Hour)
			log.want(t, srv, `time=~ level=WARN msg="zsync: connected again" since=~ lasted=~ session=B`, before, s.ID())
		},
		"no server answers at the start": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			srv.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
			defer cancel()
			if s, err := zsync.Connect(ctx, srv.Addr(), zsync.WithDialer(srv.Dial)); err == nil {
				s.Close()
				t.Error("connected")
			}
			log.want(t, srv, `time=1s level=WARN msg="zsync: no connection to any server" since=0s err="SERVER: dial tcp SERVER: connect: connection refused"`)
		},
		"the servers end the session": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
			before := s.ID()
			time.Sleep(time.Minute)
			srv.Expire(before)
			time.Sleep(time.Hour)
			log.want(t, srv, `
				time=1m0s level=WARN msg="zsync: lost" op=lock path=/m session=A reason="lost: the session has expired"
				time=1m0s level=WARN msg="zsync: session lost" session=A reason="lost: the session has expired"`, before)
		},
		"another client deletes the lock": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s, other := open(t, srv), open(t, srv)
			m := zsync.NewMutex(s, "/m")
			harness.Must(t, m.Lock(t.Context()))
			cs, err := m.Contenders(t.Context())
			harness.Must(t, err)
			_, err = other.Txn(t.Context(), &zk.DeleteRequest{Path: "/m/" + cs[0].Node, Version: -1})
			harness.Must(t, err)
			time.Sleep(time.Hour)
			log.want(t, srv, `time=0s level=WARN msg="zsync: lost" op=lock path=/m session=A reason="lost: the znode was deleted"`, s.ID())
		},
		"only a waiter is cut off": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			holder, waiter := open(t, srv), open(t, srv)
			harness.Must(t, zsync.NewMutex(holder, "/m").Lock(t.Context()))
			go zsync.NewMutex(waiter, "/m").Lock(t.Context())
			time.Sleep(time.Minute)
			before := waiter.ID()
			srv.Partition(before)
			time.Sleep(time.Hour)
			log.want(t, srv, `
				time=~ level=WARN msg="zsync: no connection to any server" since=~ err="SERVER: no answer yet"
				time=~ level=WARN msg="zsync: session lost" session=A reason="lost: the session was not confirmed in time"
				time=~ level=WARN msg="zsync: connected again" since=~ lasted=~ session=B`, before, waiter.ID())
		},
		"the servers accept the client, but serve no request": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			time.Sleep(time.Minute)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpConnect {
					return zktest.Pass
				}
				return zktest.DropRequest
			})
			time.Sleep(30 * time.Minute)
			log.want(t, srv, `
				time=~ level=WARN msg="zsync: no connection to any server" since=~ err="SERVER: the connection ended at once: EOF"`)
			srv.Intercept(nil)
			time.Sleep(time.Hour)
			log.want(t, srv, `time=~ level=WARN msg="zsync: connected again" since=~ lasted=~ session=A`, s.ID())
		},
		"the server refuses to catch up": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			harness.Must(t, zsync.NewMutex(s, "/m").Lock(t.Context()))
			time.Sleep(time.Minute)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpSync {
					return zktest.Fail(zktest.CodeThrottled)
				}
				return zktest.Pass
			})
			srv.Disconnect(s.ID())
			time.Sleep(5 * time.Second)
			srv.Intercept(nil)
			time.Sleep(time.Hour)
			log.want(t, srv, `
				time=1m1s level=WARN msg="zsync: no connection to any server" since=1m0s holds=1 until=~ err="SERVER: the connection ended at once: the server cannot catch up with its leader (code -127)"
				time=~ level=WARN msg="zsync: connected again" since=~ lasted=~ session=A`, s.ID())
		},
		"the session is given up beside a connection": func(t *testing.T, srv *zktest.Server, log *defaultLog) {
			s := open(t, srv)
			m := zsync.NewMutex(s, "/m")
			harness.Must(t, m.Lock(t.Context()))
			before := s.ID()
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Op == zktest.OpDelete && strings.HasPrefix(r.Path, "/m/") {
					return zktest.Fail(zktest.CodeNoAuth)
				}
				return zktest.Pass
			})
			m.Unlock()
			time.Sleep(3 * time.Hour)
			log.want(t, srv, `
				time=0s level=ERROR msg="zsync: cannot delete; the Session keeps trying" path=ZNODE err="zk: not authenticated"
				time=10s level=ERROR msg="zsync: no permission to delete an own znode; the ZooKeeper session ends" path=ZNODE
				time=10s level=WARN msg="zsync: session lost" session=A reason="lost: given up"`, before, s.ID())
		},
	}
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) { story(t, srv, recordDefaultLog(t)) })
		})
	}
}

// What has failed is one line, with the reason.
func TestEachFailureIsOneLineOfTheLog(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		log := recordDefaultLog(t)
		s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithOwner("me"))
		harness.Must(t, err)
		defer s.Close()
		ctx := t.Context()
		running, stop := context.WithCancel(ctx)
		stopped := make(chan struct{})
		nightly := zsync.NewSchedule(s, "/nightly", zsync.WithRetries(2, zsync.Backoff{Min: time.Second, Max: time.Second}))
		go func() {
			defer close(stopped)
			nightly.Run(running, zsync.Every(time.Hour), func(context.Context, time.Time) error { return errors.New("disk full") })
		}()
		time.Sleep(90 * time.Minute)
		stop()
		<-stopped
		log.want(t, srv, `
			time=1h0m0s level=WARN msg="zsync: scheduled function failed" path=/nightly at=1h0m0s attempt=1 err="disk full"
			time=1h0m1s level=WARN msg="zsync: scheduled function failed" path=/nightly at=1h0m0s attempt=2 err="disk full"`)

		q := zsync.NewQueue[int](s, "/q")
		harness.Must(t, q.Send(ctx, 7))
		d, err := q.Receive(ctx)
		harness.Must(t, errors.Join(err, d.Reject(ctx, "no such customer")))
		log.want(t, srv, `time=~ level=ERROR msg="zsync: an element becomes a dead letter" path=/q element=~/~ err="no such customer"`)

		harness.Must(t, errors.Join(zsync.NewQueue[string](s, "/q").Send(ctx, "seven"), q.Send(ctx, 8)))
		d, err = q.Receive(ctx)
		harness.Must(t, errors.Join(err, d.Ack(ctx)))
		log.want(t, srv, `time=~ level=ERROR msg="zsync: an element becomes a dead letter" path=/q element=~/~ err="json: cannot unmarshal string into Go value of type int"`)

		m := zsync.NewMutex(s, "/m", zsync.WithMaxHold(time.Minute))
		harness.Must(t, m.Lock(ctx))
		time.Sleep(2 * time.Minute)
		log.want(t, srv, `time=~ level=WARN msg="zsync: lost" op=lock path=/m session=A reason="lost: given up: held longer than WithMaxHold (1m0s)"`, s.ID())
	})
}

// A certificate that is refused is one line for each server. If the certificate has expired, the text
// of the error has the time of each attempt.
func TestARefusedCertificateIsOneLineForEachServer(t *testing.T) {
	harness.VirtualTime(t, func(t *testing.T) {
		srv := zktest.Start(t, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		log := recordDefaultLog(t)
		var expired atomic.Bool
		s, err := zsync.Connect(t.Context(), "127.0.0.1:1,127.0.0.1:2", zsync.WithDialer(func(network, addr string, limit time.Duration) (net.Conn, error) {
			if expired.Load() {
				return nil, &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired, Detail: time.Now().String()}}
			}
			return srv.Dial(network, addr, limit)
		}))
		harness.Must(t, err)
		defer s.Close()
		for range 2 { // the second time is another outage
			expired.Store(true)
			srv.Disconnect(s.ID())
			time.Sleep(5 * time.Minute)
			log.mu.Lock()
			if n := strings.Count(log.out.String(), "cannot reach server"); n != 2 {
				t.Errorf("%d lines for two servers:\n%s", n, &log.out)
			}
			log.out.Reset()
			log.mu.Unlock()
			expired.Store(false)
			time.Sleep(time.Minute)
			zsync.NewMutex(s, "/m").Contenders(t.Context())
		}
	})
}
