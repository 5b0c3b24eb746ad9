//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/ui"
	"github.com/zsync/zsync/zktest"
)

func TestThePageIsServedToThisMachineAloneAndReadOnly(t *testing.T) {
	srv := serve(t)
	s := named(t, srv, "the holder")
	if err := errors.Join(zsync.NewMutex(s, "/jobs/nightly").Lock(t.Context()), zsync.NewMutex(s, "/elsewhere").Lock(t.Context())); err != nil {
		t.Fatal(err)
	}
	r := start(t, srv.Addr(), "", "ui", "/jobs", "--listen", "127.0.0.1:0", "--timetable", "/jobs/report=@daily")
	r.awaitOutput("\n")
	page := regexp.MustCompile(`^serving on (http://127\.0\.0\.1:\d+/)\n$`).FindStringSubmatch(r.stdout.String())
	if page == nil {
		t.Fatalf("it says %q", r.stdout.String())
	}
	get := func(url, host string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		data, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(data)
	}
	status, body := get(page[1], "")
	if status != http.StatusOK || !strings.Contains(body, "the holder") || strings.Contains(body, "/elsewhere") || strings.Contains(body, "Break…") {
		t.Errorf("status %d and\n%s", status, body)
	}
	if status, _ := get(page[1], "localhost:80"); status != http.StatusOK {
		t.Errorf("status %d as localhost", status)
	}
	// A name of another site that leads here, so that its scripts can read the page.
	if status, body := get(page[1], "evil.example"); status != http.StatusMisdirectedRequest || strings.Contains(body, "holder") {
		t.Errorf("status %d by another name", status)
	}
	if status, _ := get(page[1]+"break?path=/jobs/nightly&node=x", ""); status != http.StatusForbidden {
		t.Errorf("status %d of a form to break locks", status)
	}
	r.signal(syscall.SIGTERM)
	if got := r.wait(); got != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d\n%s", got, &r.stderr)
	}
	for args, message := range map[string]string{
		"ui --timetable /p":    "want PATH=FIELDS",
		"ui --listen nowhere":  "--listen: ",
		"ui /no/such/path":     "nothing is there",
		"ui a b":               "want: zsync ui [PATH] [flags]",
		"top a b":              "want: zsync top [PATH] [flags]",
		"top":                  "top wants a terminal; zsync ls --watch does without",
		"gen man":              "want: zsync gen man DIR",
		"doctor /p --yes":      "--yes goes with --clean",
		"group watch /g -n -1": "--count -1: must be at least 1",
	} {
		r := start(t, srv.Addr(), "", strings.Fields(args)...)
		if status := r.wait(); status == 0 || !strings.Contains(r.stderr.String(), message) {
			t.Errorf("%s: exit status %d and %q, want %q", args, status, r.stderr.String(), message)
		}
	}
}

// pipes is a listener without the network.
type pipes chan net.Conn

func (l pipes) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipes) Close() error   { return nil }
func (l pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// A visitor that sends only a part of a request, or no further request, keeps no connection. The page's
// stream of events goes on.
func TestThePageWaitsForNoSlowVisitor(t *testing.T) {
	for name, tt := range map[string]struct {
		request string
		stays   bool
	}{
		"a part of the header": {"POST /break HTTP/1.1\r\nHost: localhost\r\n", false},
		"a part of the body":   {"POST /break HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nto", false},
		"no body":              {"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", false},
		"a whole request":      {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", false},
		"a stream":             {"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T, srv *zktest.Server) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l := make(pipes)
				served := harness.Async(func() error {
					return (&task{waiting: ctx}).serve(l, ui.Handler(connect(t, srv), ui.Options{}))
				})
				ours, theirs := net.Pipe()
				defer ours.Close()
				l <- theirs
				go io.WriteString(ours, tt.request)
				ours.SetReadDeadline(time.Now().Add(time.Hour))
				began := time.Now()
				io.Copy(io.Discard, ours)
				if took := time.Since(began); (took == time.Hour) != tt.stays || !tt.stays && took > 2*time.Minute {
					t.Errorf("the connection has ended after %v", took)
				}
				cancel()
				close(l)
				<-served
			})
		})
	}
}

func TestThePageAndZsyncScheduleTakeTheSameTimetables(t *testing.T) {
	srv := serve(t)
	start(t, srv.Addr(), "", "schedule", "do", "/p", "--cron", "@every 1h", "--", "true").want(0, "")
	r := start(t, srv.Addr(), "", "ui", "--listen", "127.0.0.1:0", "--timetable", "/p=@every 1h")
	r.awaitOutput("\n")
	resp, err := http.Get(strings.TrimSpace(strings.TrimPrefix(r.stdout.String(), "serving on ")))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	r.signal(syscall.SIGKILL)
	r.wait()
	next := regexp.MustCompile(`>that of [^<]*</td><td data-th="Failed"></td><td data-th="Next">([^<]*)</td>`).FindSubmatch(body)
	if next == nil {
		t.Fatalf("no schedule in\n%s", body)
	}
	at, err := time.ParseInLocation(time.DateTime, string(next[1]), time.Local)
	if err != nil || at.Unix()%3600 != 0 {
		t.Errorf("the next is due at %s, %v; want a full hour", next[1], err)
	}
	start(t, srv.Addr(), "", "ui", "--timetable", "/p=CRON_TZ=UTC").want(exitUsage, "")
}
