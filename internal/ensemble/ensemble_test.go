package ensemble_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/ensemble"
)

func TestNoEnsembleWithoutEnvironment(t *testing.T) {
	t.Setenv("ZSYNC_TEST_SERVERS", "")
	if e, ok := ensemble.FromEnv(t); ok || e != nil {
		t.Fatalf("FromEnv = %v, %v without ZSYNC_TEST_SERVERS, want nil, false", e, ok)
	}
}

func TestEveryServerAnswers(t *testing.T) {
	e, ok := ensemble.FromEnv(t)
	if !ok {
		t.Skip("needs a real ensemble: ZSYNC_TEST_SERVERS")
	}
	for _, addr := range e.Addrs() {
		if !serves(addr) {
			t.Errorf("%s does not answer ruok", addr)
		}
	}
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	e := ensemble.Faults(t)
	e.Pause(1)
	if serves(e.Addrs()[0]) {
		t.Error("server 1 answers while paused")
	}
	e.Resume(1)
	if !serves(e.Addrs()[0]) {
		t.Error("server 1 does not answer after Resume")
	}
}

func TestKilledLeaderIsReplacedAndComesBack(t *testing.T) {
	e := ensemble.Faults(t)
	if len(e.Addrs()) < 3 {
		t.Skip("needs three servers")
	}
	old := e.Leader()
	e.Kill(old)
	if serves(e.Addrs()[old-1]) {
		t.Errorf("server %d answers after Kill", old)
	}
	e.Restart(old)
	if !serves(e.Addrs()[old-1]) {
		t.Errorf("server %d does not answer after Restart", old)
	}
	e.Leader()
}

func TestHurtServersServeAgainWhenTheTestIsOver(t *testing.T) {
	e := ensemble.Faults(t)
	if len(e.Addrs()) < 3 {
		t.Skip("needs three servers")
	}
	t.Run("hurt", func(t *testing.T) {
		e := ensemble.Faults(t)
		e.Pause(1)
		e.Kill(2)
	})
	for _, addr := range e.Addrs() {
		if !serves(addr) {
			t.Errorf("%s does not answer ruok", addr)
		}
	}
}

// serves reports whether the server at addr answers within a second.
func serves(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	io.WriteString(c, "ruok")
	answer, _ := io.ReadAll(c)
	return strings.TrimSpace(string(answer)) == "imok"
}
