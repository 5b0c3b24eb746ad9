//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/zktest"
)

// terminals are windows of a tmux of the test's own.
type terminals struct {
	t      *testing.T
	socket string
	env    []string
}

func openTerminals(t *testing.T, env ...string) *terminals {
	t.Helper()
	need.Command(t, "tmux")
	x := &terminals{t, t.TempDir() + "/tmux", append(os.Environ(), append(env, "TERM=xterm", "LC_ALL=C.UTF-8")...)}
	x.tmux("-f", "/dev/null", "new-session", "-d", "-s", "s", "-n", "first", "-x", "120", "-y", "20", "sleep 3600")
	t.Cleanup(func() { x.tmux("kill-server") })
	return x
}

func (x *terminals) tmux(args ...string) string {
	x.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", x.socket}, args...)...)
	cmd.Env = x.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		x.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// open opens a terminal with a shell in it.
func (x *terminals) open(name string) {
	x.t.Helper()
	x.tmux("new-window", "-d", "-t", "s:", "-n", name, "PS1='$ ' sh")
}

// enter types a line.
func (x *terminals) enter(name, line string) {
	x.t.Helper()
	x.tmux("send-keys", "-t", "s:"+name, "-l", line)
	x.keys(name, "Enter")
}

func (x *terminals) keys(name string, keys ...string) {
	x.t.Helper()
	x.tmux(append([]string{"send-keys", "-t", "s:" + name}, keys...)...)
}

// screen is what is seen.
func (x *terminals) screen(name string) string {
	x.t.Helper()
	return x.tmux("capture-pane", "-p", "-J", "-t", "s:"+name)
}

// prompts are what the shell puts before what others print, where a command was
// typed before the shell asked for it.
var prompts = regexp.MustCompile(`(?m)^(\$ )+`)

// await waits until what is seen, without prompts, matches.
func (x *terminals) await(name, pattern string) string {
	x.t.Helper()
	last := ""
	// real time: tmux does not say when a terminal changes
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = prompts.ReplaceAllString(x.screen(name), ""); regexp.MustCompile(pattern).MatchString(last) {
			return last
		}
	}
	x.t.Fatalf("terminal %s never shows %s:\n%s", name, pattern, last)
	return ""
}

// Each takes a minute of real time: a session of 20 s is cut off after 40 s.
// TestCommandIsGoneBeforeAnotherHoldsWhateverTimeoutTheServersGrant is the same in virtual time.
func TestInTwoTerminalsTheCommandOfTheLostHolderIsGoneBeforeTheOtherStarts(t *testing.T) {
	if !harness.Long() {
		t.Skip("ZSYNC_TEST_LONG is not set: in terminals, in real time, the command of the holder that is cut off is gone before that of the next begins")
	}
	t.Parallel()
	for name, asked := range map[string]string{"above what is granted": "60", "at what is granted": "20", "below what is granted": "2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steadily(t, func() string {
				dir := t.TempDir()
				x := openTerminals(t, "Z="+binary())
				x.open("server")
				x.enter("server", "$Z server --listen 127.0.0.1:0 --min-session 20 --max-session 20 --partition-every 40")
				seen := x.await("server", `serving on \S+,`)
				servers := regexp.MustCompile(`serving on (\S+),`).FindStringSubmatch(seen)[1]
				// It does not stop when told, and writes down that it is there.
				const works = `trap "" TERM HUP; echo $$ >pid; echo holds now; while :; do date +%s.%N >>beat; sleep 0.01; done`
				for _, terminal := range []string{"one", "two"} {
					x.open(terminal)
					x.enter(terminal, fmt.Sprintf("cd %s; export ZSYNC_SERVERS=%s", dir, servers))
				}
				x.enter("one", "$Z lock /p --session "+asked+" -- sh -c '"+works+"'; echo exit $?")
				x.await("one", `(?m)^holds now$`)
				x.enter("two", `$Z lock -v /p --session `+asked+` -- sh -c 'date +%s.%N >begun; kill -0 $(cat pid) && echo it is there || echo it is gone; tail -n 1 beat >last'; echo exit $?`)
				x.await("two", `waiting for \d+s: held by`)
				x.await("server", `cut off`)
				if got := x.await("two", `(?m)^exit \d+$`); !strings.Contains(got, "it is gone") || !strings.Contains(got, "exit 0") {
					return "terminal two shows\n" + got
				}
				last, _ := os.ReadFile(dir + "/last")
				begun, _ := os.ReadFile(dir + "/begun")
				if len(last) == 0 || string(last) >= string(begun) {
					return fmt.Sprintf("the first was there at %s, and the second began at %s", last, begun)
				}
				if got := x.await("one", `(?m)^exit \d+$`); !strings.Contains(got, fmt.Sprintf("exit %d", exitLost)) {
					return "terminal one shows\n" + got
				}
				return ""
			})
		})
	}
}

func TestInTwoTerminalsTheCommandOfAKilledHolderIsGoneBeforeTheOtherStarts(t *testing.T) {
	t.Parallel()
	// Not so short that a process which gets no processor for seconds loses its session.
	srv := zktest.Start(t, zktest.WithSessionTimeouts(20*time.Second, 20*time.Second))
	x := openTerminals(t, "Z="+binary(), "ZSYNC_SERVERS="+srv.Addr())
	dir := t.TempDir()
	for _, terminal := range []string{"one", "two"} {
		x.open(terminal)
		x.enter(terminal, "cd "+dir)
	}
	x.enter("one", `$Z lock /p -- sh -c 'echo $$ >pid; echo $PPID >zsync; echo holds now; trap "" TERM HUP; while :; do sleep 0.01; done'; echo exit $?`)
	x.await("one", `(?m)^holds now$`)
	x.enter("two", `$Z lock -v /p -- sh -c 'kill -0 $(cat pid) && echo it is there || echo it is gone'; echo exit $?`)
	x.await("two", `waiting for \d+s: held by`)
	x.enter("two", "") // its terminal is in the way of nothing
	pidIn := func(file string) (pid int) {
		t.Helper()
		data, err := os.ReadFile(dir + file)
		if err == nil {
			_, err = fmt.Sscan(string(data), &pid)
		}
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	holder := srv.Sessions()[0]
	syscall.Kill(pidIn("/zsync"), syscall.SIGKILL)
	began := time.Now()
	wantEnded(t, pidIn("/pid"))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the command runs for %v after zsync was killed, longer than the session lasts", took)
	}
	srv.Expire(holder) // as when the 20 seconds have passed
	if got := x.await("two", `(?m)^exit \d+$`); !strings.Contains(got, "it is gone") {
		t.Errorf("terminal two shows\n%s", got)
	}
	x.await("one", fmt.Sprintf(`(?m)^exit %d$`, 128+int(syscall.SIGKILL)))
}

func TestTopShowsWhoWaitsLongestFirstAndObeysItsKeys(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	holder, ctx := named(t, srv, "the holder"), t.Context()
	held := zsync.NewMutex(holder, "/jobs/b")
	if err := errors.Join(held.Lock(ctx), zsync.NewMutex(holder, "/jobs/a").Lock(ctx), zsync.NewMutex(holder, "/jobs/c").Lock(ctx)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/jobs/b", "/jobs/c"} {
		m := zsync.NewMutex(named(t, srv, "waiter of "+path), path)
		go m.Lock(ctx)
		contenders(t, m, 2)
	}
	x := openTerminals(t, "Z="+binary(), "ZSYNC_SERVERS="+srv.Addr())
	x.open("top")
	x.enter("top", "$Z top /jobs --interval 0.2; echo exit $?")
	x.await("top", `(?s)zsync top /jobs   3 lines   sorted by longest wait.*PATH.*\n/jobs/b +lock.*\n/jobs/c +lock.*\n/jobs/a +lock.*q quit`)
	x.keys("top", "Enter")
	x.await("top", `(?s)/jobs/b: lock.*holds +exclusive.*the holder.*waits +exclusive.*waiter of /jobs/b`)
	if err := held.Unlock(); err != nil { // shown without a key
		t.Fatal(err)
	}
	x.await("top", `holds +exclusive +\d+s +waiter of /jobs/b`)
	x.keys("top", "Enter", "s", "s", "s")
	x.await("top", `(?s)sorted by path.*\n/jobs/a +lock.*\n/jobs/b +lock.*\n/jobs/c +lock`)
	x.keys("top", "Down", "Down", "Down", "Enter")
	x.await("top", `/jobs/c: lock`)
	x.keys("top", "q")
	x.await("top", `(?m)exit 0$`)
	x.enter("top", "stty -a | grep -c -- '-echo '; $Z top </dev/null; echo exit $?")
	x.await("top", fmt.Sprintf(`(?s)\n0\n.*top wants a terminal.*exit %d`, exitUsage))
}

func TestTopSaysThatWhatItShowsIsOldWhenTheServersDoNotAnswer(t *testing.T) {
	now := time.Now()
	v := &view{root: "/"}
	v.set(&look.Tree{})
	for took, want := range map[time.Duration]bool{0: false, time.Second: false, time.Minute: true} {
		v.looking = now.Add(-took)
		if got := v.draw(100, 24, now); strings.Contains(got, "looking for 1m00s: what is shown is old") != want {
			t.Errorf("a look that has taken %v: %q", took, got)
		}
	}
	v.looking = time.Time{} // there is none
	if got := v.draw(100, 24, now); strings.Contains(got, "old") {
		t.Errorf("without a look: %q", got)
	}
	t.Parallel()
	srv := serve(t)
	x := openTerminals(t, "Z="+binary(), "ZSYNC_SERVERS="+srv.Addr())
	x.open("top")
	x.enter("top", "$Z top --interval 0.2")
	x.await("top", `0 lines`)
	srv.Stop()
	x.await("top", `looking for \d+s: what is shown is old`)
	srv.Restart()
	x.await("top", `0 lines   sorted by longest wait *\n`)
	x.keys("top", "q")
}

func TestTopFitsIntoItsScreen(t *testing.T) {
	v := &view{root: "/"}
	since := time.Now().Add(-time.Hour)
	tree := &look.Tree{}
	for i := range 50 {
		path := fmt.Sprintf("/p%02d", i)
		tree.Places = append(tree.Places, look.Place{Path: path, Lines: []look.Line{{
			Path: path, Kind: "lock", State: "holds", Holding: true, Owner: "an owner \x1b[2J whose name is much too long for a screen", Since: &since,
		}}})
	}
	for _, size := range [][2]int{{80, 24}, {40, 10}, {10, 4}, {1, 1}} {
		for _, key := range []string{"", "\x1b[F", "\x1b[5~", "k", "s", "\r", "\r", "\x1b[H"} {
			v.set(tree)
			v.press(key, size[1])
			out := v.draw(size[0], size[1], time.Now())
			for i, line := range strings.Split(out, "\r\n") {
				text := regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`).ReplaceAllString(line, "")
				if n := len([]rune(text)); n > size[0] || strings.Contains(text, "\x1b") {
					t.Fatalf("%v after %q: line %d has %d columns: %q", size, key, i, n, text)
				}
			}
			if n := strings.Count(out, "\r\n"); n > max(size[1]-1, 3) {
				t.Fatalf("%v after %q: %d lines", size, key, n)
			}
			if !v.detail && !strings.Contains(out, "\x1b[7m"+cut(v.marked.Path, size[0])) {
				t.Fatalf("%v after %q: %s is not seen", size, key, v.marked.Path)
			}
		}
	}
	if got := splitKeys("a\x1b[Bé\x1b[5~\x1b"); strings.Join(got, "|") != "a|\x1b[B|é|\x1b[5~|\x1b" {
		t.Errorf("%q", got)
	}
}

// A waiter for a lock may wait for ever. A candidate on standby and an idle consumer wait as they should.
func TestTopRanksWaitersForALockBeforeThoseWhoseWaitingIsNormal(t *testing.T) {
	now := time.Now()
	line := func(kind string, holding bool, ago time.Duration) look.Line {
		since := now.Add(-ago)
		return look.Line{Path: "/" + kind, Kind: kind, Holding: holding, Since: &since, Owner: "o"}
	}
	v := &view{root: "/"}
	v.set(&look.Tree{Places: []look.Place{
		{Path: "/election", Lines: []look.Line{line("election", true, time.Hour), line("election", false, time.Hour)}},
		{Path: "/free", Lines: []look.Line{line("semaphore", true, time.Hour)}},
		{Path: "/lock", Lines: []look.Line{line("lock", true, time.Minute), line("lock", false, time.Second)}},
		{Path: "/queue", Lines: []look.Line{line("queue", false, 2*time.Hour), line("queue", false, time.Hour)}},
	}})
	out := regexp.MustCompile(`\x1b\[[0-9;]*[a-zA-Z]`).ReplaceAllString(v.draw(120, 20, now), "")
	if !regexp.MustCompile(`(?s)PATH.*\n/lock +lock .*\n/queue +queue .* 2 idle *\r\n/election +election .* 1 standby *\r\n/semaphore `).MatchString(out) {
		t.Errorf("top shows\n%s", out)
	}
	v.set(&look.Tree{Places: []look.Place{{Path: "/election", Lines: []look.Line{line("election", false, time.Hour)}}}})
	if got := v.rows[0]; got.State != "" || rank(got) != 0 {
		t.Errorf("candidates without a leader are %+v", got)
	}
}
