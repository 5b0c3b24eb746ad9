//go:build unix

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/zktest"
)

// receive receives n elements.
func receive[T any](t *testing.T, ctx context.Context, q *zsync.Queue[T], n int) (got []T) {
	t.Helper()
	for range n {
		d, err := q.Receive(ctx)
		if err == nil {
			err = d.Ack(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, d.Value)
	}
	return got
}

func TestTheCommandAndAProgramWithDefaultsReadEachOthersElements(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		type job struct{ ID int }
		s, ctx := connect(t, srv), t.Context()
		texts, jobs, numbers := zsync.NewQueue[string](s, "/texts"), zsync.NewQueue[job](s, "/jobs"), zsync.NewQueue[int](s, "/numbers")
		lines := []string{"one", "and another", "", `say "hi"`, "<b> & c", `back\slash`, "ü☃"}
		start(t, srv.Addr(), "", append([]string{"queue", "send", "/texts"}, lines...)...).want(0, "")
		if got := receive(t, ctx, texts, len(lines)); !slices.Equal(got, lines) {
			t.Errorf("a program receives %q, want %q", got, lines)
		}
		start(t, srv.Addr(), strings.Join(lines, "\n")+"\n", "queue", "send", "/texts").want(0, "")
		if got := receive(t, ctx, texts, len(lines)); !slices.Equal(got, lines) {
			t.Errorf("of standard input a program receives %q, want %q", got, lines)
		}
		start(t, srv.Addr(), "", "queue", "send", "/texts", "--text", "42", "true", `"quoted"`).want(0, "")
		if got, want := receive(t, ctx, texts, 3), []string{"42", "true", `"quoted"`}; !slices.Equal(got, want) {
			t.Errorf("with --text a program receives %q, want %q", got, want)
		}
		start(t, srv.Addr(), "", "queue", "send", "/jobs", `{"ID": 7}`).want(0, "")
		start(t, srv.Addr(), "", "queue", "send", "/jobs", `{"ID": 8}`, "--id", "eight").want(0, "")
		if got, want := receive(t, ctx, jobs, 2), []job{{7}, {8}}; !slices.Equal(got, want) {
			t.Errorf("a program receives %v, want %v", got, want)
		}
		start(t, srv.Addr(), "", "queue", "send", "/numbers", "42").want(0, "")
		if got := receive(t, ctx, numbers, 1); got[0] != 42 {
			t.Errorf("a program receives %v", got)
		}

		if err := texts.Send(ctx, lines...); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "queue", "peek", "/texts").want(0, "one\n")
		start(t, srv.Addr(), "", "queue", "peek", "/texts", "--raw").want(0, "\"one\"\n")
		start(t, srv.Addr(), "", "queue", "recv", "/texts").want(0, strings.Join(lines, "\n")+"\n")
		if err := jobs.Send(ctx, job{9}); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "queue", "recv", "/jobs", "--", "cat").want(0, `{"ID":9}`)
		if err := texts.Send(ctx, "in"); err != nil {
			t.Fatal(err)
		}
		start(t, srv.Addr(), "", "queue", "recv", "/texts", "--", "cat").want(0, "in")
		for _, path := range []string{"/texts", "/jobs", "/numbers"} {
			start(t, srv.Addr(), "", "queue", "dead", path, "--json").want(0, "[]\n")
		}
	})
}

func TestElementsOfBytesAreSentAndReceivedWithRaw(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		raw := zsync.NewQueue[[]byte](connect(t, srv), "/p", zsync.WithCodec(zsync.Raw))
		r := start(t, srv.Addr(), "", "queue", "send", "/p", "fine", "\xff\xfe")
		if r.want(exitUsage, ""); !strings.Contains(r.stderr.String(), `neither JSON nor UTF-8: "\xff\xfe": add --raw`) {
			t.Errorf("%s", &r.stderr)
		}
		r = start(t, srv.Addr(), "fine\n\xff\xfe\nnot sent\n", "queue", "send", "/p")
		if r.want(exitUsage, ""); !strings.Contains(r.stderr.String(), "elements certainly sent: 1: neither JSON nor UTF-8") {
			t.Errorf("%s", &r.stderr)
		}
		start(t, srv.Addr(), "", "queue", "send", "/p", "--raw", "\xff\xfe", `"x"`).want(0, "")
		if got := receive(t, t.Context(), raw, 3); string(got[0]) != `"fine"` || string(got[1]) != "\xff\xfe" || string(got[2]) != `"x"` {
			t.Errorf("stored: %q", got)
		}
		start(t, srv.Addr(), "", "queue", "send", "/p", "--raw", `"x"`).want(0, "")
		start(t, srv.Addr(), "", "queue", "recv", "/p", "--raw").want(0, "\"x\"\n")
		for _, args := range []string{"send /p --raw --text x", "send /p --text --layout simple x"} {
			start(t, srv.Addr(), "", append([]string{"queue"}, strings.Fields(args)...)...).want(exitUsage, "")
		}
		start(t, srv.Addr(), "", "queue", "send", "/simple", "--layout", "simple", "as it is").want(0, "")
		start(t, srv.Addr(), "", "queue", "recv", "/simple", "--layout", "simple").want(0, "as it is\n")
	})
}

func TestAnElementIsAnArgumentOfTheCommandAsWithXargs(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		send := func(elements ...string) {
			t.Helper()
			start(t, srv.Addr(), "", append([]string{"queue", "send", "/p"}, elements...)...).want(0, "")
		}
		send("one two", "$(three)", "")
		start(t, srv.Addr(), "", "queue", "recv", "/p", "-I{}", "--", "echo", "<{}>", "and {}").want(0, "<one two> and one two\n<$(three)> and $(three)\n<> and \n")
		send("not read")
		start(t, srv.Addr(), "", "queue", "recv", "/p", "-I", "%", "--", does(t, func(p *memoryProcess) int {
			n, err := io.Copy(p.out, p.in)
			p.say(p.args[1], n, err)
			return 0
		}), "%").want(0, "not read 0 <nil>\n")
		send("with a \x00 zero")
		start(t, srv.Addr(), "", "queue", "recv", "/p", "-I{}", "--max-attempts", "2", "--", "echo", "{}").want(exitUsage, "")
		r := start(t, srv.Addr(), "", "queue", "dead", "/p")
		if r.wait(); !strings.Contains(r.stdout.String(), "an element with a zero byte, or of 128 KiB, is no argument o") {
			t.Errorf("the dead letters are\n%s", &r.stdout)
		}
		for _, args := range []string{"recv /p -I{} -- echo", "recv /p -I{}", "recv /p --replace= -- echo"} {
			start(t, srv.Addr(), "", append([]string{"queue"}, strings.Fields(args)...)...).want(exitUsage, "")
		}
	})
}

func TestAScriptLocksItself(t *testing.T) {
	need.Command(t, "sh")
	srv := serve(t)
	script := filepath.Join(t.TempDir(), "script")
	const text = `#!/bin/sh
[ "${ZSYNC_HELD-}" = "/locks/x $PPID" ] || exec zsync lock -n /locks/x -- "$0" "$@"
echo "held with $*"
cat
`
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	path := "env:PATH=" + filepath.Dir(binary()) + ":" + os.Getenv("PATH")
	x, outer := zsync.NewMutex(connect(t, srv), "/locks/x"), zsync.NewMutex(connect(t, srv), "/locks/outer")
	in, out := io.Pipe()
	// An outer zsync, which also sets ZSYNC_TOKEN and ZSYNC_HELD, does not count.
	first := startReading(t, srv.Addr(), in, path, "lock", "/locks/outer", "--", script, "a", "b c")
	first.awaitOutput("held with a b c\n")
	contenders(t, x, 1)
	contenders(t, outer, 1)
	start(t, srv.Addr(), "", path, "lock", "/locks/other", "--", script).want(exitBusy, "")
	out.Close()
	first.want(0, "held with a b c\n")
	start(t, srv.Addr(), "", path, "lock", "/locks/x", "--", script).want(0, "held with \n")
}
