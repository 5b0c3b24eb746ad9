//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

func TestTimeout0IsTry(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		m := zsync.NewMutex(connect(t, srv), "/p")
		if err := m.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, args := range []string{"lock -w 0 /p", "lock --timeout 0s /p", "lock -n -w 0 /p", "lock -n /p"} {
			start(t, srv.Addr(), "", append(strings.Fields(args), "--", "echo", "no")...).want(exitBusy, "")
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("four tries took %v", took)
		}
		for _, args := range []string{"elect -w 0 /e -- echo no", "barrier wait -w 0 /b", "once -w 0 /o -- echo no"} {
			r := start(t, srv.Addr(), "", strings.Fields(args)...)
			if wrong := r.outcome(exitUsage, "", `--timeout 0: .*leave --timeout out`); wrong != "" {
				t.Error(wrong)
			}
		}
	})
}

func TestTryEndsSoonWhereNoServerAnswers(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, hang := range []struct {
			what  string
			begin func(r zktest.Request) bool
		}{
			{"at the handshake", func(r zktest.Request) bool { return true }},
			{"after it", func(r zktest.Request) bool { return r.Op != zktest.OpConnect }},
		} {
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if hang.begin(r) {
					return zktest.Hang
				}
				return zktest.Pass
			})
			began := time.Now()
			r := start(t, srv.Addr(), "", "lock", "-n", "/p", "--", "echo", "no")
			if wrong := r.outcome(exitServers, "", "no server answered within 5s"); wrong != "" {
				t.Errorf("%s: %s", hang.what, wrong)
			}
			if took := time.Since(began); took > 7*time.Second {
				t.Errorf("%s: it took %v", hang.what, took)
			}
		}
	})
}

// The command needs a token, and no server answers after the grant.
func TestWaitForATokenEndsAsTheWaitForTheHoldDoes(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, tt := range []struct {
			args, messages string
			signal         os.Signal
			status         int
			limit          time.Duration
		}{
			{args: "lock /p", signal: syscall.SIGTERM, status: 128 + int(syscall.SIGTERM), limit: 5 * time.Second},
			{args: "elect /e --again", signal: syscall.SIGINT, status: 128 + int(syscall.SIGINT), limit: 5 * time.Second},
			{args: "lock /p --timeout 3", status: exitBusy, messages: "gave up after 3s", limit: 5 * time.Second},
			{args: "lock /p --try", status: exitServers, messages: "no server answered within 5s", limit: 7 * time.Second},
			{args: "lock /p", status: exitLost, messages: "the hold was lost .* before echo was run\n$", limit: time.Minute},
		} {
			asked := make(chan struct{})
			srv.Intercept(func(r zktest.Request) zktest.Action {
				select {
				case <-asked:
					return zktest.Hang
				default:
				}
				if r.Op == zktest.OpSetData {
					close(asked)
					return zktest.Hang
				}
				return zktest.Pass
			})
			began := time.Now()
			r := start(t, srv.Addr(), "", append(strings.Fields(tt.args), "--", "echo", "no")...)
			<-asked
			if tt.signal != nil {
				r.signal(tt.signal)
			}
			if wrong := r.outcome(tt.status, "", tt.messages); wrong != "" {
				t.Error(wrong)
			}
			if took := time.Since(began); took > tt.limit {
				t.Errorf("%s: it took %v", tt.args, took)
			}
			srv.Intercept(nil)
			for _, id := range srv.Sessions() {
				srv.Expire(id)
			}
		}
	})
}

// No server answers after the command.
func TestSignalEndsTheRecordOfASuccess(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, args := range []string{"once /o", "schedule do /s --at 2026-01-31T00:00:00Z"} {
			ran, recorded := make(chan struct{}), make(chan struct{})
			work := does(t, func(*memoryProcess) int { close(ran); return 0 })
			srv.Intercept(func(r zktest.Request) zktest.Action {
				select {
				case <-ran:
				default:
					return zktest.Pass
				}
				if r.Op != zktest.OpPing && !harness.Closed(recorded) {
					close(recorded)
				}
				return zktest.Hang
			})
			r := start(t, srv.Addr(), "", append(strings.Fields(args), "--", work)...)
			<-recorded
			began := time.Now()
			r.signal(syscall.SIGTERM)
			if wrong := r.outcome(128+int(syscall.SIGTERM), "", ""); wrong != "" {
				t.Error(wrong)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s: it took %v", args, took)
			}
			srv.Intercept(nil)
		}
	})
}

func TestFileOfCredentialsThatIsASilentPipeDoesNotHoldBackSignals(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		for _, flags := range []string{"--auth-file", "--sasl-user me --sasl-password-file", "--tls-ca"} {
			pipe := filepath.Join(t.TempDir(), "pipe")
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			r := start(t, srv.Addr(), "", append(strings.Fields("lock /p "+flags+" "+pipe), "--", "echo", "no")...)
			silent, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the command has opened the pipe
			if err != nil {
				t.Fatal(err)
			}
			r.signal(syscall.SIGTERM)
			r.want(128+int(syscall.SIGTERM), "")
			silent.Close()
		}
	})
}

func TestTraceIntoAPipeWithoutAReaderCanBeEnded(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		r := start(t, srv.Addr(), "", "lock", "/p", "--trace", pipe, "--", "echo", "no")
		time.Sleep(time.Second) // it waits for a reader
		r.signal(syscall.SIGTERM)
		r.want(128+int(syscall.SIGTERM), "")
	})
}

func TestCommandThatASignalStopsHasFailedAtNoAttempt(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		start(t, srv.Addr(), "", "queue", "send", "/q", "work").want(0, "")
		for range 4 {
			running := make(chan struct{})
			work := does(t, func(p *memoryProcess) int { close(running); p.forever(); return 0 })
			r := start(t, srv.Addr(), "", "queue", "recv", "/q", "--follow", "--max-attempts", "3", "--", work)
			<-running
			r.signal(syscall.SIGTERM)
			r.want(128+int(syscall.SIGTERM), "")
		}
		attempt := does(t, func(p *memoryProcess) int { p.say(p.getenv("ZSYNC_ATTEMPT")); return 0 })
		start(t, srv.Addr(), "", "queue", "recv", "/q", "--max-attempts", "3", "--", attempt).want(0, "1\n")
	})
}

func TestPageOfAPathThatDoesNotExistIsRefusedAsASetting(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		r := start(t, srv.Addr(), "", "ui", "/no/such", "--listen", "127.0.0.1:0")
		if wrong := r.outcome(exitConfig, "", "/no/such: nothing is there"); wrong != "" {
			t.Error(wrong)
		}
	})
}
