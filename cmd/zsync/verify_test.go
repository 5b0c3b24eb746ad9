//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/internal/trace"
)

// Processes that take turns write traces, one of them is killed while it holds
// the lock, and verify finds nothing wrong. When one line is changed so that two
// held the lock it finds that.
func TestVerifyPassesRealProcessesAndFindsAPlantedDoubleHold(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	dir := t.TempDir()
	shared := filepath.Join(dir, "shared")
	var runs []*run
	for i := range 4 {
		name := shared
		if i >= 2 {
			name = filepath.Join(dir, fmt.Sprint(i))
		}
		runs = append(runs, start(t, srv.Addr(), "", "--trace", name, "--owner", fmt.Sprint("worker ", i), "--session", "10s",
			"lock", "/m", "--", "sh", "-c", `test -n "$ZSYNC_TOKEN" && sleep 0.05`))
	}
	for _, r := range runs {
		r.wantExit(0)
	}
	victim := start(t, srv.Addr(), "", "--trace", filepath.Join(dir, "victim"), "lock", "/m", "--", "sh", "-c", "echo here; exec sleep 600")
	victim.awaitOutput("here")
	await(t, func() bool { // the trace is written behind the grant
		text, _ := os.ReadFile(filepath.Join(dir, "victim"))
		return strings.Contains(string(text), `"grant"`)
	}, "the grant in the trace")
	victim.signal(syscall.SIGKILL)
	<-victim.ended
	expireAll(srv) // as when the servers have heard nothing of it for its timeout
	start(t, srv.Addr(), "", "--trace", filepath.Join(dir, "next"), "lock", "/m", "--", "true").wantExit(0)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 5 {
		t.Fatal(names, err)
	}
	r := start(t, "", "", append([]string{"verify"}, names...)...)
	r.wantExit(0)
	for _, want := range []string{"6 traces", "6 holds of 1 path", "held to the end of its trace", "no violation"} {
		if !strings.Contains(r.stdout.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, r.stdout.String())
		}
	}

	// The last one says that it had the lock a minute before.
	next := filepath.Join(dir, "next")
	text, err := os.ReadFile(next)
	if err != nil {
		t.Fatal(err)
	}
	var planted strings.Builder
	for line := range strings.Lines(string(text)) {
		var l trace.Record
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		l.Time = l.Time.Add(-time.Minute)
		if l.Event == trace.Release {
			l.Time = l.Time.Add(2 * time.Minute)
		}
		out, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&planted, "%s\n", out)
	}
	if err := os.WriteFile(next, []byte(planted.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	r = start(t, "", "", append([]string{"verify"}, names...)...)
	r.wantExit(1)
	if !strings.Contains(r.stdout.String(), "VIOLATION  /m: two holders") {
		t.Errorf("the report:\n%s", r.stdout.String())
	}

	// A line is taken away: nothing can be vouched for.
	lines := strings.SplitAfter(string(text), "\n")
	if err := os.WriteFile(next, []byte(strings.Join(append(lines[:1:1], lines[2:]...), "")), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "", "", append([]string{"verify"}, names...)...).wantExit(2)
	start(t, "", "no trace\n", "verify", "-").wantExit(exitConfig)
	start(t, "", "", "verify", filepath.Join(dir, "none")).wantExit(exitConfig)
	start(t, "", "", "verify").wantExit(exitUsage)
	start(t, srv.Addr(), "", "--trace", filepath.Join(dir, "none", "file"), "lock", "/m", "--", "true").wantExit(exitConfig)
}

// wantExit waits for the end of r.
func (r *run) wantExit(status int) {
	r.t.Helper()
	if got := r.wait(); got != status {
		r.t.Fatalf("%v: exit status %d, want %d\n%s%s", r.args, got, status, r.stdout.String(), r.stderr.String())
	}
}

func TestATraceThatCannotBeWrittenIsToldAndEndsNothing(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		need.Missing(t, "/dev/full", err.Error())
	}
	srv := serve(t)
	r := start(t, srv.Addr(), "", "--trace", "/dev/full", "lock", "/m", "--", "echo", "done")
	r.want(0, "done\n")
	if got := r.stderr.String(); strings.Count(got, "zsync: --trace: lines are missing: ") != 1 || !strings.Contains(got, "no space left") {
		t.Errorf("got %q", got)
	}
}
