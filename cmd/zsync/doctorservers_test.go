//go:build unix

package main

import (
	"bytes"
	"context"
	encoding "encoding/binary"
	"errors"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// onEnsemble runs f in a bubble of virtual time, with an ensemble and a machine.
func onEnsemble(t *testing.T, n int, f func(t *testing.T, e *zktest.Ensemble, m *machine), opts ...zktest.Option) {
	t.Helper()
	harness.InMemory(t)
	harness.VirtualTime(t, func(t *testing.T) {
		e := zktest.StartEnsemble(t, n, opts...)
		f(t, e, newMachine(t, e.Dial))
	})
}

// graded returns the lines of a grade in the output of doctor --ensemble.
func graded(out, grade string) (lines []string) {
	for line := range strings.Lines(out) {
		if rest, ok := strings.CutPrefix(line, grade); ok && strings.HasPrefix(rest, " ") {
			lines = append(lines, strings.TrimSpace(rest))
		}
	}
	return lines
}

func TestDoctorFindsZktestFitAloneAndAsAnEnsemble(t *testing.T) {
	check := func(t *testing.T, r *run, servers, warnings int) {
		t.Helper()
		status, out := r.wait(), r.stdout.String()
		if status != 0 || len(graded(out, "fail")) > 0 || len(graded(out, "warn")) != warnings || len(graded(out, "ok")) < 15*servers {
			t.Errorf("exit status %d, want 0 and %d warnings\n%s%s", status, warnings, out, &r.stderr)
		}
	}
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, args := range [][]string{{"--ensemble"}, {"--servers"}, {"--servers", "/some/path"}} {
			check(t, start(t, srv.Addr(), "", append([]string{"doctor", "--admin-port", "0", "--session", "60s"}, args...)...), 1, 1) // it is one server
		}
		if c := srv.Counts(); c.Znodes != 4 || c.Sessions != 0 {
			t.Errorf("%d znodes and %d sessions are left", c.Znodes, c.Sessions)
		}
	})
	onEnsemble(t, 3, func(t *testing.T, e *zktest.Ensemble, m *machine) {
		check(t, start(t, e.Addr(), "", "doctor", "--servers", "--admin-port", "0"), 3, 0)
		time.Sleep(time.Minute)
		for i := range 3 {
			if c := e.Server(i).Counts(); c.Znodes != 4 || c.Sessions != 0 {
				t.Errorf("%d znodes and %d sessions are left at %d", c.Znodes, c.Sessions, i)
			}
		}
	}, zktest.WithTick(100*time.Millisecond))
}

// A wrongConn changes what a client says to a server and hears of it.
type wrongConn struct {
	net.Conn
	hears  func(op int32, request []byte)     // changes a request, from its header on
	says   func(packet []byte) (now [][]byte) // returns the packets to deliver in its place
	words  map[string]string                  // answers to four-letter words
	answer io.Reader                          // of a word
	word   bool                               // the connection is for a four-letter word
	begun  bool                               // the handshake was read
	ready  bytes.Buffer
}

func (c *wrongConn) Write(p []byte) (int, error) {
	if text, ok := c.words[string(p)]; ok {
		c.answer = strings.NewReader(text)
		return len(p), nil
	}
	c.word = c.word || len(p) == 4
	if c.hears != nil && c.begun && len(p) >= 12 {
		p = bytes.Clone(p)
		c.hears(int32(encoding.BigEndian.Uint32(p[8:])), p[4:])
	}
	return c.Conn.Write(p)
}

func (c *wrongConn) Read(p []byte) (int, error) {
	switch {
	case c.answer != nil:
		return c.answer.Read(p)
	case c.says == nil || c.word:
		c.begun = true
		return c.Conn.Read(p)
	}
	for c.ready.Len() == 0 {
		var size [4]byte
		if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
			return 0, err
		}
		packet := make([]byte, encoding.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c.Conn, packet); err != nil {
			return 0, err
		}
		now := [][]byte{packet}
		if c.begun {
			now = c.says(packet)
		}
		c.begun = true
		for _, p := range now {
			c.ready.Write(encoding.BigEndian.AppendUint32(nil, uint32(len(p))))
			c.ready.Write(p)
		}
	}
	return c.ready.Read(p)
}

// replaced changes old in text, in place, to new, which is as long.
func replaced(text, old, new []byte) {
	if i := bytes.Index(text, old); i >= 0 {
		copy(text[i:], new)
	}
}

func TestDoctorFindsAServerThatIsWrongInOnePoint(t *testing.T) {
	t.Parallel()
	answers := func(words map[string]string) func(c *wrongConn, server int) {
		return func(c *wrongConn, server int) {
			if server == 1 {
				c.words = words
			}
		}
	}
	for _, tt := range []struct {
		name   string
		grade  string   // of the line that says it
		want   string   // a regular expression for that line
		only   bool     // no other line has such a grade
		args   []string // instead of those of everyone
		opts   []zktest.Option
		breaks func(t *testing.T, e *zktest.Ensemble, m *machine)
		wrong  func(c *wrongConn, server int)
	}{
		{name: "not reached", grade: "fail", want: `:\d+: reached: .*refused.*start it, or correct --servers`, only: true,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) { e.Crash(1) }},
		{name: "far away", grade: "fail", want: `: round trip: 1\.2s, the median of 9; .* more than a tenth of the session timeout of 10s`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) { e.Server(1).SetLatency(1200 * time.Millisecond) }},
		{name: "not near", grade: "warn", want: `: round trip: 300ms, .* more than a fiftieth`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) { e.Server(1).SetLatency(300 * time.Millisecond) }},
		{name: "another timeout", grade: "fail", want: `^all: session timeout: 10s at .*, 5s at .*: set minSessionTimeout`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				e.Server(1).SetSessionTimeouts(time.Second, 5*time.Second)
			}},
		{name: "not the timeout that was asked for", grade: "warn", want: `: session timeout: it grants 1m0s, and 1h0m0s is asked for`, args: []string{"--session", "1h"}},
		{name: "no containers", grade: "warn", want: `: containers: it does not know them`, opts: []zktest.Option{zktest.WithoutRequests(zktest.OpCreateContainer)}},
		{name: "another version", grade: "warn", want: `^all: version: 3\.8\.0-zktest at .*, 3\.4\.14 at .*: let all have one`, only: true,
			wrong: answers(map[string]string{"srvr": "Zookeeper version: 3.4.14, built\nMode: follower\n"})},
		{name: "no words", grade: "warn", want: `: settings: .* not known: conf is not executed because it is not in the whitelist; add conf`,
			wrong: answers(map[string]string{"conf": "conf is not executed because it is not in the whitelist.", "srvr": "srvr is not executed because it is not in the whitelist."})},
		{name: "no version", grade: "warn", want: `: version: not known, .*; add it to 4lw`,
			wrong: answers(map[string]string{"srvr": "srvr is not executed because it is not in the whitelist."})},
		{name: "standalone", grade: "fail", want: `: part in the ensemble: .* is standalone`, only: true,
			wrong: answers(map[string]string{"srvr": "Zookeeper version: 3.8.0-zktest, built\nMode: standalone\n"})},
		{name: "other settings", grade: "fail", want: `: settings: syncLimit|tickTime is 100 at .* and 7 at`, only: true,
			wrong: answers(map[string]string{"conf": "tickTime=7\n"})},
		{name: "read-only mode", grade: "fail", want: `: read-only mode: it has no quorum`, only: true,
			wrong: func(c *wrongConn, server int) {
				if server == 1 {
					c.words = map[string]string{"isro": "ro"}
					c.says = func([]byte) [][]byte { c.Close(); return nil }
					c.begun = true // it closes instead of a handshake
				}
			}},
		{name: "events after replies", grade: "fail", want: `: order of replies and events: a read returned .* before the watch event of it`, only: true,
			wrong: func(c *wrongConn, server int) {
				var late [][]byte
				c.says = func(p []byte) [][]byte {
					if server == 1 && int32(encoding.BigEndian.Uint32(p)) == wire.XidEvent {
						late = append(late, p)
						return nil
					}
					return [][]byte{p}
				}
			}},
		{name: "replies in another order", grade: "fail", want: `: order of replies and events: the reply to request \d+ came in the place`,
			wrong: func(c *wrongConn, server int) {
				var held []byte
				writing := int32(0)
				c.hears = func(op int32, p []byte) {
					if server == 1 && op == wire.OpSetData && bytes.HasSuffix(p, []byte("\x00\x00\x00\x011\xff\xff\xff\xff")) { // which a read follows
						writing = int32(encoding.BigEndian.Uint32(p))
					}
				}
				c.says = func(p []byte) [][]byte {
					switch xid := int32(encoding.BigEndian.Uint32(p)); {
					case xid == writing && writing != 0:
						held, writing = p, 0
						return nil
					case held != nil && xid > 0:
						late := held
						held = nil
						return [][]byte{p, late}
					}
					return [][]byte{p}
				}
			}},
		{name: "a sync that does nothing", grade: "fail", want: `: sync before a read: a read after a sync missed a write`, only: true,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) { e.SetLag(1, 50*time.Millisecond) },
			wrong: func(c *wrongConn, server int) {
				c.hears = func(op int32, p []byte) {
					if server == 1 && op == wire.OpSync { // a getChildren has the same body, but for the watch
						encoding.BigEndian.PutUint32(p[4:], wire.OpGetACL)
					}
				}
			}},
		{name: "transactions in part", grade: "fail", want: `: transactions: it applied a transaction whose check must fail`, only: true,
			wrong: func(c *wrongConn, server int) {
				c.hears = func(op int32, p []byte) {
					if server == 1 && op == wire.OpMulti {
						replaced(p, encoding.BigEndian.AppendUint32(nil, 12345), encoding.BigEndian.AppendUint32(nil, 0xffffffff))
					}
				}
			}},
		{name: "no transactions", grade: "fail", want: `: transactions: it does not know transactions`, opts: []zktest.Option{zktest.WithoutRequests(zktest.OpMulti)}},
		{name: "no multiRead", grade: "warn", want: `: multiRead: it does not know it`, opts: []zktest.Option{zktest.WithoutRequests(zktest.OpMultiRead)}},
		{name: "a multiRead of other data", grade: "fail", want: `: multiRead: it answers with other data`, only: true,
			wrong: func(c *wrongConn, server int) {
				reading := int32(0)
				c.hears = func(op int32, p []byte) {
					if op == wire.OpMultiRead {
						reading = int32(encoding.BigEndian.Uint32(p))
					}
				}
				c.says = func(p []byte) [][]byte {
					if server == 1 && reading != 0 && int32(encoding.BigEndian.Uint32(p)) == reading {
						replaced(p, []byte("\x00\x00\x00\x01b"), []byte("\x00\x00\x00\x01c"))
					}
					return [][]byte{p}
				}
			}},
		{name: "small packets", grade: "fail", want: `: packets: it takes one of 65536 bytes, and none of 262144: set jute.maxbuffer to 1048575`, opts: []zktest.Option{zktest.WithMaxBuffer(100 << 10)}},
		{name: "slow writes", grade: "fail", want: `: time of a write: 3\.0\d+s, .* more than a tenth of the session timeout .* faster disks`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) { slow(e.Server(1), 3*time.Second) }},
		{name: "writes that are not fast", grade: "warn", want: `: time of a write: 30\d(\.\d)?ms, .* more than a fiftieth`, only: true,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) { slow(e.Server(1), 300*time.Millisecond) }},
		{name: "ephemeral znodes that stay", grade: "fail", want: `: end of a session: an ephemeral znode is left`, only: true,
			wrong: func(c *wrongConn, server int) {
				c.hears = func(op int32, p []byte) {
					if server == 1 && op == wire.OpCreate && encoding.BigEndian.Uint32(p[len(p)-4:]) == zk.FlagEphemeral {
						encoding.BigEndian.PutUint32(p[len(p)-4:], 0)
					}
				}
			}},
		{name: "local sessions", grade: "fail", want: `: order of replies and events: an ephemeral znode cannot be created: the session is local`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				e.Server(1).Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpCreate && r.Flags == zk.FlagEphemeral {
						return zktest.Fail(-120)
					}
					return zktest.Pass
				})
			}},
		{name: "a quota", grade: "fail", want: `^all: quotas: /jobs: countHardLimit is 10, and 10 is used: the servers refuse`, only: true, args: []string{"/jobs/here"},
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				quota(t, e, "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=10", "count=10,bytes=5")
			}},
		{name: "a soft quota", grade: "warn", want: `^all: quotas: /jobs: count is 10, and 10 is used: the servers only log`, only: true, args: []string{"/jobs/here"},
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				quota(t, e, "count=10,bytes=-1", "count=10,bytes=5")
			}},
		{name: "credentials that are missing", grade: "fail", want: `: authentication: the server demands credentials \(code -124\): give it --auth-file`, opts: []zktest.Option{zktest.WithRequiredAuth("digest")}},
		{name: "credentials of another scheme", grade: "fail", want: `: authentication: .*give it --auth-file or --sasl-user, of a scheme`, args: []string{"--auth", "digest:me:secret"}, opts: []zktest.Option{zktest.WithRequiredAuth("sasl")}},
		{name: "a wrong password", grade: "fail", want: `: authentication: SASL DIGEST-MD5: .*; correct the credentials`, args: []string{"env:ZSYNC_SASL_PASSWORD=wrong", "--sasl-user", "me"},
			opts: []zktest.Option{zktest.WithSASL(map[string]string{"me": "right"})}},
		{name: "credentials that one server demands", grade: "fail", want: `^all: authentication: no credentials are demanded at .*, credentials are demanded at`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				e.Server(1).Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpConnect || r.Op == zktest.OpAuth {
						return zktest.Pass
					}
					return zktest.Refuse(zktest.CodeAuthRequired)
				})
			}},
		{name: "no permission", grade: "fail", want: `: permissions: a znode cannot be created in /: no permission \(code -102\); zsync needs create`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				s := onServers(t, e)
				if _, err := s.SetACL("/", zk.WorldACL(zk.PermRead), -1); err != nil {
					t.Fatal(err)
				}
			}},
		{name: "two names of one server", grade: "fail", want: `^all: names: one and other make sessions of the same server number, 1: they are one server`, only: true,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				m.named(e, map[string][]string{"one": {"10.0.0.1"}, "other": {"10.0.0.2"}, "third": {"10.0.0.3"}}, map[string]int{"one": 0, "other": 0, "third": 2})
			}},
		{name: "two names of one address", grade: "fail", want: `^all: names: one and other are one server, by their addresses`,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				m.named(e, map[string][]string{"one": {"10.0.0.1"}, "other": {"10.0.0.1"}, "third": {"10.0.0.3"}}, map[string]int{"one": 0, "other": 0, "third": 2})
			}},
		{name: "one name of two servers", grade: "fail", want: `^other: name: it has 2 addresses, 10\.0\.0\.2 and 10\.0\.0\.4: list each server`, only: true,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				m.named(e, map[string][]string{"one": {"10.0.0.1"}, "other": {"10.0.0.2", "10.0.0.4"}, "third": {"10.0.0.3"}}, map[string]int{"one": 0, "other": 1, "third": 2})
			}},
		{name: "a name of nothing", grade: "fail", want: `^other: name: it has no address: `,
			breaks: func(t *testing.T, e *zktest.Ensemble, m *machine) {
				m.named(e, map[string][]string{"one": {"10.0.0.1"}, "third": {"10.0.0.3"}}, map[string]int{"one": 0, "third": 2})
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onEnsemble(t, 3, func(t *testing.T, e *zktest.Ensemble, m *machine) {
				servers := e.Addr()
				if tt.breaks != nil {
					tt.breaks(t, e, m)
				}
				if m.lookup != nil {
					servers = "one,other,third"
				}
				if dial := m.dial; tt.wrong != nil {
					m.dial = func(network, addr string, limit time.Duration) (net.Conn, error) {
						conn, err := dial(network, addr, limit)
						if err != nil {
							return nil, err
						}
						c := &wrongConn{Conn: conn}
						for i, a := range e.Addrs() {
							if a == addr {
								tt.wrong(c, i)
							}
						}
						return c, nil
					}
				}
				var args []string
				for _, a := range tt.args {
					if strings.HasPrefix(a, "env:") {
						args = append([]string{a}, args...)
					}
				}
				args = append(args, "doctor", "--servers", "--admin-port", "0")
				for _, a := range tt.args {
					if !strings.HasPrefix(a, "env:") {
						args = append(args, a)
					}
				}
				r := start(t, servers, "", args...)
				want := 0
				if tt.grade == "fail" {
					want = exitFindings
				}
				status, out := r.wait(), r.stdout.String()
				if status != want {
					t.Errorf("exit status %d, want %d", status, want)
				}
				lines := graded(out, tt.grade)
				found := false
				for _, line := range lines {
					found = found || regexp.MustCompile(tt.want).MatchString(line)
				}
				if !found || tt.only && len(lines) != 1 {
					t.Errorf("want %s: %s", tt.grade, tt.want)
				}
				if t.Failed() {
					t.Logf("%s%s", out, &r.stderr)
				}
				for _, line := range strings.Split(dumped(e), "\n") {
					if strings.Contains(line, "zsync-doctor") {
						t.Errorf("left: %s", line)
					}
				}
			}, append([]zktest.Option{zktest.WithTick(100 * time.Millisecond)}, tt.opts...)...)
		})
	}
}

func dumped(e *zktest.Ensemble) string {
	time.Sleep(time.Minute) // sessions that were abandoned have ended
	var b bytes.Buffer
	e.Dump(&b)
	return b.String()
}

// slow delays the writes that are measured.
func slow(s *zktest.Server, d time.Duration) {
	s.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpSetData && len(r.Data) == 100 {
			return zktest.Delay(d)
		}
		return zktest.Pass
	})
}

// onServers connects to the first server.
func onServers(t *testing.T, e *zktest.Ensemble) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect(e.Addrs()[:1], 10*time.Second, zk.WithDialer(e.Dial), zk.WithLogInfo(false))
	harness.Must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// quota sets a quota of /jobs, as ZooKeeper's own command does.
func quota(t *testing.T, e *zktest.Ensemble, limits, used string) {
	t.Helper()
	conn := onServers(t, e)
	for _, z := range []struct{ path, data string }{
		{"/jobs", ""}, {"/zookeeper/quota/jobs", ""}, {"/zookeeper/quota/jobs/zookeeper_limits", limits}, {"/zookeeper/quota/jobs/zookeeper_stats", used},
	} {
		if _, err := conn.Create(z.path, []byte(z.data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(z.path, err)
		}
	}
}

// named gives the servers names, each with addresses.
func (m *machine) named(e *zktest.Ensemble, addrs map[string][]string, servers map[string]int) {
	m.lookup = func(_ context.Context, name string) ([]string, error) {
		if found := addrs[name]; found != nil {
			return found, nil
		}
		return nil, errors.New("no such host")
	}
	m.dial = func(network, addr string, limit time.Duration) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(addr)
		i, ok := servers[host]
		if !ok {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return e.Dial(network, e.Addrs()[i], limit)
	}
}

// Whatever ends the examination, and wherever, its znodes are gone.
func TestDoctorRemovesItsZnodesHoweverItEnds(t *testing.T) {
	leaves := func(srv *zktest.Server) bool { return srv.Counts().Znodes != 4 }
	for _, op := range []zktest.Op{zktest.OpCreate, zktest.OpCreateContainer, zktest.OpSetData, zktest.OpMulti, zktest.OpSync, zktest.OpExists} {
		t.Run("SIGINT at "+op.String(), func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				there := make(chan struct{}, 100)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == op && strings.Contains(r.Path, "zsync-doctor") && strings.Count(r.Path, "/") > 1 || r.Op == op && op == zktest.OpMulti {
						there <- struct{}{}
						return zktest.Delay(3 * time.Second)
					}
					return zktest.Pass
				})
				r := start(t, srv.Addr(), "", "doctor", "--servers", "--admin-port", "0")
				<-there
				r.signal(syscall.SIGINT)
				if got := r.wait(); got != 128+int(syscall.SIGINT) {
					t.Errorf("exit status %d\n%s%s", got, &r.stdout, &r.stderr)
				}
				time.Sleep(time.Hour) // what was delayed is carried out
				if leaves(srv) {
					t.Error("znodes are left")
				}
			})
		})
		t.Run("no answer to "+op.String(), func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				var done atomic.Bool
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == op && r.Path != "/" && done.CompareAndSwap(false, true) {
						return zktest.DropReply
					}
					return zktest.Pass
				})
				r := start(t, srv.Addr(), "", "doctor", "--servers", "--admin-port", "0")
				if got := r.wait(); got != exitFindings || len(graded(r.stdout.String(), "fail")) == 0 {
					t.Errorf("exit status %d\n%s%s", got, &r.stdout, &r.stderr)
				}
				time.Sleep(time.Hour)
				if leaves(srv) {
					t.Errorf("znodes are left\n%s%s", &r.stdout, &r.stderr)
				}
			})
		})
	}
}

func TestDoctorOfAllServersHasItsLimitsAndUsage(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, tt := range []struct {
			servers, args string
			status        int
			says          string
		}{
			{srv.Addr(), "doctor --servers --clean", exitUsage, "--ensemble and --clean do not go together"},
			{srv.Addr(), "doctor --ensemble p/q", exitUsage, `path "p/q" is relative`},
			{srv.Addr(), "doctor --ensemble --timeout 0", exitUsage, "--timeout 0"},
			{"", "doctor --servers", exitConfig, "no servers"},
			{"", "--servers " + srv.Addr() + " doctor --servers --admin-port 0", 0, ""},
			{srv.Addr(), "doctor --servers --admin-port 0 --acl creator", exitUsage, "there are no credentials"},
		} {
			r := start(t, tt.servers, "", strings.Fields(tt.args)...)
			if got := r.wait(); got != tt.status || !strings.Contains(r.stderr.String(), tt.says) {
				t.Errorf("%s: exit status %d, want %d and %q\n%s%s", tt.args, got, tt.status, tt.says, &r.stdout, &r.stderr)
			}
		}
		srv.SetLatency(time.Second)
		start(t, srv.Addr(), "", "doctor", "--servers", "--admin-port", "0", "--timeout", "10").outcome(exitBusy, "", "gave up after 10s")
	})
}

func TestDoctorMeasuresHowFarTheLeadersClockIsOff(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for made, want := range map[int]time.Duration{5: -5 * time.Second, 10: 0, 11: 0, 12: 0, 20: 8 * time.Second} {
		if got := clockOff(at(10), at(12), at(made)); got != want {
			t.Errorf("made at %d: %v, want %v", made, got, want)
		}
	}
}

// Debian's server is fit, alone and as an ensemble.
func TestDoctorFindsRealServersFit(t *testing.T) {
	servers := need.Variable(t, "ZSYNC_TEST_SERVERS")
	dir := t.TempDir()
	alone, err := exec.Command("../../scripts/ensemble", "start", "1", dir).Output()
	harness.Must(t, err)
	defer exec.Command("../../scripts/ensemble", "stop", dir).Run()
	for _, some := range []string{servers, strings.TrimSpace(string(alone))} {
		r := start(t, some, "", "doctor", "--servers", "--session", "20s")
		// The machine may be so busy that a write takes long, but that alone may be wrong.
		status, out := r.wait(), r.stdout.String()
		for _, line := range graded(out, "fail") {
			if !strings.Contains(line, "more than a tenth of the session timeout") {
				t.Errorf("%s: exit status %d: %s\n%s%s", some, status, line, out, &r.stderr)
			}
		}
		if status != 0 && status != exitFindings {
			t.Errorf("%s: exit status %d\n%s%s", some, status, out, &r.stderr)
		}
		t.Logf("%s", out)
	}
	s, err := zsync.Connect(t.Context(), servers)
	harness.Must(t, err)
	defer s.Close()
	names, _, err := s.Children(t.Context(), "/")
	if err != nil || strings.Contains(strings.Join(names, " "), "zsync-doctor") {
		t.Errorf("left: %v, %v", names, err)
	}
}
