//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/zktest"
)

// named opens a session that calls itself so.
func named(t *testing.T, srv *zktest.Server, name string, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	return connect(t, srv, append(opts, zsync.WithOwner(name))...)
}

func TestListShowsEverythingBelowAPath(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := named(t, srv, "holder"), t.Context()
		secret := named(t, srv, "in secret", zsync.WithAuth("digest", []byte("me:secret")), zsync.WithACL(zk.AuthACL(zk.PermAll)))
		m := zsync.NewMutex(s, "/jobs/nightly")
		if err := errors.Join(
			m.Lock(ctx),
			zsync.NewRWMutex(s, "/jobs/data/rw").RLock(ctx),
			zsync.NewSemaphore(s, "/pool", 3).Acquire(ctx, 2),
			zsync.NewOnce(s, "/jobs/once").Do(ctx, func(context.Context) error { return nil }),
			func() error {
				_, err := zsync.NewSchedule(s, "/jobs/plan").Do(ctx, time.Date(2030, 6, 1, 0, 0, 0, 0, time.UTC), func(context.Context) error { return nil })
				return err
			}(),
			zsync.NewQueue[int](s, "/jobs/work").Send(ctx, 1, 2),
			zsync.NewQueue[int](s, "/free").Send(ctx, 1),
			zsync.NewValue[int](s, "/jobs/last").Store(ctx, 7),
			zsync.NewMutex(secret, "/secret/lock").Lock(ctx),
		); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			go zsync.NewMutex(named(t, srv, "waiter"), "/jobs/nightly").Lock(ctx)
		}
		contenders(t, m, 3)
		rows := func(path string, ending string) string {
			return strings.ReplaceAll(path+ending, " ", " +") + `\n`
		}
		jobs := rows("/jobs/data/rw", ` read-write lock 1 <\d+s - - holder -`) + rows("/jobs/last", ` data - - - - - 7`) +
			rows("/jobs/nightly", ` lock 1 <\d+s 2 \d+s holder -`) + rows("/jobs/once", ` once - - - - - done`) + rows("/jobs/plan", ` schedule - - - - - last done: that of 2030-.*`) + rows("/jobs/work", ` queue - - - - - 2 elements`)
		const head = `^PATH +KIND +HOLD +FOR +WAIT +FOR +OWNER +STATE\n`
		all := rows("/free", ` queue - - - - - 1 element`) + jobs + rows("/pool", ` semaphore 2 <\d+s - - holder -`) + rows("/secret", ` - - - - - - not ours to read`)
		for _, tt := range []struct{ path, want string }{{"/jobs", jobs}, {"/", all}, {"", all}, {"/nothing", ""}} {
			r := start(t, srv.Addr(), "", append([]string{"ls"}, strings.Fields(tt.path)...)...)
			r.wait()
			if !regexp.MustCompile(head + tt.want + `$`).MatchString(r.stdout.String()) {
				t.Errorf("ls %s shows\n%s\nwant\n%s\n%s", tt.path, &r.stdout, tt.want, &r.stderr)
			}
		}
		r := start(t, srv.Addr(), "", "ls", "/jobs", "--json")
		r.wait()
		if got := r.stdout.String(); !strings.Contains(got, `"waiters": 2`) || !strings.Contains(got, `"owner": "holder"`) {
			t.Errorf("got\n%s", got)
		}
		r = start(t, srv.Addr(), "", "status", "/")
		if got := r.wait(); got != exitRefused && got != 0 || !strings.Contains(r.stdout.String(), "/jobs/nightly") {
			t.Errorf("exit status %d and\n%s%s", got, &r.stdout, &r.stderr)
		}
		watch := start(t, srv.Addr(), "", "ls", "/jobs", "--watch", "--interval", "0.1")
		watch.awaitOutput("/jobs/nightly")
		if err := m.Unlock(); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool {
			return regexp.MustCompile(`/jobs/nightly +lock +1 +\d+s +1 +\d+s +waiter`).MatchString(watch.stdout.String())
		}, "the hand-over")
	})
}

func TestDoctorNamesWhatIsWrong(t *testing.T) {
	srv := zktest.Start(t)
	ctx := t.Context()
	r := start(t, srv.Addr(), "", "doctor")
	r.wait()
	if got := r.stdout.String(); r.wait() != 0 || strings.Contains(got, "problem: ") {
		t.Fatalf("exit status %d on a healthy tree:\n%s", r.wait(), got)
	}
	// Three processes over three locks, and one that waits outside.
	var sessions []*zsync.Session
	for _, name := range []string{"one", "two", "three"} {
		s := named(t, srv, name)
		if err := zsync.NewMutex(s, "/locks/of-"+name).Lock(ctx); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	for i, path := range []string{"/locks/of-two", "/locks/of-three", "/locks/of-one"} {
		m := zsync.NewMutex(sessions[i], path)
		go m.Lock(ctx)
		contenders(t, m, 2)
	}
	outside := zsync.NewMutex(named(t, srv, "outside"), "/locks/of-one")
	go outside.Lock(ctx)
	contenders(t, outside, 3)

	// What another library's client may do, or an older zsync: the library refuses to mix.
	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Minute, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	create := func(path string, flags int32) {
		t.Helper()
		if _, err := conn.Create(path, nil, flags, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(path, err)
		}
	}
	const guid = "_c_48e50edc-09ec-4785-b44e-13769185aea0"
	create("/mixed", 0)
	create("/mixed/"+guid+"-lock-", zk.FlagSequence)
	create("/mixed/"+guid+"-latch-", zk.FlagSequence)
	create("/gone-consumers", 0)
	if _, err := conn.Set("/gone-consumers", []byte(marks.Dir), -1); err != nil {
		t.Fatal(err)
	}
	create("/old", 0)
	srv.SetSequence("/old", 2_100_000_000)
	create("/old/"+guid+"-lock-", zk.FlagEphemeral|zk.FlagSequence)
	q := zsync.NewQueue[int](sessions[0], "/queue")
	if err := zsync.NewQueue[string](sessions[0], "/queue").Send(ctx, "no number"); err != nil {
		t.Fatal(err)
	}
	q.TryRecv(ctx)
	// One that fails again and again, and one that has failed less often.
	for path, attempts := range map[string]int{"/poisoned": 6, "/unlucky": 4} {
		q := zsync.NewQueue[int](sessions[0], path)
		if err := q.Send(ctx, 7); err != nil {
			t.Fatal(err)
		}
		for range attempts {
			d, err := q.Receive(ctx)
			if err == nil {
				err = d.Nack()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	delayed := zsync.NewQueue[int](sessions[0], "/delayed")
	if err := delayed.Send(ctx, 7); err != nil {
		t.Fatal(err)
	}
	for attempt := range 5 { // the last waits for an hour
		d, err := delayed.Receive(ctx)
		if err == nil {
			err = d.NackAfter(time.Duration(attempt/4) * time.Hour)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	r = start(t, srv.Addr(), "", "doctor", "--session", "50s", "--older", "0")
	if got := r.wait(); got != exitFindings {
		t.Errorf("exit status %d, want %d\n%s", got, exitFindings, &r.stderr)
	}
	for _, want := range []string{
		"problem: deadlock: one waits at /locks/of-two for two, two waits at /locks/of-three for three, three waits at /locks/of-one for one\n",
		"problem: mixed kinds: /mixed is used as election and lock: ",
		"problem: dead letters: /queue has 1: ",
		"problem: poison: /delayed has an element that was received 5 times, and is not done: ",
		"problem: poison: /poisoned has an element that was received 6 times, and is not done: ",
		"problem: orphan: /mixed/" + guid + "-lock-0000000000 holds, and belongs to no session: ",
		"problem: sequence numbers: those of /old have come to 2100000000 of 2147483647",
		"note: leftover: /gone-consumers ",
		"note: servers: 1 server in the connect string",
	} {
		if strings.Count(r.stdout.String(), want) != 1 {
			t.Errorf("does not tell once: %s\n%s", want, &r.stdout)
		}
	}
	if got := r.stdout.String(); strings.Count(got, "poison: ") != 2 {
		t.Errorf("poison:\n%s", got)
	}
	if got := r.stdout.String(); strings.Contains(got, "outside") || strings.Count(got, "deadlock") != 1 {
		t.Errorf("takes for a deadlock what is none:\n%s", got)
	}
	r = start(t, srv.Addr(), "", "doctor", "/old")
	r.wait()
	if got := r.stdout.String(); strings.Contains(got, "deadlock") || !strings.Contains(got, "/old") {
		t.Errorf("below /old there is\n%s", got)
	}
	r = start(t, srv.Addr(), "", "doctor", "/lod")
	r.wait()
	if got := r.stdout.String(); !strings.Contains(got, "note: missing: /lod does not exist") || !strings.Contains(got, "looked at: 0 znodes, ") {
		t.Errorf("at a path that does not exist there is\n%s", got)
	}
}

// tells starts a server that answers four-letter words, and does nothing else.
func tells(t *testing.T, words map[string]string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			word := make([]byte, 4)
			io.ReadFull(conn, word)
			fmt.Fprint(conn, words[string(word)])
			conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestDoctorJudgesTheSettingsOfTheServers(t *testing.T) {
	srv := zktest.Start(t, zktest.WithSessionTimeouts(time.Millisecond, 40*time.Second))
	one := tells(t, map[string]string{
		"conf": "clientPort=2181\ntickTime=2000\nmaxClientCnxns=5\nminSessionTimeout=3000\nsyncLimit=50\n",
		"srvr": "Zookeeper version: 3.8.0\nMode: standalone\n",
		"dump": "SessionTracker dump:\nephemeral nodes dump:\nSessions with Ephemerals (0):\n",
	})
	other := tells(t, map[string]string{
		"conf": "clientPort=2181\ntickTime=2000\nminSessionTimeout=4000\nsyncLimit=5\n",
		"srvr": "This ZooKeeper instance is not currently serving requests\n",
	})
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		fmt.Fprint(w, `{"jute.maxbuffer": "4096", "command": "system_properties"}`)
	}))
	defer admin.Close()
	_, port, _ := net.SplitHostPort(admin.Listener.Addr().String())
	if err := zsync.NewMutex(named(t, srv, "holder"), "/p").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := start(t, srv.Addr()+","+one+","+other, "", "doctor", "--session", "60s", "--admin-port", port)
	if got := r.wait(); got != exitFindings {
		t.Errorf("exit status %d, want %d\n%s", got, exitFindings, &r.stderr)
	}
	for _, want := range []string{
		"note: session timeout: 1m0s was asked for, the servers grant 40s\n",
		"syncLimit × tickTime is 1m40s, more than the session timeout of 40s, and than 10s",
		": minSessionTimeout is 3s, less than two ticks of 2s",
		": maxClientCnxns is 5",
		one + " is standalone, though the connect string names 3 servers",
		"problem: tickTime is 20 at " + srv.Addr() + " and 2000 at " + one + ": what is granted depends on which of them leads",
		"problem: minSessionTimeout is 1 at " + srv.Addr() + " and 4000 at " + other,
		"problem: " + other + " serves nobody: it has no quorum",
		"problem: orphan: at /p is a contender of session 0x",
		"problem: " + one + ": jute.maxbuffer is 4096, less than 1048575",
		"note: clocks: that of " + one + " is -1h0m",
	} {
		if strings.Count(r.stdout.String(), want) != 1 {
			t.Errorf("does not tell once: %s\n%s", want, &r.stdout)
		}
	}
	// Ten seconds are right for every session timeout.
	r = start(t, srv.Addr()+","+other, "", "doctor", "--session", "3s", "--admin-port", port)
	if r.wait(); strings.Contains(r.stdout.String(), "syncLimit × tickTime") {
		t.Errorf("doctor refuses the usual syncLimit:\n%s", &r.stdout)
	}
}

// A dump that is not whole shows nothing about the sessions that it lacks.
func TestDoctorFindsNoOrphansInAPartOfADump(t *testing.T) {
	const head = "SessionTracker dump:\nephemeral nodes dump:\nSessions with Ephemerals (2):\n0x1:\n"
	for name, dump := range map[string]func(conn net.Conn){
		"slow": func(conn net.Conn) {
			fmt.Fprint(conn, head)
			io.Copy(io.Discard, conn) // until doctor gives up
		},
		"large": func(conn net.Conn) { fmt.Fprint(conn, head+strings.Repeat("\t/a/znode\n", 1<<19)) },
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				m := machineOf(t)
				m.lookup = func(context.Context, string) ([]string, error) { return []string{"10.0.0.1"}, nil }
				m.dial = func(network, addr string, limit time.Duration) (net.Conn, error) {
					if addr != "zk9:2181" {
						return srv.Dial(network, addr, limit)
					}
					ours, theirs := net.Pipe()
					go func() {
						defer theirs.Close()
						word := make([]byte, 4)
						io.ReadFull(theirs, word)
						switch string(word) {
						case "srvr":
							fmt.Fprint(theirs, "Zookeeper version: 3.8.0\nMode: leader\n")
						case "dump":
							dump(theirs)
						}
					}()
					return ours, nil
				}
				if err := zsync.NewMutex(named(t, srv, "holder"), "/p").Lock(t.Context()); err != nil {
					t.Fatal(err)
				}
				r := start(t, srv.Addr()+",zk9", "", "doctor", "--admin-port", "0")
				r.wait()
				if out := r.stdout.String(); strings.Contains(out, "orphan:") || !strings.Contains(out, "zk9: no search for orphans: ") || !strings.Contains(out, "looked at") {
					t.Errorf("%s\n%s", &r.stdout, &r.stderr)
				}
			})
		})
	}
}

func TestDoctorAsksEachServerThatAConnectStringCanName(t *testing.T) {
	for server, want := range map[string]string{
		"zk1": "zk1:2181", "zk1:2182": "zk1:2182", "[::1]": "[::1]:2181", "[::1]:2182": "[::1]:2182", "10.0.0.1": "10.0.0.1:2181",
	} {
		if got := net.JoinHostPort(hostAndPort(server)); got != want {
			t.Errorf("%s: %s, want %s", server, got, want)
		}
	}
}

func TestDoctorThatIsEndedDoesNotSayThatTheServersDoNotAnswer(t *testing.T) {
	srv := serve(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan struct{}, 10)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			word := make([]byte, 4)
			io.ReadFull(conn, word)
			if string(word) != "conf" {
				conn.Close() // it serves no sessions
				continue
			}
			defer conn.Close()
			asked <- struct{}{}
		}
	}()
	r := start(t, srv.Addr()+","+l.Addr().String(), "", "doctor")
	<-asked
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "")
}

func TestDoctorTellsAClockThatIsAhead(t *testing.T) {
	for ahead, want := range map[time.Duration]string{0: "[]", time.Second: "[]", time.Hour: "[note: clocks: that of a server is 1h0m0s ahead"} {
		d := doctor{sessions: map[string]string{}}
		since := time.Now().Add(ahead)
		if err := d.contender(t.Context(), look.Line{Path: "/p", Kind: "lock", Node: "n", Session: "0x1", Since: &since}); err != nil {
			t.Fatal(err)
		}
		if d.clock(); !strings.HasPrefix(fmt.Sprint(d.findings), want) {
			t.Errorf("%v ahead: %v", ahead, d.findings)
		}
	}
}

func TestTheCommandSaysSinceWhenAHolderHoldsAndNotSinceWhenItWaited(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMutex(named(t, srv, "first"), "/p")
		if err := m.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "lock", "/p", "--owner", "second", "--", does(t, func(p *memoryProcess) int { p.forever(); return 0 }))
		contenders(t, m, 2)
		time.Sleep(161 * time.Second)
		if err := m.Unlock(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		since := time.Now().Add(-10 * time.Second).Local().Format(time.DateTime)
		for args, want := range map[string]string{"ls /p": `lock +1 +10s +- +- +second`, "status /p": `holds +second +` + since, "lock -n /p -- true": `held by second since ` + since} {
			r := start(t, srv.Addr(), "", strings.Fields(args)...)
			if r.wait(); !regexp.MustCompile(want).MatchString(r.stdout.String() + r.stderr.String()) {
				t.Errorf("%s: no %s in\n%s%s", args, want, &r.stdout, &r.stderr)
			}
		}
	})
}

// A deadlock is one whatever the locks are called.
func TestDoctorFindsADeadlockOfLocksThatAreCalledAsPartsAre(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		a, b, ctx := named(t, srv, "a"), named(t, srv, "b"), t.Context()
		const one, other = "/md5/deb315576356492b9a38f45828136a03", "/orders-live"
		if err := errors.Join(zsync.NewMutex(a, "/orders").Lock(ctx), zsync.NewMutex(a, one).Lock(ctx), zsync.NewMutex(b, other).Lock(ctx)); err != nil {
			t.Fatal(err)
		}
		go zsync.NewMutex(a, other).Lock(ctx)
		go zsync.NewMutex(b, one).Lock(ctx)
		time.Sleep(time.Minute)
		r := start(t, srv.Addr(), "", "doctor", "--admin-port", "0")
		want := "problem: deadlock: a waits at " + other + " for b, b waits at " + one + " for a\n"
		if r.wait(); strings.Count(r.stdout.String(), want) != 1 {
			t.Errorf("no %s\n%s%s", want, &r.stdout, &r.stderr)
		}
		r = start(t, srv.Addr(), "", "ls")
		if r.wait(); !strings.Contains(r.stdout.String(), one+" ") || !strings.Contains(r.stdout.String(), other+" ") || !strings.Contains(r.stdout.String(), "/orders ") {
			t.Errorf("ls shows\n%s", &r.stdout)
		}
	})
}

func TestDoctorFindsADeadlockOfNestedLocks(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMutex(connect(t, srv), "/x")
		// zsync lock outer -- zsync lock inner -- echo, each in a session of its own.
		both := make(chan struct{})
		nested := func(name, outer, inner string) {
			holds := make(chan struct{})
			start(t, srv.Addr(), "", "lock", outer, "--owner", name, "--", does(t, func(p *memoryProcess) int {
				close(holds)
				p.until(both)
				in := start(t, srv.Addr(), "", "env:"+withinVariable+"="+p.getenv(withinVariable), "lock", inner, "--owner", "within "+name, "--", "echo")
				p.until(in.ended)
				return in.code
			}))
			<-holds
		}
		nested("a", "/x", "/y")
		nested("b", "/y", "/x")
		close(both)
		time.Sleep(time.Minute)
		if got := contenders(t, m, 2); got[0].Owner != "a" || !strings.HasPrefix(got[1].Owner, "within b within 0x") {
			t.Errorf("contenders: %+v", got)
		}
		const want = "problem: deadlock: a runs within a, within a waits at /y for b, b runs within b, within b waits at /x for a\n"
		r := start(t, srv.Addr(), "", "doctor", "--admin-port", "0")
		if r.wait(); strings.Count(r.stdout.String(), want) != 1 || strings.Count(r.stdout.String(), "deadlock") != 1 {
			t.Errorf("no %s\n%s%s", want, &r.stdout, &r.stderr)
		}
		r = start(t, srv.Addr(), "", "lock", "-n", "/y", "--", "true")
		if r.wait(); !strings.Contains(r.stderr.String(), "held by b since") || !strings.Contains(r.stderr.String(), "waiting ahead: 1") {
			t.Errorf("%s", &r.stderr)
		}
	})
}

// A command may start many at once, as a service does. That one of them waits stops none of the
// others.
func TestNestedLocksThatGoOnAreNoDeadlock(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		b := named(t, srv, "b")
		one, other := zsync.NewMutex(b, "/one"), zsync.NewMutex(b, "/other")
		if err := one.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "elect", "/service", "--owner", "service", "--", does(t, func(p *memoryProcess) int {
			within := "env:" + withinVariable + "=" + p.getenv(withinVariable)
			start(t, srv.Addr(), "", within, "lock", "/other", "--owner", "works", "--", does(t, func(p *memoryProcess) int { p.forever(); return 0 }))
			start(t, srv.Addr(), "", within, "lock", "/one", "--owner", "waits", "--", "true")
			p.forever()
			return 0
		}))
		contenders(t, one, 2)
		contenders(t, other, 1)
		go other.Lock(t.Context())
		time.Sleep(time.Minute)
		r := start(t, srv.Addr(), "", "doctor", "--admin-port", "0")
		if r.wait(); strings.Contains(r.stdout.String(), "deadlock") || !strings.Contains(r.stdout.String(), "looked at") {
			t.Errorf("%s%s", &r.stdout, &r.stderr)
		}
	})
}

func TestAListThatIsWatchedSaysOnceThatTheServersAreGoneAndThatTheyAreBack(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "ls", "--watch")
		time.Sleep(time.Minute)
		if got := r.stderr.String(); got != "" {
			t.Errorf("all is well, and it says %q", got)
		}
		srv.Stop()
		gone := time.Now()
		time.Sleep(2 * time.Hour)
		messages := regexp.MustCompile(`^zsync: the servers have not answered since (\S+ \S+): what is shown is old\n$`)
		m := messages.FindStringSubmatch(r.stderr.String())
		if m == nil {
			t.Fatalf("it says %q", &r.stderr)
		}
		if at, err := time.ParseInLocation(time.DateTime, m[1], time.Local); err != nil || at.Before(gone.Add(-2*time.Second)) || at.After(gone.Add(3*time.Second)) {
			t.Errorf("it says %q; the servers have stopped at %v", m[0], gone)
		}
		before := len(r.stderr.String())
		srv.Restart()
		time.Sleep(10 * time.Minute)
		if got := r.stderr.String()[before:]; !regexp.MustCompile(`^zsync: the servers answer again, after (1h59|2h\d+)m\d+s\n$`).MatchString(got) {
			t.Errorf("when they are back it says %q", got)
		}
		r.signal(syscall.SIGTERM)
		r.wait()
		if got := r.stderr.String(); strings.Count(got, "\n") > 3 {
			t.Errorf("in all it says %q", got)
		}
	})
}

func TestListTellsGroupsAndAsksABigTreeForLittle(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := named(t, srv, "holder"), t.Context()
		g := zsync.NewGroup[string](s, "/services/billing")
		for _, id := range []string{"a", "b"} {
			if _, err := g.Join(ctx, id, "info of "+id); err != nil {
				t.Fatal(err)
			}
		}
		const n = 300
		m := zsync.NewMap[int](s, "/map")
		for i := range n {
			if err := m.Store(ctx, fmt.Sprint(i), i); err != nil {
				t.Fatal(err)
			}
			if err := zsync.NewValue[int](s, fmt.Sprint("/values/", i)).Store(ctx, i); err != nil {
				t.Fatal(err)
			}
		}
		var asked atomic.Int64
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op != zktest.OpPing && r.Op != zktest.OpConnect && r.Session != s.ID() {
				asked.Add(1)
			}
			return zktest.Pass
		})
		r := start(t, srv.Addr(), "", "status", "/")
		if status := r.wait(); status != 0 || strings.Count(r.stdout.String(), "/values/") != n {
			t.Errorf("exit status %d, and %d values\n%s", status, strings.Count(r.stdout.String(), "/values/"), &r.stderr)
		}
		if got := r.stdout.String(); !regexp.MustCompile(`\n/map +map +- +300 keys `).MatchString(got) || strings.Contains(got, "/map/") {
			t.Errorf("a map is one line, and its entries are none:\n%s", got)
		}
		// A znode costs a listing, and one that has data and is no entry a read. A value that was
		// written just now has a neighbour with receipts, which might be a lock of that name.
		if got := asked.Load(); got < 3*n || got > 4*n+100 {
			t.Errorf("%d requests for %d values, and a map of as many keys", got, n)
		}
		r = start(t, srv.Addr(), "", "ls", "/services")
		r.wait()
		if !regexp.MustCompile(`\n/services/billing +group +2 +\d+s +- +- +a +-\n$`).MatchString(r.stdout.String()) {
			t.Errorf("ls shows\n%s", &r.stdout)
		}
	})
}

func TestPermitsAreADeadlockOnlyIfAllHoldersAreStuck(t *testing.T) {
	since := time.Now()
	lines := func(kind, path string, holders, waiters string) (ls []look.Line) {
		for _, h := range strings.Fields(holders) {
			ls = append(ls, look.Line{Path: path, Kind: kind, Holding: true, Owner: h, Session: h, Since: &since})
		}
		for _, w := range strings.Fields(waiters) {
			ls = append(ls, look.Line{Path: path, Kind: kind, Owner: w, Session: w, Since: &since})
		}
		return ls
	}
	for _, tt := range []struct {
		name string
		all  [][]look.Line
		want []string
	}{
		{"two locks", [][]look.Line{lines("lock", "/a", "x", "y"), lines("lock", "/b", "y", "x z")}, []string{"x waits at /b for y, y waits at /a for x"}},
		{"a chain", [][]look.Line{lines("lock", "/a", "x", "y"), lines("lock", "/b", "y", "z")}, nil},
		{"one permit is in hand", [][]look.Line{lines("semaphore", "/s", "x free", "y"), lines("lock", "/b", "y", "x")}, nil},
		{"no permit is", [][]look.Line{lines("semaphore", "/s", "x", "y"), lines("lock", "/b", "y", "x")}, []string{"x waits at /b for y, y waits at /s for x"}},
		{"its own", [][]look.Line{lines("lock", "/a", "x", "x")}, nil},
	} {
		var g look.Graph
		for _, ls := range tt.all {
			g.Add(ls)
		}
		var got []string
		for _, c := range g.Circles() {
			got = append(got, g.Describe(c))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A partition and a schedule have a row in each view, as a lock has.
func TestAPartitionAndAScheduleHaveARowAndAFinding(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := named(t, srv, "me"), t.Context()
		split, leave := context.WithCancel(ctx)
		left := make(chan error, 1)
		go func() {
			left <- zsync.NewPartition(s, "/billing", zsync.WithMember("first")).Run(split, []string{"a", "b", "c"}, func(ctx context.Context, _ string) error { <-ctx.Done(); return nil })
		}()
		at := time.Date(2030, 6, 1, 12, 0, 0, 0, time.Local)
		if _, err := zsync.NewSchedule(s, "/nightly").Do(ctx, at, func(context.Context) error { return errors.New("disk full") }); err == nil {
			t.Error("a failure is none")
		}
		time.Sleep(time.Minute)
		show := func(args ...string) string {
			r := start(t, srv.Addr(), "", args...)
			r.wait()
			return r.stdout.String()
		}
		const failed = "failed: that of 2030-06-01 12:00:00, attempt 1, me: disk full"
		for _, want := range []string{`(?m)^/billing +partition +1 +1m00s +- +- +first +3 shards$`, `(?m)^/nightly +schedule +.* ` + failed + `$`} {
			if out := show("ls"); !regexp.MustCompile(want).MatchString(out) || strings.Contains(out, "/billing/plan") || strings.Contains(out, "/billing/members") {
				t.Errorf("ls prints\n%s", out)
			}
		}
		if out := show("status", "/billing"); !strings.Contains(out, "owns 3 shards") {
			t.Errorf("status prints\n%s", out)
		}
		if out := show("doctor", "--admin-port", "0"); !strings.Contains(out, "problem: schedule: /nightly "+failed+"\n") || strings.Contains(out, "partition:") {
			t.Errorf("doctor prints\n%s", out)
		}
		leave()
		<-left
		if out := show("doctor", "--admin-port", "0"); !strings.Contains(out, "note: partition: /billing has 3 shards, 3 without an owner") {
			t.Errorf("doctor prints\n%s", out)
		}
	})
}
