//go:build unix

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// screen returns what a terminal shows of output: its lines, of which eraseLine erases the last.
func screen(output string) []string {
	lines := strings.Split(output, "\n")
	for i, line := range lines {
		lines[i] = line[strings.LastIndex(line, eraseLine)+1:]
		lines[i] = strings.TrimPrefix(lines[i], eraseLine[1:])
	}
	return lines
}

func TestOnATerminalAWaitIsOneLineThatIsUpdated(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		machineOf(t).columns = 60
		s := named(t, srv, "the holder")
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		r := start(t, srv.Addr(), "", "lock", "-v", "/m", "--session", "60", "--", "true")
		last := func() string {
			lines := screen(r.stderr.String())
			return lines[len(lines)-1]
		}
		time.Sleep(12*time.Second + narrating/2)
		if got := last(); !strings.HasPrefix(got, "zsync: /m: waiting for 12s: held by the holder, ") || len(got) != 59 {
			t.Errorf("after 12 seconds the last line is %q", got)
		}
		lines := strings.Count(r.stderr.String(), "\n")
		time.Sleep(time.Minute)
		if got := last(); !strings.HasPrefix(got, "zsync: /m: waiting for 1m12s: held by") {
			t.Errorf("after a minute the last line is %q", got)
		}
		if got := strings.Count(r.stderr.String(), "\n"); got != lines {
			t.Errorf("the wait takes %d more lines", got-lines)
		}
		srv.Stop()
		time.Sleep(5*time.Second + narrating/2)
		shown := screen(r.stderr.String())
		if n := len(shown); n < 2 || !strings.Contains(shown[n-2], "no connection to any server") || !strings.HasPrefix(shown[n-1], "zsync: /m: waiting for 1m1") {
			t.Errorf("in an outage the terminal shows\n%s", strings.Join(shown, "\n"))
		}
		srv.Restart()
		time.Sleep(5 * time.Second)
		harness.Must(t, m.Unlock())
		r.want(0, "")
		shown = screen(r.stderr.String())
		text := strings.Join(shown, "\n")
		if n := len(shown); shown[n-1] != "" || !strings.HasPrefix(shown[n-2], "zsync: /m: granted after 1m2") || strings.Contains(text, "waiting for") {
			t.Errorf("in the end the terminal shows\n%s", text)
		}
	})
}

func TestMessagesAppearAboveTheStatusLine(t *testing.T) {
	var out bytes.Buffer
	width := 10
	l := &statusLine{w: &out, width: func() int { return width }}
	l.Write([]byte("one\n"))
	l.show("waiting 1")
	l.show("waiting for long")
	l.Write([]byte("two\n"))
	if got := screen(out.String()); strings.Join(got, "|") != "one|two|waiting f" {
		t.Errorf("the terminal shows %q", got)
	}
	l.clear()
	l.clear()
	l.Write([]byte("three\n"))
	if got := screen(out.String()); strings.Join(got, "|") != "one|two|three|" {
		t.Errorf("the terminal shows %q", got)
	}
	out.Reset()
	if width = 0; l.show("waiting") || out.Len() > 0 {
		t.Errorf("without a terminal, %q", &out)
	}
}
