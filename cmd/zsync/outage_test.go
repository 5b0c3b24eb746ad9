//go:build unix

package main

import (
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A command that waits or works for long reports an outage once, and its end.
func TestEachCommandThatWaitsReportsAnOutageOnceAndItsEnd(t *testing.T) {
	began := regexp.MustCompile(`^zsync: no connection to any server since 20\S+ \S+(, and the hold is certain until \d\d:\d\d:\d\d)?: \S+: dial tcp \S+ connect: connection refused$`)
	ended := regexp.MustCompile(`^zsync: connected again after \d+s$`)
	for name, line := range map[string]string{
		"the wait for a lock":        "lock /m -- true",
		"the wait for permits":       "semaphore -n 1 /s -- true",
		"the wait for leadership":    "elect /e -- true",
		"leadership":                 "elect /free --again -- forever",
		"the wait for another value": "value watch /v",
		"the wait for elements":      "queue recv /q --follow",
		"the wait for a member":      "group watch /g",
		"a timetable":                "schedule run /t --every 24h -- true",
		"a hold":                     "lock /free -- forever",
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				// The other holders' sessions last longer than the outage, too.
				s, ctx := connect(t, srv), t.Context()
				harness.Must(t, zsync.NewMutex(s, "/m").Lock(ctx))
				harness.Must(t, zsync.NewSemaphore(s, "/s", 1).Acquire(ctx, 1))
				harness.Must(t, zsync.NewElection(s, "/e").Campaign(ctx))
				args := strings.Fields(line)
				if i := slices.Index(args, "forever"); i >= 0 {
					args[i] = does(t, func(p *memoryProcess) int { p.forever(); return 0 })
				}
				r := start(t, srv.Addr(), "", append(args, "--session", "60")...)
				time.Sleep(time.Minute)
				if text := r.stderr.String(); text != "" {
					t.Errorf("before the outage it says %s", text)
				}
				srv.Stop()
				time.Sleep(15 * time.Second)
				srv.Restart()
				time.Sleep(time.Minute)
				lines := strings.Split(strings.TrimSuffix(r.stderr.String(), "\n"), "\n")
				if len(lines) != 2 || !began.MatchString(lines[0]) || !ended.MatchString(lines[1]) {
					t.Errorf("in an outage of 15 seconds it says\n%s", &r.stderr)
				}
				if holds := strings.Contains(lines[0], "the hold is certain"); holds != strings.Contains(line, "/free") {
					t.Errorf("it says %s", lines[0])
				}
				r.signal(syscall.SIGTERM)
				r.wait()
			})
		})
	}
}

func TestACommandThatShowsAnOutageItselfShowsItOnce(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "ls", "--watch", "--interval", "1", "--session", "60")
		time.Sleep(time.Minute)
		srv.Stop()
		time.Sleep(15 * time.Second)
		srv.Restart()
		time.Sleep(time.Minute)
		if text := r.stderr.String(); strings.Count(text, "\n") != 2 || strings.Contains(text, "no connection") {
			t.Errorf("it says\n%s", text)
		}
		r.signal(syscall.SIGTERM)
		r.wait()
	})
}

// A command that only looks does not wait in silence, either.
func TestEachCommandThatLooksReportsThatNoServerAnswers(t *testing.T) {
	for _, line := range []string{"status /m", "ls", "ls --watch", "ui --listen 127.0.0.1:0"} {
		t.Run(line, func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				srv.Stop()
				r := start(t, srv.Addr(), "", strings.Fields(line)...)
				time.Sleep(5 * time.Second)
				if text := r.stderr.String(); !strings.HasPrefix(text, "zsync: no connection to any server since 20") || strings.Count(text, "\n") != 1 {
					t.Errorf("without a server it says %q", text)
				}
				if status := r.wait(); status != exitServers {
					t.Errorf("exit status %d: %s", status, &r.stderr)
				}
			})
		})
	}
}

// A member that may not join again is missing from the list while its command runs, and the user must learn of it.
func TestAMemberThatCannotJoinAgainSaysSo(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "group", "join", "/g", "a")
		time.Sleep(90 * time.Second) // not at a full minute: then the server may delete the empty /g first
		harness.SetACL(t, srv, "/g", zk.WorldACL(zk.PermRead))
		expireAll(srv)
		time.Sleep(time.Minute)
		if text := r.stderr.String(); !strings.HasPrefix(text, "zsync: /g: a is no longer a member: ") || strings.Count(text, "\n") != 1 {
			t.Errorf("it says\n%s", text)
		}
		r.signal(syscall.SIGTERM)
		r.wait()
		_, err := connect(t, srv).Txn(t.Context(), &zk.CreateRequest{Path: "/theirs", Acl: zk.WorldACL(zk.PermRead)})
		harness.Must(t, err)
		refused := start(t, srv.Addr(), "", "group", "join", "/theirs", "a")
		if status := refused.wait(); status != exitRefused || strings.Count(refused.stderr.String(), "\n") != 1 {
			t.Errorf("exit status %d: %s", status, &refused.stderr)
		}
	})
}
