package ensemble_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/ensemble"
)

// withSASL starts a server that demands SASL, for this test alone, and returns its address and a
// function that kills and restarts it.
func withSASL(t *testing.T) (addr string, restart func()) {
	t.Helper()
	if _, ok := ensemble.FromEnv(t); !ok {
		t.Skip("needs real servers, as those of ZSYNC_TEST_SERVERS: a real server that demands SASL is used")
	}
	dir := t.TempDir()
	jaas := filepath.Join(dir, "jaas.conf")
	text := `Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_bob="secret"
  user_eve="evil";
};
`
	if err := os.WriteFile(jaas, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../../scripts/ensemble")
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "ensemble")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(script, args...)
		var problem bytes.Buffer
		cmd.Stderr = &problem
		cmd.Env = append(os.Environ(), fmt.Sprintf("ENSEMBLE_JVM=-Djava.security.auth.login.config=%s -Dzookeeper.authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"+
			" -Dzookeeper.enforce.auth.enabled=true -Dzookeeper.enforce.auth.schemes=sasl -Dzookeeper.sessionRequireClientSASLAuth=true", jaas))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("ensemble %v: %v\n%s", args, err, &problem)
		}
		return strings.TrimSpace(string(out))
	}
	t.Cleanup(func() { run("stop", home) })
	return run("start", "1", home), func() { run("restart", home, "1") }
}

func TestSASLHoldsALockOverALossOfTheConnectionOnARealServer(t *testing.T) {
	addr, restart := withSASL(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	connect := func(user, password string, opts ...zsync.Option) (*zsync.Session, error) {
		opts = append(opts, zsync.WithSASL(zsync.SASLDigestMD5(user, password)), zsync.WithSessionTimeout(60*time.Second))
		return zsync.Connect(ctx, addr, opts...)
	}

	start := time.Now()
	for user, password := range map[string]string{"bob": "wrong", "nobody": "other"} {
		_, err := connect(user, password)
		if !errors.Is(err, zk.ErrAuthFailed) || !strings.Contains(err.Error(), "SASL DIGEST-MD5") {
			t.Errorf("%s with the password %s: %v", user, password, err)
		}
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("wrong passwords took %v", took)
	}
	without, err := zsync.Connect(ctx, addr)
	if err == nil {
		err = zsync.NewMutex(without, "/m").Lock(ctx)
		without.Close()
	}
	if !errors.Is(err, zk.ErrAuthFailed) {
		t.Errorf("without SASL: %v", err)
	}

	bob, err := connect("bob", "secret", zsync.WithACL(zk.AuthACL(zk.PermAll)))
	if err != nil {
		t.Fatal(err)
	}
	defer bob.Close()
	m := zsync.NewMutex(bob, "/locks/m")
	if err := m.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	id := bob.ID()
	restart() // the session survives; the connection does not
	if err := zsync.NewValue[int](bob, "/v").Store(ctx, 1); err != nil {
		t.Error(err)
	}
	select {
	case <-m.Lost():
		t.Error("the lock was lost")
	default:
	}
	if bob.ID() != id || bob.Stats().Reconnects == 0 {
		t.Errorf("session %x, then %x; %d reconnects", id, bob.ID(), bob.Stats().Reconnects)
	}
	if err := m.Unlock(); err != nil {
		t.Error(err)
	}

	// Another of bob's sessions finds bob's znodes its own (whoAmI), and eve's session does not.
	again, err := connect("bob", "secret", zsync.WithACL(zk.AuthACL(zk.PermAll)))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := zsync.NewMutex(again, "/locks/m").Lock(ctx); err != nil {
		t.Error(err)
	}
	eve, err := connect("eve", "evil", zsync.WithACL(zk.AuthACL(zk.PermAll)))
	if err != nil {
		t.Fatal(err)
	}
	defer eve.Close()
	if err := zsync.NewMutex(eve, "/locks/m").Lock(ctx); !errors.Is(err, zsync.ErrUnprotected) && !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("eve: %v", err)
	}
}
