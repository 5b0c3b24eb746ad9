//go:build unix

package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync"
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
		if r.want(exitUsage, ""); !strings.Contains(r.stderr.String(), `neither JSON nor UTF-8, "\xff\xfe": add --raw`) {
			t.Errorf("%s", &r.stderr)
		}
		r = start(t, srv.Addr(), "fine\n\xff\xfe\nnot sent\n", "queue", "send", "/p")
		if r.want(exitUsage, ""); !strings.Contains(r.stderr.String(), "elements certainly sent: 1: an element is neither JSON nor UTF-8") {
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
