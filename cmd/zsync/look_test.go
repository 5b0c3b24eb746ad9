//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// named opens a session that calls itself so.
func named(t *testing.T, srv *zktest.Server, name string, opts ...zsync.Option) *zsync.Session {
	t.Helper()
	s, err := zsync.Connect(t.Context(), srv.Addr(), append(opts, zsync.WithOwner(name))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestListShowsEverythingBelowAPath(t *testing.T) {
	srv := zktest.Start(t)
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
	jobs := rows("/jobs/data/rw", ` read-write lock 1 \d+s - - holder -`) + rows("/jobs/last", ` data - - - - - 7`) +
		rows("/jobs/nightly", ` lock 1 \d+s 2 \d+s holder -`) + rows("/jobs/once", ` once - - - - - done`) + rows("/jobs/plan", ` schedule - - - - - last done: that of 2030-.*`) + rows("/jobs/work", ` queue - - - - - 2 elements`)
	const head = `^PATH +KIND +HOLD +FOR +WAIT +FOR +OWNER +STATE\n`
	all := rows("/free", ` queue - - - - - 1 element`) + jobs + rows("/pool", ` semaphore 2 \d+s - - holder -`) + rows("/secret", ` - - - - - - not ours to read`)
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
	conn, _, err := zk.Connect([]string{srv.Addr()}, 10*time.Second, zk.WithLogInfo(false))
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
	create("/gone-claims", 0)
	create("/old", 0)
	srv.SetSequence("/old", 2_100_000_000)
	create("/old/"+guid+"-lock-", zk.FlagEphemeral|zk.FlagSequence)
	q := zsync.NewQueue[int](sessions[0], "/queue")
	if err := zsync.NewQueue[string](sessions[0], "/queue").Send(ctx, "no number"); err != nil {
		t.Fatal(err)
	}
	q.TryRecv(ctx)

	r = start(t, srv.Addr(), "", "doctor", "--session", "5s")
	if got := r.wait(); got != exitFindings {
		t.Errorf("exit status %d, want %d\n%s", got, exitFindings, &r.stderr)
	}
	for _, want := range []string{
		"problem: deadlock: one waits at /locks/of-two for two, two waits at /locks/of-three for three, three waits at /locks/of-one for one\n",
		"problem: mixed kinds: /mixed is used as election and lock: ",
		"problem: dead letters: /queue has 1: ",
		"problem: sequence numbers: those of /old have come to 2100000000 of 2147483647",
		"note: leftover: /gone-claims ",
		"note: servers: 1 server in the connect string",
	} {
		if strings.Count(r.stdout.String(), want) != 1 {
			t.Errorf("does not tell once: %s\n%s", want, &r.stdout)
		}
	}
	if got := r.stdout.String(); strings.Contains(got, "outside") || strings.Count(got, "deadlock") != 1 {
		t.Errorf("takes for a deadlock what is none:\n%s", got)
	}
	r = start(t, srv.Addr(), "", "doctor", "/old")
	r.wait()
	if got := r.stdout.String(); strings.Contains(got, "deadlock") || !strings.Contains(got, "/old") {
		t.Errorf("below /old there is\n%s", got)
	}
}

func TestDoctorJudgesTheSettingsOfTheServers(t *testing.T) {
	srv := zktest.Start(t, zktest.WithSessionTimeouts(time.Millisecond, 4*time.Second))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // a server that tells its settings and does nothing else
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "clientPort=2181\ntickTime=2000\nmaxClientCnxns=5\nminSessionTimeout=3000\nsyncLimit=5\n")
			conn.Close()
		}
	}()
	r := start(t, srv.Addr()+","+l.Addr().String(), "", "doctor", "--session", "10s")
	if got := r.wait(); got != exitFindings {
		t.Errorf("exit status %d, want %d\n%s", got, exitFindings, &r.stderr)
	}
	for _, want := range []string{
		"note: session timeout: 10s was asked for, the servers grant 4s\n",
		"syncLimit × tickTime is 10s, more than the session timeout of 4s",
		": minSessionTimeout is 3s, less than two ticks of 2s",
		": maxClientCnxns is 5",
	} {
		if strings.Count(r.stdout.String(), want) != 1 {
			t.Errorf("does not tell once: %s\n%s", want, &r.stdout)
		}
	}
}
