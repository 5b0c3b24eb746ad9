//go:build unix

package loss

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// envHolder names the variable with which the test's program is started again, as a
// holder: the server's address.
const envHolder = "ZSYNC_TEST_HOLDER"

// stoppedTimeout is the session timeout of the holder that is stopped. A process may
// stand still for seconds on a busy machine without anybody having stopped it.
const stoppedTimeout = 5 * time.Second

// A report is a line of the holder's: what it holds, or how one of its holds has ended.
type report struct {
	Session int64 // through which it holds
	Path    string
	Reason  string
	Lost    int64 // the session of the loss
	Since   time.Time
	Err     string // if that is no loss
}

// TestHolderProcess is the holder, in a process of its own: for each line of its input
// it takes everything, says so, and says how each has ended.
func TestHolderProcess(t *testing.T) {
	addr := os.Getenv(envHolder)
	if addr == "" {
		t.Skip(envHolder + " is not set: TestAHolderIsToldThatItWasStopped runs this in a process of its own")
	}
	s, err := zsync.Connect(t.Context(), addr, zsync.WithSessionTimeout(stoppedTimeout))
	harness.Must(t, err)
	defer s.Close()
	var mu sync.Mutex
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		json.NewEncoder(os.Stdout).Encode(r)
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var held, ended sync.WaitGroup
		for path, hold := range holds(s) {
			held.Add(1)
			begun := sync.OnceFunc(held.Done)
			ended.Go(func() {
				err := hold(t.Context(), func(ctx context.Context) error {
					begun()
					<-ctx.Done()
					return nil
				})
				begun() // if it never began
				r := report{Path: path}
				var lost *zsync.LostError
				if errors.As(err, &lost) {
					r.Reason, r.Lost, r.Since = lost.Reason.String(), lost.Session, lost.Since
				} else {
					r.Err = "no loss"
					if err != nil {
						r.Err = err.Error()
					}
				}
				say(r)
			})
		}
		held.Wait()
		say(report{Session: s.ID()})
		ended.Wait()
	}
	os.Exit(0) // and not what a test prints at its end
}

// A process is stopped until the servers have ended its session, and goes on. Whatever
// it held it is told to have lost because it was stopped, since some time before it went
// on.
func TestAHolderIsToldThatItWasStopped(t *testing.T) {
	harness.InMemory(t)
	t.Parallel()
	rounds := 1
	if harness.Long() {
		rounds = 20
	}
	srv := zktest.Start(t, zktest.WithTick(50*time.Millisecond))
	h := exec.Command(os.Args[0], "-test.run=^TestHolderProcess$")
	h.Env = append(os.Environ(), envHolder+"="+srv.Addr())
	h.Stderr = os.Stderr
	in, err := h.StdinPipe()
	harness.Must(t, err)
	out, err := h.StdoutPipe()
	harness.Must(t, err)
	harness.Must(t, h.Start())
	defer func() {
		in.Close()
		h.Process.Kill()
		h.Wait()
	}()
	lines := json.NewDecoder(out)
	next := func() (r report) {
		t.Helper()
		harness.Must(t, lines.Decode(&r))
		return r
	}
	told, right := 0, 0
	for range rounds {
		_, err := io.WriteString(in, "hold\n")
		harness.Must(t, err)
		now := next()
		if now.Session == 0 {
			t.Fatalf("the holder does not hold: %+v", now)
		}
		harness.Must(t, h.Process.Signal(syscall.SIGSTOP))
		// real time: the kernel has stopped a process, whose session must end
		for start := time.Now(); slices.Contains(srv.Sessions(), now.Session); time.Sleep(20 * time.Millisecond) {
			if time.Since(start) > 3*time.Minute {
				t.Fatal("the session of a process that stands still does not end")
			}
		}
		resumed := time.Now()
		harness.Must(t, h.Process.Signal(syscall.SIGCONT))
		for range 5 {
			r := next()
			if told++; r.Reason == zsync.LossPaused.String() && r.Lost == now.Session && r.Since.Before(resumed) {
				right++
			} else {
				t.Logf("told is %+v; it went on at %v", r, resumed)
			}
		}
	}
	t.Logf("%d of %d losses had the right reason", right, told)
	if right*100 < told*99 {
		t.Errorf("%d of %d losses had the right reason, want 99 of 100", right, told)
	}
}
