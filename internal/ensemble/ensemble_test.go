package ensemble_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/need"
)

func TestNoEnsembleWithoutEnvironment(t *testing.T) {
	t.Setenv("ZSYNC_TEST_SERVERS", "")
	if e, ok := ensemble.FromEnv(t); ok || e != nil {
		t.Fatalf("FromEnv = %v, %v without ZSYNC_TEST_SERVERS, want nil, false", e, ok)
	}
}

func TestEveryServerAnswers(t *testing.T) {
	need.Variable(t, "ZSYNC_TEST_SERVERS")
	e, _ := ensemble.FromEnv(t)
	for _, addr := range e.Addrs() {
		if !serves(addr, patience) {
			t.Errorf("%s does not answer ruok", addr)
		}
	}
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	e := ensemble.Faults(t)
	e.Pause(1)
	if serves(e.Addrs()[0], time.Second) {
		t.Error("server 1 answers while paused")
	}
	e.Resume(1)
	if !serves(e.Addrs()[0], patience) {
		t.Error("server 1 does not answer after Resume")
	}
}

func TestKilledLeaderIsReplacedAndComesBack(t *testing.T) {
	e := ensemble.Faults(t)
	if len(e.Addrs()) < 3 {
		need.Missing(t, "a third server", "ZSYNC_TEST_SERVERS names fewer")
	}
	old := e.Leader()
	e.Kill(old)
	if serves(e.Addrs()[old-1], time.Second) {
		t.Errorf("server %d answers after Kill", old)
	}
	e.Restart(old)
	if !serves(e.Addrs()[old-1], patience) {
		t.Errorf("server %d does not answer after Restart", old)
	}
	e.Leader()
}

// A server killed between the snapshot from its leader and the write of its epoch refuses to start.
func TestServerThatWasKilledBeforeItStoredItsEpochStartsAgain(t *testing.T) {
	e := ensemble.Faults(t)
	if len(e.Addrs()) < 3 {
		need.Missing(t, "a third server", "ZSYNC_TEST_SERVERS names fewer")
	}
	e.Kill(2)
	path := filepath.Join(os.Getenv("ZSYNC_TEST_ENSEMBLE"), "2", "data", "version-2", "currentEpoch")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(old)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fmt.Append(nil, n-1), 0o600); err != nil {
		t.Fatal(err)
	}
	e.Restart(2)
	if !serves(e.Addrs()[1], patience) {
		t.Error("server 2 does not answer after Restart")
	}
}

func TestHurtServersServeAgainWhenTheTestIsOver(t *testing.T) {
	e := ensemble.Faults(t)
	if len(e.Addrs()) < 3 {
		need.Missing(t, "a third server", "ZSYNC_TEST_SERVERS names fewer")
	}
	t.Run("hurt", func(t *testing.T) {
		e := ensemble.Faults(t)
		e.Pause(1)
		e.Kill(2)
	})
	for _, addr := range e.Addrs() {
		if !serves(addr, patience) {
			t.Errorf("%s does not answer ruok", addr)
		}
	}
}

// Tests of several packages restart servers of one ensemble at the same time.
func TestServerThatSeveralRestartAtOnceRunsOnce(t *testing.T) {
	e := ensemble.Faults(t)
	if len(e.Addrs()) < 3 {
		need.Missing(t, "a third server", "ZSYNC_TEST_SERVERS names fewer")
	}
	dir := os.Getenv("ZSYNC_TEST_ENSEMBLE")
	var restarts sync.WaitGroup
	for range 4 {
		restarts.Go(func() {
			out, err := exec.Command(filepath.Join(dir, "ensemble"), "restart", dir, "2").CombinedOutput()
			if err != nil {
				t.Errorf("ensemble restart: %v\n%s", err, out)
			}
		})
	}
	restarts.Wait()
	if !serves(e.Addrs()[1], patience) {
		t.Error("server 2 does not answer after the restarts")
	}
	recorded, err := os.ReadFile(filepath.Join(dir, "2", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := running(filepath.Join(dir, "2", "zoo.cfg")), strings.TrimSpace(string(recorded)); !slices.Equal(got, []string{want}) {
		t.Errorf("processes %v run as server 2, want only the recorded one, %s", got, want)
	}
}

// running returns the ids of the processes whose last argument is config.
func running(config string) []string {
	var ids []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		args, _ := os.ReadFile(line) // a process may have ended
		if strings.HasSuffix(string(args), "\x00"+config+"\x00") {
			ids = append(ids, filepath.Base(filepath.Dir(line)))
		}
	}
	return ids
}

// patience is how long a server may take to answer on a machine that is busy.
const patience = time.Minute

// serves reports whether the server at addr answers within d.
func serves(addr string, d time.Duration) bool {
	answer, _ := fourLetters(addr, "ruok", d)
	return answer == "imok"
}

// fourLetters returns the answer of the server at addr to a command of four letters.
func fourLetters(addr, command string, d time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", addr, d)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(d))
	io.WriteString(c, command)
	answer, err := io.ReadAll(c)
	return strings.TrimSpace(string(answer)), err
}
