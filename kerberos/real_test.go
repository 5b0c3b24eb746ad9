package kerberos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
)

// A realm is a KDC for one test.
type realm struct {
	t    *testing.T
	dir  string
	env  []string
	stop func()
}

// short is the life of the tickets of the principal short.
const short = 15 * time.Second

// newRealm starts a KDC that knows the principals bob and short, and the server on localhost.
func newRealm(t *testing.T) *realm {
	t.Helper()
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin")
	for _, program := range []string{"timeout", "krb5kdc", "kadmin.local", "kinit"} {
		need.Command(t, program)
	}
	if _, err := os.Stat("/usr/share/java/zookeeper.jar"); err != nil {
		need.Missing(t, "zookeeper", err.Error())
	}
	r := &realm{t: t, dir: t.TempDir(), stop: func() {}}
	port := freePort(t)
	r.write("krb5.conf", fmt.Sprintf(`[libdefaults]
  default_realm = ZSYNC.TEST
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
[realms]
  ZSYNC.TEST = {
    kdc = 127.0.0.1:%d
  }
`, port))
	r.write("kdc.conf", fmt.Sprintf(`[kdcdefaults]
  kdc_listen = 127.0.0.1:%d
  kdc_tcp_listen = 127.0.0.1:%[1]d
[realms]
  ZSYNC.TEST = {
    database_name = %[2]s/principal
    key_stash_file = %[2]s/stash
    acl_file = %[2]s/acl
    default_principal_flags = +preauth
  }
[logging]
  kdc = FILE:%[2]s/log
`, port, r.dir))
	r.env = []string{"KRB5_CONFIG=" + r.path("krb5.conf"), "KRB5_KDC_PROFILE=" + r.path("kdc.conf"), "KRB5CCNAME=FILE:" + r.path("cache")}
	r.run("", "kdb5_util", "create", "-s", "-r", "ZSYNC.TEST", "-P", "master")
	r.run(fmt.Sprintf(`addprinc -randkey zookeeper/localhost
addprinc -randkey host/localhost
addprinc -pw secret bob
addprinc -pw secret -maxlife "%d seconds" short
ktadd -k %[2]s/server.keytab zookeeper/localhost
ktadd -norandkey -k %[2]s/client.keytab bob short
`, int(short.Seconds()), r.dir), "kadmin.local")
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *realm) path(name string) string { return filepath.Join(r.dir, name) }

func (r *realm) write(name, text string) {
	r.t.Helper()
	harness.Must(r.t, os.WriteFile(r.path(name), []byte(text), 0o600))
}

func (r *realm) run(input, program string, args ...string) {
	r.t.Helper()
	cmd := exec.Command("timeout", append([]string{"60", program}, args...)...)
	cmd.Env = append(os.Environ(), r.env...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

// start starts the KDC, and waits until it can be reached.
func (r *realm) start() {
	r.t.Helper()
	out, err := os.Create(r.path("output"))
	harness.Must(r.t, err)
	defer out.Close()
	r.stop = ensemble.Process(r.t, "krb5kdc -n", out, r.env...)
	r.eventually(func() error {
		return exec.Command("env", append(r.env, "sh", "-c", "echo secret | timeout 5 kinit -c "+r.path("probe")+" bob")...).Run()
	})
}

// eventually waits until f returns nil.
func (r *realm) eventually(f func() error) {
	r.t.Helper()
	// real time: programs of MIT Kerberos, which say nothing when they are ready
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal(err)
		}
	}
}

// freePort returns a port below the range of the kernel, so no connection takes it while the KDC
// is stopped.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		port := 2000 + rand.IntN(30000)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
}

// servers starts a server that demands Kerberos, and returns its connect string.
func (r *realm) servers() (*ensemble.Own, string) {
	r.t.Helper()
	r.write("jaas.conf", fmt.Sprintf(`Server {
  com.sun.security.auth.module.Krb5LoginModule required
  useKeyTab=true keyTab="%s" storeKey=true useTicketCache=false isInitiator=false
  principal="zookeeper/localhost@ZSYNC.TEST";
};
`, r.path("server.keytab")))
	own, addr := ensemble.Start(r.t, 1, fmt.Sprintf("-Djava.security.auth.login.config=%s -Djava.security.krb5.conf=%s"+
		" -Dzookeeper.authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"+
		" -Dzookeeper.enforce.auth.enabled=true -Dzookeeper.enforce.auth.schemes=sasl -Dzookeeper.sessionRequireClientSASLAuth=true",
		r.path("jaas.conf"), r.path("krb5.conf")))
	return own, strings.Replace(addr, "127.0.0.1", "localhost", 1)
}

func TestKerberosHoldsALockOverLostConnectionsAndTheEndOfATicket(t *testing.T) {
	r := newRealm(t)
	servers, addr := r.servers()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	config := WithConfig(r.path("krb5.conf"))
	connect := func(m zsync.SASLMechanism, err error) (*zsync.Session, error) {
		t.Helper()
		harness.Must(t, err)
		return zsync.Connect(ctx, addr, zsync.WithSASL(m), zsync.WithSessionTimeout(60*time.Second),
			zsync.WithACL([]zk.ACL{{Perms: zk.PermAll, Scheme: "sasl", ID: m.(*mechanism).user + "@ZSYNC.TEST"}}))
	}
	locked := func(m zsync.SASLMechanism, err error) (*zsync.Session, *zsync.Mutex) {
		t.Helper()
		s, err := connect(m, err)
		harness.Must(t, err)
		t.Cleanup(func() { s.Close() })
		mu := zsync.NewMutex(s, "/locks-of-"+m.(*mechanism).user)
		harness.Must(t, mu.Lock(ctx))
		return s, mu
	}
	// held checks that a session has come over the loss of its connection with its lock.
	held := func(s *zsync.Session, mu *zsync.Mutex, id, reconnects int64) {
		t.Helper()
		if err := zsync.NewValue[int64](s, fmt.Sprintf("/value-%x", id)).Store(ctx, reconnects); err != nil {
			t.Error(err)
		}
		if harness.Closed(mu.Lost()) {
			t.Error("the lock was lost")
		}
		if s.ID() != id || s.Stats().Reconnects <= reconnects {
			t.Errorf("session %x, then %x; %d reconnects, then %d", id, s.ID(), reconnects, s.Stats().Reconnects)
		}
	}

	// A ticket cache, and a password.
	r.run("secret\n", "kinit", "-l", "1h", "bob")
	for _, make := range []func() (zsync.SASLMechanism, error){
		func() (zsync.SASLMechanism, error) { return Cache(r.path("cache"), config) },
		func() (zsync.SASLMechanism, error) {
			return Password("bob@ZSYNC.TEST", "secret", config, WithService("zookeeper/_HOST@ZSYNC.TEST"))
		},
	} {
		s, mu := locked(make())
		harness.Must(t, mu.Unlock())
		s.Close()
	}

	// A ticket ends while a lock is held, and the connection is lost.
	m, err := Keytab("short", r.path("client.keytab"), config)
	brief, briefly := locked(m, err)
	m2, err := Keytab("bob", r.path("client.keytab"), config)
	bob, bobs := locked(m2, err)
	last := func() grant {
		m := m.(*mechanism)
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.last["zookeeper/localhost"]
	}
	first := last()
	if left := time.Until(first.end); left > short {
		t.Fatalf("the ticket ends in %v; want %v", left, short)
	}
	time.Sleep(time.Until(first.end)) // real time: the KDC gives a ticket for at least this time
	id, bobsID := brief.ID(), bob.ID()
	before, bobsBefore := brief.Stats().Reconnects, bob.Stats().Reconnects
	servers.Restart(1)
	held(brief, briefly, id, int64(before))
	held(bob, bobs, bobsID, int64(bobsBefore))
	if !last().end.After(first.end) {
		t.Errorf("the ticket ended at %v, and was not renewed", first.end)
	}
	harness.Must(t, briefly.Unlock())
	brief.Close()

	// The connection is lost while no KDC runs.
	bobsBefore = bob.Stats().Reconnects
	r.stop()
	servers.Restart(1)
	held(bob, bobs, bobsID, int64(bobsBefore))
	harness.Must(t, bobs.Unlock())
}

func TestKerberosSaysWhatIsWrong(t *testing.T) {
	r := newRealm(t)
	_, addr := r.servers()
	config := WithConfig(r.path("krb5.conf"))
	r.run("secret\n", "kinit", "-l", "2s", "-c", r.path("ended"), "bob")
	r.eventually(func() error {
		if _, err := Cache(r.path("ended"), config); err == nil {
			return errors.New("the ticket does not end")
		}
		return nil
	})
	for _, c := range []struct {
		what string
		addr string
		make func() (zsync.SASLMechanism, error)
		want string
	}{
		{"a wrong password", addr, func() (zsync.SASLMechanism, error) { return Password("bob", "wrong", config) }, "the KDC refuses bob@ZSYNC.TEST: wrong password"},
		{"an unknown client", addr, func() (zsync.SASLMechanism, error) { return Password("eve", "secret", config) }, "the KDC does not know eve@ZSYNC.TEST"},
		{"a wrong realm", addr, func() (zsync.SASLMechanism, error) { return Password("bob@OTHER.TEST", "secret", config) }, "has no KDC of the realm OTHER.TEST"},
		{"a service of a wrong realm", addr, func() (zsync.SASLMechanism, error) {
			return Password("bob", "secret", config, WithService("zookeeper/_HOST@OTHER.TEST"))
		}, "has no KDC of the realm OTHER.TEST"},
		{"no ticket", addr, func() (zsync.SASLMechanism, error) { return Cache(r.path("none"), config) }, "no such file or directory: run kinit"},
		{"a ticket that has ended", addr, func() (zsync.SASLMechanism, error) { return Cache(r.path("ended"), config) }, "the ticket of bob@ZSYNC.TEST ended at "},
		{"no key in the keytab", addr, func() (zsync.SASLMechanism, error) { return Keytab("eve", r.path("client.keytab"), config) }, "it has no key of eve@ZSYNC.TEST, but of: bob@ZSYNC.TEST, short@ZSYNC.TEST"},
		{"an unknown server", addr, func() (zsync.SASLMechanism, error) {
			return Password("bob", "secret", config, WithService("kafka/_HOST"))
		}, "the KDC does not know the server kafka/localhost (see kerberos.WithService, or --server-principal"},
		{"another server", addr, func() (zsync.SASLMechanism, error) {
			return Password("bob", "secret", config, WithService("host/_HOST"))
		}, "SASL GSSAPI: the server "},
		{"an address", strings.Replace(addr, "localhost", "127.0.0.1", 1), func() (zsync.SASLMechanism, error) { return Password("bob", "secret", config) }, "the connect string has the address 127.0.0.1"},
	} {
		m, err := c.make()
		if err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			var s *zsync.Session
			s, err = zsync.Connect(ctx, c.addr, zsync.WithSASL(m))
			cancel()
			if err == nil {
				s.Close()
			} else if !errors.Is(err, zk.ErrAuthFailed) || !strings.Contains(err.Error(), "SASL GSSAPI") {
				t.Errorf("%s: %v; want ErrAuthFailed of SASL GSSAPI", c.what, err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant: %s", c.what, err, c.want)
		}
	}
}

func TestTheCommandAuthenticatesWithAKeytabOrATicketCache(t *testing.T) {
	need.Command(t, "go")
	r := newRealm(t)
	_, addr := r.servers()
	zsync := r.path("zsync")
	r.run("", "go", "build", "-o", zsync, "github.com/zsync/zsync/cmd/zsync")
	r.run("secret\n", "kinit", "-l", "1h", "bob")
	keytab := r.path("client.keytab")
	for _, c := range []struct {
		args, want string
		ok         bool
		env        string
	}{
		{args: "--keytab " + keytab + " --principal bob", want: "has the lock", ok: true},
		{args: "--keytab " + keytab + " --principal bob@ZSYNC.TEST --server-principal zookeeper/_HOST@ZSYNC.TEST", want: "has the lock", ok: true},
		{args: "--kerberos", want: "has the lock", ok: true},
		{args: "--kerberos", env: "KRB5CCNAME=" + r.path("none"), want: "no such file or directory: run kinit"},
		{args: "--keytab " + keytab + " --principal eve", want: "it has no key of eve@ZSYNC.TEST, but of: bob@ZSYNC.TEST"},
		{args: "--keytab " + keytab + " --principal bob --server-principal kafka/_HOST", want: "the KDC does not know the server kafka/localhost"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := exec.CommandContext(ctx, zsync, append(strings.Fields("lock /locks/command --servers "+addr+" "+c.args), "--", "echo", "has the lock")...)
		cmd.Env = append(append(os.Environ(), r.env...), c.env)
		out, err := cmd.CombinedOutput()
		cancel()
		if (err == nil) != c.ok || !strings.Contains(string(out), c.want) {
			t.Errorf("%s %s: %v\n%s\nwant: %s", c.env, c.args, err, out, c.want)
		}
	}
}
