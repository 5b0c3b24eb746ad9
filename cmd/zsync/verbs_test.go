//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

func TestMapIsReadWrittenListedAndWatched(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		do := func(status int, in, out string, args ...string) {
			t.Helper()
			start(t, srv.Addr(), in, append([]string{"map"}, args...)...).want(status, out)
		}
		do(0, "", "", "set", "/m", "b", "two\n\x1b")
		do(0, "from input", "", "set", "/m", "a/é")
		do(0, "", "two\n\x1b\n", "get", "/m", "b")
		do(0, "", "a/é\tfrom input\nb\ttwo\\n\\x1b\n", "list", "/m")
		do(0, "", "a/é\nb\n", "list", "/m", "--keys")
		do(exitBusy, "", "", "set", "/m", "b", "3", "--if", "two")
		do(exitBusy, "", "", "set", "/m", "b", "3", "--if-absent")
		do(0, "", "", "set", "/m", "c", "3", "--if-absent")
		do(0, "", "", "set", "/m", "c", "4", "--if", "3")
		watch := start(t, srv.Addr(), "", "map", "watch", "/m", "-n", "2")
		watch.awaitOutput("\n")
		do(0, "", "", "delete", "/m", "a/é", "b", "not there")
		watch.wait()
		lines := strings.Split(watch.stdout.String(), "\n")
		var first, second map[string]string
		if len(lines) != 3 || errors.Join(json.Unmarshal([]byte(lines[0]), &first), json.Unmarshal([]byte(lines[1]), &second)) != nil ||
			first["a/é"] != "from input" || first["c"] != "4" || len(first) != 3 || second["c"] != "4" || second["a/é"] != "" {
			t.Errorf("watch printed\n%s", &watch.stdout)
		}
		do(0, "", "", "clear", "/m")
		do(0, "", "{}\n", "list", "/m", "--json")
		if n, err := zsync.NewMap[[]byte](connect(t, srv), "/m").Len(t.Context()); n != 0 || err != nil {
			t.Errorf("%d keys, %v", n, err)
		}
	})
}

// The command and a program with the default codec read each other's values, keys and members.
func TestTheCommandAndAProgramWithDefaultsShareState(t *testing.T) {
	type limits struct{ Jobs int }
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s, ctx := connect(t, srv), t.Context()
		do := func(out string, args ...string) {
			t.Helper()
			start(t, srv.Addr(), "", args...).want(0, out)
		}
		text, number, limit, raw := zsync.NewValue[string](s, "/text"), zsync.NewValue[int](s, "/number"), zsync.NewValue[limits](s, "/limits"), zsync.NewValue[[]byte](s, "/raw", zsync.WithCodec(zsync.Raw))
		for _, x := range []string{"one", "", "two\nlines", `say "hi"`, "<b> & c", "ü☃"} {
			do("", "value", "set", "/text", x)
			if got, _, err := text.Load(ctx); got != x || err != nil {
				t.Errorf("a program reads %q, %v; want %q", got, err, x)
			}
			do(x+"\n", "value", "get", "/text")
			harness.Must(t, text.Store(ctx, x+x))
			do(x+x+"\n", "value", "get", "/text")
			do("", "value", "set", "/text", "next", "--if", x+x)
		}
		do("", "value", "set", "/text", "--text", "1.10")
		if got, _, err := text.Load(ctx); got != "1.10" || err != nil {
			t.Errorf("with --text a program reads %q, %v", got, err)
		}
		do("1.10\n", "value", "watch", "/text", "-n", "1")
		do("\"1.10\"\n", "value", "watch", "/text", "-n", "1", "--raw")
		do("", "value", "set", "/number", "42")
		if got, _, err := number.Load(ctx); got != 42 || err != nil {
			t.Errorf("a program reads %d, %v", got, err)
		}
		harness.Must(t, limit.Store(ctx, limits{3}))
		do("{\"Jobs\":3}\n", "value", "get", "/limits")
		do("", "value", "set", "/limits", `{"Jobs": 4}`, "--if", `{"Jobs":3}`)
		if got, _, err := limit.Load(ctx); got.Jobs != 4 || err != nil {
			t.Errorf("a program reads %v, %v", got, err)
		}
		do("", "value", "set", "/raw", "--raw", "\xff\xfe")
		if got, _, err := raw.Load(ctx); string(got) != "\xff\xfe" || err != nil {
			t.Errorf("a program reads %q, %v", got, err)
		}
		r := start(t, srv.Addr(), "", "value", "set", "/raw", strings.Repeat("\xff", 100))
		if r.want(exitUsage, ""); !strings.Contains(r.stderr.String(), "neither JSON nor UTF-8: ") || !strings.Contains(r.stderr.String(), ": add --raw, and read it with zsync.Raw") {
			t.Errorf("%s", &r.stderr)
		}
		start(t, srv.Addr(), "", "value", "set", "/raw", "--raw", "--text", "x").want(exitUsage, "")

		m := zsync.NewMap[string](s, "/map")
		do("", "map", "set", "/map", "a", "one")
		harness.Must(t, m.Store(ctx, "b", "two"))
		if got, _, err := m.Load(ctx, "a"); got != "one" || err != nil {
			t.Errorf("a program reads %q, %v", got, err)
		}
		do("two\n", "map", "get", "/map", "b")
		do("a\tone\nb\ttwo\n", "map", "list", "/map")
		do("a\t\"one\"\nb\t\"two\"\n", "map", "list", "/map", "--raw")
		do(`{"a":"one","b":"two"}`+"\n", "map", "watch", "/map", "-n", "1")

		g := zsync.NewGroup[limits](s, "/group")
		_, err := g.Join(ctx, "program", limits{5})
		harness.Must(t, err)
		for _, args := range [][]string{{"with", `{"Jobs": 6}`}, {"without"}} {
			start(t, srv.Addr(), "", append([]string{"group", "join", "/group"}, args...)...)
		}
		await(t, func() bool { ms, err := g.Members(ctx); return err == nil && len(ms) == 3 }, "three members that a program can decode")
		r = start(t, srv.Addr(), "", "group", "members", "/group")
		if r.wait(); !regexp.MustCompile(`(?s)\nprogram .* \{"Jobs":5\}\nwith .* \{"Jobs": 6\}\nwithout .* -\n$`).MatchString(r.stdout.String()) {
			t.Errorf("members prints\n%s", &r.stdout)
		}
		names := zsync.NewGroup[string](s, "/names")
		_, err = names.Join(ctx, "program", "10.0.0.7:8080")
		harness.Must(t, err)
		if r = start(t, srv.Addr(), "", "group", "watch", "/names", "-n", "1"); r.wait() != 0 || !strings.Contains(r.stdout.String(), `"info":"10.0.0.7:8080"`) {
			t.Errorf("watch prints %s", &r.stdout)
		}
	})
}

func TestNumberIsCountedByMany(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		do := func(status int, out string, args ...string) {
			t.Helper()
			start(t, srv.Addr(), "", append([]string{"int"}, args...)...).want(status, out)
		}
		do(0, "0\n", "get", "/n")
		do(0, "0\n", "watch", "/n", "--count", "1") // a new int is 0
		watch := start(t, srv.Addr(), "", "int", "watch", "/n", "--timeout", "600")
		var adders []*run
		for range 4 {
			adders = append(adders, start(t, srv.Addr(), "", "int", "add", "/n"))
		}
		seen := map[string]bool{}
		for _, r := range adders {
			r.wait()
			seen[r.stdout.String()] = true
		}
		if len(seen) != 4 || !seen["4\n"] {
			t.Errorf("four that add 1 print %v", seen)
		}
		watch.awaitOutput("4\n")
		watch.signal(syscall.SIGINT)
		if got := watch.wait(); got != 128+int(syscall.SIGINT) {
			t.Errorf("exit status %d after SIGINT", got)
		}
		do(0, "-8\n", "add", "/n", "-12")
		do(0, "-9\n", "add", "-v", "-1", "/n")
		do(0, "", "set", "/n", "-7", "--if", "-9")
		do(exitBusy, "", "set", "/n", "5", "--if", "-9")
		do(0, "-7\n", "get", "/n")
		do(0, "-8\n", "add", "/n", "--verbose", "-1")
		do(0, "-9\n", "add", "/n", "--tls=false", "-1")
		do(0, "-10\n", "add", "/n", "-vw", "60", "-1")
		do(exitUsage, "", "add", "/n", "--timeout", "-1") // that is the flag's
		do(exitUsage, "", "add", "/n", "-vw", "-1")
		do(exitUsage, "", "add", "/n", "--acl", "-1")
		do(0, "", "set", "/n", "--if", "-10", "-7")
		do(0, "-12\n", "add", "/curators", "--curator", "-12")
		if data, _, err := connect(t, srv).Get(t.Context(), "/n"); string(data) != "-7" || err != nil {
			t.Errorf("the znode has %q, %v", data, err)
		}
		do(0, "", "set", "/curators", "258", "--curator")
		do(0, "258\n", "get", "/curators", "--curator")
		if data, _, _ := connect(t, srv).Get(t.Context(), "/curators"); string(data) != "\x00\x00\x00\x00\x00\x00\x01\x02" {
			t.Errorf("Curator would read %q", data)
		}
	})
}

func TestMemberIsThereWhileItsCommandRuns(t *testing.T) {
	srv := serve(t)
	members := func() string {
		r := start(t, srv.Addr(), "", "group", "members", "/g")
		if status := r.wait(); status != 0 {
			t.Fatalf("exit status %d: %s", status, &r.stderr)
		}
		return r.stdout.String()
	}
	watch := start(t, srv.Addr(), "", "group", "watch", "/g")
	watch.awaitOutput("[]\n")
	r, in := startCat(t, srv.Addr(), "group", "join", "/g", "a", "10.0.0.7:8080")
	r.awaitOutput("inside")
	forever := start(t, srv.Addr(), "", "group", "join", "/g", "b")
	await(t, func() bool { return strings.Contains(members(), "\nb ") }, "b")
	if got := members(); !regexp.MustCompile(`^ID +SINCE +SESSION +INFO\na +20\S+ \S+ +0x[0-9a-f]+ +10.0.0.7:8080\nb +20\S+ \S+ +0x[0-9a-f]+ +-\n$`).MatchString(got) {
		t.Errorf("members prints\n%s", got)
	}
	// A lost session takes no member away for good, nor its command.
	expireAll(srv)
	await(t, func() bool { return strings.Count(members(), "\n") == 3 }, "both again")
	in.Close()
	r.want(0, "inside\n")
	forever.signal(syscall.SIGTERM)
	forever.want(128+int(syscall.SIGTERM), "")
	await(t, func() bool { return strings.HasSuffix(watch.stdout.String(), "[]\n") }, "the empty group")
	if got := watch.stdout.String(); !strings.Contains(got, `{"id":"a","info":"10.0.0.7:8080","session":"0x`) {
		t.Errorf("watch printed\n%s", got)
	}
	start(t, srv.Addr(), "", "group", "join", "/g", "c", "--", "sh", "-c", "exit 7").want(7, "")
	start(t, srv.Addr(), "", "group", "join", "/party", "d", "--kazoo", "--", binary(), "group", "members", "/party", "--kazoo", "--json").wait()
}

func TestScheduleRunsEachInstantOnce(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	do := func(status int, out string, args ...string) {
		t.Helper()
		start(t, srv.Addr(), "", append([]string{"schedule", "do", "/s"}, args...)...).want(status, out)
	}
	do(7, "", "--at", "2030-01-01T00:00:00Z", "--", "sh", "-c", "exit 7") // so it is not done
	do(exitNotFound, "", "--at", "2030-01-01T00:00:00Z", "--", "/no/such/command")
	do(0, "2030-01-01T00:00:00Z\n", "--at", "2030-01-01T01:00:00+01:00", "--", "sh", "-c", "echo $ZSYNC_INSTANT")
	do(0, "", "--at", "2030-01-01T00:00:00Z", "--", "echo", "again")
	do(0, "", "--every", "24h", "--", "echo", "earlier")
	start(t, srv.Addr(), "", "schedule", "last", "/s").want(0, "2030-01-01T00:00:00Z\n")

	// Two machines, a command that fails at first, and signals.
	dir := t.TempDir()
	var runs []*run
	for range 2 {
		runs = append(runs, start(t, srv.Addr(), "", "schedule", "run", "/r", "--every", "0.25", "--", "sh", "-c",
			`trap "" TERM; mkdir "$0/first" 2>/dev/null && exit 3; echo $ZSYNC_INSTANT >>"$0/done"`, dir))
	}
	instants := func() []string {
		data, _ := os.ReadFile(dir + "/done")
		return strings.Fields(string(data))
	}
	await(t, func() bool { return len(instants()) >= 5 }, "five instants")
	for _, r := range runs {
		r.signal(syscall.SIGTERM)
		if got := r.wait(); got != 128+int(syscall.SIGTERM) {
			t.Errorf("exit status %d\n%s", got, &r.stderr)
		}
	}
	done := instants()
	for i := range done[1:] {
		a, errA := time.Parse(time.RFC3339Nano, done[i])
		b, errB := time.Parse(time.RFC3339Nano, done[i+1])
		if errA != nil || errB != nil || !a.Before(b) {
			t.Errorf("after %s came %s", done[i], done[i+1])
		}
	}
	if all := runs[0].stderr.String() + runs[1].stderr.String(); strings.Count(all, "is not done: exit status 3") != 1 {
		t.Errorf("it says\n%s", all)
	}
	start(t, srv.Addr(), "", "schedule", "last", "/r").want(0, done[len(done)-1]+"\n")
}

func TestAScheduleSaysWhichAttemptFailedAndWhenTheNextIs(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"--attempts", "3"}, []string{"10:00", "attempt 1 of 3, the next in 1m0s", "10:00", "attempt 2 of 3, the next in 2m0s", "10:00", "attempt 3 of 3, no other follows", "20:00", "attempt 1 of 3, the next in 1m0s"}},
		{[]string{"--pause", "4m"}, []string{"10:00", "attempt 1 of 5, the next in 4m0s", "10:00", "attempt 2 of 5, no other follows: 2000-01-01T00:20:00Z is due before"}},
		{[]string{"--pause", "4m", "--missed", "all"}, []string{"10:00", "attempt 1 of 5, the next in 4m0s", "10:00", "attempt 2 of 5, the next in 8m0s"}},
	} {
		inMemory(t, func(t *testing.T, srv *zktest.Server) {
			args := append([]string{"schedule", "run", "/s", "--every", "10m"}, tt.args...)
			r := start(t, srv.Addr(), "", append(args, "--", "false")...)
			want := ""
			for i := 0; i < len(tt.want); i += 2 {
				want += "zsync: /s: 2000-01-01T00:" + tt.want[i] + "Z is not done: exit status 1; " + tt.want[i+1] + "\n"
			}
			time.Sleep(20*time.Minute - time.Second)
			if len(tt.want) == 8 {
				time.Sleep(2 * time.Second) // the attempts of the first instant are over
			}
			r.signal(syscall.SIGTERM)
			r.wait()
			if got := r.stderr.String(); got != want {
				t.Errorf("%v says\n%s, want\n%s", tt.args, got, want)
			}
		})
	}
}

func TestSignalToAScheduleGoesToItsCommandAndEndsIt(t *testing.T) {
	srv := serve(t)
	r := start(t, srv.Addr(), "", "schedule", "run", "/s", "--every", "0.1", "--", "sh", "-c",
		`trap 'echo two' USR2; trap 'echo told; exit 0' TERM; echo runs; while :; do sleep 0.01; done`)
	r.awaitOutput("runs\n")
	r.signal(syscall.SIGUSR2)
	r.awaitOutput("two\n")
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "runs\ntwo\ntold\n")
	r = start(t, srv.Addr(), "", "schedule", "last", "/s") // what ended well is done
	if got := r.wait(); got != 0 {
		t.Errorf("exit status %d: %s", got, &r.stderr)
	}
}

func TestCommandOfAScheduleIsStoppedWhenTheHoldIsLost(t *testing.T) {
	srv := serve(t)
	r := start(t, srv.Addr(), "", "schedule", "do", "/s", "--every", "1h", "--kill-after", "20s", "--", "sh", "-c", `trap 'echo terminated; exit 0' TERM; sleep 600 & echo $!; wait`)
	r.awaitOutput("\n")
	sleeper, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
	expireAll(srv)
	r.want(exitLost, fmt.Sprintf("%d\nterminated\n", sleeper))
	wantEnded(t, sleeper)
}

func TestLatestInstantIsFoundHoweverManyThereAre(t *testing.T) {
	start(t, serve(t).Addr(), "", "schedule", "do", "/p", "--every", "1ns", "--", "echo", "done").want(0, "done\n")
}

func TestLatestInstantIsTheLastThatIsNotAfterNow(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 30, 0, 0, time.UTC)
	for _, tt := range []struct{ spec, want string }{
		{"30 12 * * *", "2026-03-10T12:30:00Z"},
		{"31 12 * * *", "2026-03-09T12:31:00Z"},
		{"* * * * *", "2026-03-10T12:30:00Z"},
		{"0 0 1 1 *", "2026-01-01T00:00:00Z"},
		{"0 0 29 2 *", "2024-02-29T00:00:00Z"},
	} {
		table, err := parseCron("CRON_TZ=UTC " + tt.spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := instant(latest(table, now)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.spec, got, tt.want)
		}
	}
	if got := latest(zsync.Every(time.Hour), now); instant(got) != "2026-03-10T12:00:00Z" {
		t.Errorf("every hour: %v", got)
	}
	if never, err := parseCron("0 0 30 2 *"); err == nil {
		t.Errorf("30 February is %v", never)
	}
}

func TestTimetableOfAZoneAloneIsRefused(t *testing.T) {
	for _, spec := range []string{"CRON_TZ=UTC", "TZ=UTC", "CRON_TZ=", " CRON_TZ=UTC "} {
		if table, err := parseCron(spec); err == nil {
			t.Errorf("%q: %v", spec, table)
		}
	}
	now := time.Date(2026, 3, 10, 12, 30, 0, 0, time.UTC)
	table, err := parseCron("CRON_TZ=UTC\t0 3 * * *")
	if err != nil || !table.Next(now).Equal(time.Date(2026, 3, 11, 3, 0, 0, 0, time.UTC)) {
		t.Errorf("with a tab: %v, %v", table, err)
	}
}

func TestTimetableThatHasNoInstantIsRefused(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, sub := range []string{"run", "do"} {
			r := start(t, srv.Addr(), "", "schedule", sub, "/p", "--cron", "0 0 30 2 *", "--", "true")
			r.want(exitUsage, "")
			if !strings.Contains(r.stderr.String(), "no such day ever comes") {
				t.Errorf("%s: the message is %q", sub, &r.stderr)
			}
		}
	})
}

func TestWhoHasClosedAGateIsNamed(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "barrier", "close", "/gate", "--owner", "the deploy").want(0, "")
		steadily(t, func() string {
			return start(t, srv.Addr(), "", "barrier", "wait", "/gate", "--timeout", "2").outcome(exitBusy, "", "gave up after 2s: closed by the deploy since 20")
		})
		loud := start(t, srv.Addr(), "", "barrier", "wait", "/gate", "-v")
		await(t, func() bool {
			return strings.Contains(loud.stderr.String(), "zsync: /gate: waiting: closed by the deploy since 20")
		}, "the word of what it waits for")
		start(t, srv.Addr(), "", "barrier", "open", "/gate").want(0, "")
		loud.want(0, "")
		if got := loud.stderr.String(); !strings.Contains(got, "zsync: /gate: granted after ") {
			t.Errorf("the messages are %q", got)
		}
	})
}

func TestPathsAreCompletedFromTheServers(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s := connect(t, srv)
		if err := errors.Join(
			zsync.NewMutex(s, "/jobs/nightly").Lock(t.Context()), zsync.NewMutex(s, "/jobs/night").Lock(t.Context()),
			zsync.NewMutex(s, "/locks/a").Lock(t.Context()), zsync.NewQueue[int](s, "/queue").Send(t.Context(), 1),
		); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct{ args, want string }{
			{"lock /", "/jobs /locks /queue :4"},
			{"lock ", "/jobs /locks /queue :4"},
			{"lock /jo", "/jobs /jobs/ :4"},
			{"lock /jobs/", "/jobs/night /jobs/nightly :4"},
			{"lock /jobs/nightl", "/jobs/nightly :4"}, // of it, what is below is no path for others
			{"lock /a /jobs/nightl", "/jobs/nightly :4"},
			{"elect /jobs/nightly ", ":0"}, // a file
			{"lock /jobs/nightly -- /", ":0"},
			{"value get /lo", "/locks /locks/ :4"},
			{"value get /locks ", ":4"},
			{"ls /qu", "/queue :4"},
			{"lock jobs", ":4"},
		} {
			args := strings.Split(tt.args, " ")
			steadily(t, func() string { // nobody is kept waiting for longer than a moment
				r := start(t, srv.Addr(), "", append([]string{"__complete"}, args...)...)
				if status := r.wait(); status != 0 || strings.Join(strings.Fields(r.stdout.String()), " ") != tt.want {
					return fmt.Sprintf("%s: exit status %d and %q, want %q", tt.args, status, r.stdout.String(), tt.want)
				}
				return ""
			})
		}
		steadily(t, func() string {
			began := time.Now()
			r := start(t, "127.0.0.1:1", "", "__complete", "lock", "/")
			r.want(0, ":4\n")
			if got := r.stderr.String(); !strings.HasPrefix(got, "zsync: no paths to complete: connect: context deadline exceeded (last attempt: 127.0.0.1:1: ") {
				return fmt.Sprintf("without servers it says %q", got)
			}
			if r := start(t, "", "", "__complete", "lock", "/"); r.wait() != 0 || !strings.HasPrefix(r.stderr.String(), "zsync: no paths to complete: ZSYNC_SERVERS is not set\n") {
				return fmt.Sprintf("without ZSYNC_SERVERS it says %q", &r.stderr)
			}
			if time.Since(began) > 10*time.Second {
				return fmt.Sprintf("without servers it took %v", time.Since(began))
			}
			return ""
		})
	})
}

func TestManPagesAndCompletionsAreWritten(t *testing.T) {
	dir := t.TempDir()
	start(t, "", "", "gen", "man", dir+"/man").want(0, "")
	start(t, "", "", "gen", "completion", dir+"/completion").want(0, "")
	for name, want := range map[string]string{
		"man/zsync.1":             "\n64    bad command line\n",
		"man/zsync-lock.1":        `\fB--on-lost\fP`,
		"man/zsync-gen-man.1":     `.TH "ZSYNC-GEN-MAN" "1"`,
		"man/zsync-queue-peek.1":  `.TH "ZSYNC-QUEUE-PEEK" "1"`,
		"man/zsync-int-add.1":     "zsync int add /stock/apples -12",
		"man/zsync-queue-recv.1":  `\fB--max-attempts\fP`,
		"man/zsync-queue-stats.1": "stats prints how many elements",
		"completion/zsync.bash":   "__start_zsync",
		"completion/_zsync":       "#compdef zsync",
		"completion/zsync.fish":   "complete -c zsync",
		"completion/zsync.ps1":    "Register-ArgumentCompleter",
	} {
		data, err := os.ReadFile(dir + "/" + name)
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: no %q in %d bytes, %v", name, want, len(data), err)
		}
	}
	start(t, "", "", "gen", "man", "/dev/null/x").want(exitOutput, "")
}

func TestLastSaysWhichLaterInstantHasFailed(t *testing.T) {
	srv := serve(t)
	start(t, srv.Addr(), "", "schedule", "do", "/s", "--at", "2026-01-01T00:00:00Z", "--", "true").want(0, "")
	start(t, srv.Addr(), "", "schedule", "do", "/s", "--at", "2026-01-02T00:00:00Z", "--", "sh", "-c", "exit 3").want(3, "")
	r := start(t, srv.Addr(), "", "schedule", "last", "/s")
	r.want(0, "2026-01-01T00:00:00Z\n")
	if said := r.stderr.String(); !strings.Contains(said, "/s: 2026-01-02T00:00:00Z has failed (attempt 1, ") || !strings.Contains(said, "exit status 3") {
		t.Errorf("standard error: %q", said)
	}
}

func TestARunOfAScheduleRefusesNoAttemptsAndNoPause(t *testing.T) {
	srv := serve(t)
	r := start(t, srv.Addr(), "", "schedule", "run", "/s", "--every", "100000h", "--attempts", "0", "--", "true")
	r.want(exitUsage, "")
	r = start(t, srv.Addr(), "", "schedule", "run", "/s", "--every", "100000h", "--pause", "0s", "--", "true")
	r.want(exitUsage, "")
}
