//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// recvCommandOf starts queue recv of /q with a script.
func recvCommandOf(t *testing.T, srv *zktest.Server, script string, args ...string) *run {
	t.Helper()
	return start(t, srv.Addr(), "", append(append([]string{"queue", "recv", "/q"}, args...), "--", "sh", "-c", script)...)
}

func TestPoisonHoldsUpNobodyAndIsSetAsideWithItsReason(t *testing.T) {
	srv := serve(t)
	const script = `read -r job; case $job in bad) exit 3; esac; echo "$job"`
	start(t, srv.Addr(), "", "queue", "send", "/q", "bad", "one", "two").want(0, "")
	r := recvCommandOf(t, srv, script, "--follow", "--backoff", "0.01")
	r.awaitOutput("one\n")
	r.awaitOutput("two\n")
	await(t, func() bool {
		return regexp.MustCompile(`zsync: /q: \S+: exit status 3 at attempt 2; again after 20ms\n`).MatchString(r.stderr.String())
	}, "the second attempt")
	start(t, srv.Addr(), "", "queue", "send", "/q", "three").want(0, "")
	r.awaitOutput("three\n")
	q := zsync.NewQueue[string](connect(t, srv), "/q", zsync.WithCodec(zsync.Raw))
	await(t, func() bool { n, err := q.Len(t.Context()); return err == nil && n == 1 }, "the bad one alone")
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "one\ntwo\nthree\n")

	// It has had two attempts, or more, so that this is the last.
	start(t, srv.Addr(), "", "queue", "send", "/q", "four").want(0, "")
	r = recvCommandOf(t, srv, script, "--follow", "--max-attempts", "1", "--backoff", "0.01")
	r.awaitOutput("four\n")
	await(t, func() bool { n, err := q.Len(t.Context()); return err == nil && n == 0 }, "an empty queue")
	r.signal(syscall.SIGTERM)
	r.want(128+int(syscall.SIGTERM), "four\n")
	start(t, srv.Addr(), "", "queue", "purge", "/q", "--all").want(0, "1\n")

	start(t, srv.Addr(), "", "queue", "send", "/q", "bad", "five").want(0, "")
	r = recvCommandOf(t, srv, script, "--max-attempts", "2", "--backoff", "0.01")
	r.want(3, "five\n")
	if got := r.stderr.String(); strings.Count(got, "exit status 3 at attempt 1; again after 10ms\n") != 1 || strings.Count(got, "exit status 3 at attempt 2, the last: it is now a dead letter\n") != 1 {
		t.Errorf("it says\n%s", got)
	}
	r = start(t, srv.Addr(), "", "queue", "dead", "/q", "--json")
	r.wait()
	var letters []letterLine
	if err := json.Unmarshal([]byte(r.stdout.String()), &letters); err != nil || len(letters) != 1 ||
		string(letters[0].Data) != `"bad"` || letters[0].Reason != "exit status 3" || letters[0].Attempts != 2 || letters[0].First == nil {
		t.Errorf("dead letters: %v\n%s", err, &r.stdout)
	}
}

func TestStatusOfQueueRecvIsThatOfWhatFailedUnlessItWasDoneLater(t *testing.T) {
	t.Parallel()
	srv := serve(t)
	start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two").want(0, "")
	r := recvCommandOf(t, srv, `cat; echo " $ZSYNC_ATTEMPT"; test $ZSYNC_ATTEMPT -gt 1 || exit 4`, "--max-attempts", "5", "--backoff", "0")
	status, lines := r.wait(), strings.SplitAfter(r.stdout.String(), "\n")
	slices.Sort(lines)
	if got := strings.Join(lines, ""); status != 0 || got != "one 1\none 2\ntwo 1\ntwo 2\n" {
		t.Errorf("exit status %d, and output, sorted,\n%s%s", status, got, &r.stderr)
	}
	// Nobody waits here for what is tried again, and it is not there yet.
	start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two").want(0, "")
	recvCommandOf(t, srv, `cat; exit 5`, "--backoff", "1h").want(5, "onetwo")
	recvCommandOf(t, srv, `cat`).want(0, "")
	start(t, srv.Addr(), "", "queue", "stats", "/q").want(0, "ready      0\nclaimed    0\ndelayed    2\ndead       0\noldest     -\nattempts   1\n")
}

func TestQueueRecvRunsSoManyCommandsAtOnce(t *testing.T) {
	srv := serve(t)
	dir := t.TempDir()
	elements := strings.Fields("a b c d e f g h")
	start(t, srv.Addr(), "", append([]string{"queue", "send", "/q"}, elements...)...).want(0, "")
	// Each writes down how many there are, itself included. It leaves an orphan behind,
	// which somebody must reap, and not the others with it.
	const script = `cd "$0"; read -r job; mkdir run.$job; set -- run.*; echo $# >>peaks; while [ ! -e go ]; do sleep 0.01; done; (true &); rmdir run.$job; echo $job`
	r := start(t, srv.Addr(), "", "queue", "recv", "/q", "--jobs", "3", "--", "sh", "-c", script, dir)
	await(t, func() bool { began, _ := filepath.Glob(dir + "/run.*"); return len(began) == 3 }, "three commands at once")
	stats := start(t, srv.Addr(), "", "queue", "stats", "/q", "--json")
	stats.wait()
	var st statsLine
	if err := json.Unmarshal([]byte(stats.stdout.String()), &st); err != nil || st.Claimed < 3 || st.Claimed+st.Ready != len(elements) ||
		st.Oldest == nil || len(st.Holders) != 1 || st.Holders[0].Claimed != st.Claimed || st.Holders[0].Owner == "" {
		t.Errorf("stats: %v\n%s", err, &stats.stdout)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if status := r.wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, &r.stderr)
	}
	done := strings.Fields(r.stdout.String())
	slices.Sort(done)
	if !slices.Equal(done, elements) {
		t.Errorf("done: %q", done)
	}
	peaks, _ := os.ReadFile(dir + "/peaks")
	if regexp.MustCompile(`[4-9]`).Match(peaks) || !strings.Contains(string(peaks), "3") {
		t.Errorf("so many ran at once: %q", peaks)
	}
}

func TestSignalToQueueRecvGoesToAllItsCommands(t *testing.T) {
	srv := serve(t)
	start(t, srv.Addr(), "", "queue", "send", "/q", "one", "two", "three").want(0, "")
	r := recvCommandOf(t, srv, `trap 'echo told; exit 0' TERM; read -r job; echo $job; while :; do sleep 0.01; done`, "-f", "-j", "2")
	r.awaitOutput("one\n")
	r.awaitOutput("two\n")
	r.signal(syscall.SIGTERM)
	if status := r.wait(); status != 128+int(syscall.SIGTERM) || strings.Count(r.stdout.String(), "told\n") != 2 {
		t.Errorf("exit status %d, and output\n%s%s", status, &r.stdout, &r.stderr)
	}
	start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, "three\n")
}

func TestElementsOfOneKeyAreWorkedOnOneAtATime(t *testing.T) {
	srv := serve(t)
	dir := t.TempDir()
	start(t, srv.Addr(), "", "queue", "send", "/q", "a1", "a2", "--key", "a").want(0, "")
	start(t, srv.Addr(), "b1\n", "queue", "send", "/q", "--key", "b").want(0, "")
	// a1 ends when b1, which came behind a2, has begun.
	const script = `cd "$0"; read -r job; echo $job begins; case $job in a1) while [ ! -e b ]; do sleep 0.01; done;; b1) touch b;; esac; echo $job ends`
	r := start(t, srv.Addr(), "", "queue", "recv", "/q", "--jobs", "3", "--", "sh", "-c", script, dir)
	if status := r.wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, &r.stderr)
	}
	got := regexp.MustCompile(`(?m)^b1 .*\n`).ReplaceAllString(r.stdout.String(), "")
	if got != "a1 begins\na1 ends\na2 begins\na2 ends\n" {
		t.Errorf("got\n%s", &r.stdout)
	}
}

func TestElementIsSentOnceForItsIDAndCanBeCancelled(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for i := range 2 {
			r := start(t, srv.Addr(), "", "queue", "send", "/q", "the order", "--id", "42")
			r.want(0, "")
			if got, want := r.stderr.String(), []string{"", "zsync: /q: an element with the ID 42 was sent before; nothing is stored\n"}[i]; got != want {
				t.Errorf("time %d: the message is %q, want %q", i+1, got, want)
			}
		}
		start(t, srv.Addr(), "one line\n", "queue", "send", "/q", "--id", "43").want(0, "")
		start(t, srv.Addr(), "", "queue", "cancel", "/q", "42").want(0, "")
		start(t, srv.Addr(), "", "queue", "cancel", "/q", "42").want(exitBusy, "")
		start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, "one line\n")
	})
}

func TestSendWithAnIDWantsExactlyOneElementAndStoresNoOther(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for in, message := range map[string]string{
			"":           "zsync: --id is of one element, and standard input has none\n",
			"one\ntwo\n": "zsync: --id is of one element, and standard input has more\n",
		} {
			r := start(t, srv.Addr(), in, "queue", "send", "/q", "--id", "44")
			r.want(exitUsage, "")
			if got := r.stderr.String(); got != message {
				t.Errorf("of %q the message is %q, want %q", in, got, message)
			}
		}
		// The second line comes late.
		in, w := io.Pipe()
		r := startReading(t, srv.Addr(), in, "queue", "send", "/q", "--id", "45")
		fmt.Fprintln(w, "one")
		fmt.Fprintln(w, "two")
		w.Close()
		r.want(exitUsage, "")
		start(t, srv.Addr(), "", "queue", "len", "/q").want(0, "0\n")
		start(t, srv.Addr(), "\n", "queue", "send", "/q", "--id", "46").want(0, "") // an empty element is one
		start(t, srv.Addr(), "", "queue", "recv", "/q").want(0, "\n")
	})
}

func TestWhatHasFailedWaitsLongerEachTime(t *testing.T) {
	w := working{backoff: time.Second}
	got := ""
	for attempt := range 9 {
		got += fmt.Sprint(w.pause(attempt+1), " ")
	}
	if want := "1s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, d := range []time.Duration{0, 2 * time.Minute} { // never less than it says
		w.backoff = d
		if got := w.pause(5); got != d {
			t.Errorf("--backoff %v: %v", d, got)
		}
	}
}

func TestQueueIsPausedAndResumed(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "queue", "send", "/q", "one").want(0, "")
		start(t, srv.Addr(), "", "queue", "pause", "/q").want(0, "")
		start(t, srv.Addr(), "", "queue", "recv", "/q", "-n", "1").want(exitBusy, "")
		recv := start(t, srv.Addr(), "", "queue", "recv", "/q")
		if recv.want(0, ""); !strings.Contains(recv.stderr.String(), "/q: paused: no element can be received") {
			t.Errorf("recv:\n%s", &recv.stderr)
		}
		stats := start(t, srv.Addr(), "", "queue", "stats", "/q")
		if stats.wait(); !strings.Contains(stats.stdout.String(), "paused     yes: see zsync queue resume\n") {
			t.Errorf("stats:\n%s", &stats.stdout)
		}
		for args, want := range map[string]string{"queue stats /q --json": `"paused": true`, "ls /": "1 element, paused", "doctor /": "note: paused: /q: "} {
			r := start(t, srv.Addr(), "", strings.Fields(args)...)
			if r.wait(); !strings.Contains(r.stdout.String(), want) {
				t.Errorf("%s:\n%s%s", args, &r.stdout, &r.stderr)
			}
		}
		start(t, srv.Addr(), "", "queue", "resume", "/q").want(0, "")
		start(t, srv.Addr(), "", "queue", "resume", "/q").want(0, "")
		start(t, srv.Addr(), "", "queue", "recv", "/q", "-n", "1").want(0, "one\n")
		start(t, srv.Addr(), "", "queue", "pause", "/k", "--layout", "kazoo").want(exitUsage, "")
	})
}

func TestQueueLsListsElementsByState(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "queue", "send", "/q", "one", `{"two": 2}`).want(0, "")
		start(t, srv.Addr(), "", "queue", "send", "/q", "later", "--delay", "1h").want(0, "")
		r := start(t, srv.Addr(), "", "queue", "ls", "/q")
		if r.wait() != 0 || !regexp.MustCompile(`(?s)^STATE +ID +ATTEMPTS +SENT +NOTE +DATA\nready +b-\S+/e-0000000000 +0 +\S+ \S+ +- +one\nready .* \{"two": 2\}\ndelayed +\S+ +0 .* due .* later\n$`).MatchString(r.stdout.String()) {
			t.Errorf("%s%s", &r.stdout, &r.stderr)
		}
		r = start(t, srv.Addr(), "", "queue", "ls", "/q", "--state", "delayed", "--json")
		var l itemLine
		if r.wait(); json.Unmarshal([]byte(r.stdout.String()), &l) != nil || l.State != "delayed" || l.Due == nil || string(l.Data) != `"later"` {
			t.Errorf("%s%s", &r.stdout, &r.stderr)
		}
		start(t, srv.Addr(), "", "queue", "ls", "/q", "--state", "claimed", "--json").want(0, "")
		const owner = "\u009b2J<\x7f" // the first character controls some terminals
		start(t, srv.Addr(), "", "queue", "recv", "/q", "-n", "1", "--owner", owner, "--", does(t, func(*memoryProcess) int {
			r = start(t, srv.Addr(), "", "queue", "ls", "/q", "--state", "claimed", "--json")
			if r.wait(); json.Unmarshal([]byte(r.stdout.String()), &l) != nil || l.Owner != owner || !strings.Contains(r.stdout.String(), `"owner":"\u009b2J<\u007f"`) {
				t.Errorf("%s%s", &r.stdout, &r.stderr)
			}
			return 0
		})).want(0, "")
		start(t, srv.Addr(), "", "queue", "ls", "/q", "--state", "gone").want(exitUsage, "")
		start(t, srv.Addr(), "", "queue", "ls").want(exitUsage, "")
		start(t, srv.Addr(), "", "queue", "len", "/q").want(0, "2\n")
	})
}

func TestIDInTheEnvironmentIsTheSameAtEachAttempt(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "queue", "send", "/q", "one").want(0, "")
		var ids []string
		start(t, srv.Addr(), "", "queue", "recv", "/q", "--backoff", "0.01", "--max-attempts", "9", "--", does(t, func(p *memoryProcess) int {
			for _, e := range p.env {
				if id, ok := strings.CutPrefix(e, "ZSYNC_ID="); ok {
					ids = append(ids, id)
				}
			}
			return min(3-len(ids), 1)
		})).want(0, "")
		if len(ids) != 3 || ids[0] != ids[1] || ids[1] != ids[2] || ids[0] == "" {
			t.Errorf("IDs: %q", ids)
		}
	})
}
