package interop_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/interop"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/internal/netproxy"
)

// long is a session timeout that no test waits for; short is one that a test may, and
// yet longer than a busy machine stands still.
const (
	long  = time.Minute
	short = 10 * time.Second
)

func TestForeignClientReadsAndWrites(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		p := d.program(t, servers, long)
		base := fresh(p)
		n := base + "/n"
		want := func(command, answer string) {
			t.Helper()
			p.Send("%s", command)
			check(t, command, p.Answer(), answer)
		}
		want("exists "+n, "ok false")
		want("get "+n, "error NoNode")
		want("create "+n+" one p", "ok "+n)
		want("create "+n+" one p", "error NodeExists")
		want("get "+n, "ok one 0")
		want("set "+n+" two 0", "ok 1")
		want("set "+n+" three 0", "error BadVersion")
		want("set "+n+" three -1", "ok 2")
		want("get "+n, "ok three 2")
		want("create "+n+"/child x e", "ok "+n+"/child")
		want("create "+n+"/child/grandchild x p", "error NoChildrenForEphemerals")
		want("delete "+n+" -1", "error NotEmpty")
		want("create "+n+"/seq- x s", "ok "+n+"/seq-0000000001")
		want("create "+n+"/seq- x es", "ok "+n+"/seq-0000000002")
		want("children "+n, "ok child,seq-0000000001,seq-0000000002")
		want("delete "+n+"/child 1", "error BadVersion")
		want("delete "+n+"/child 0", "ok")
		want("children "+n, "ok seq-0000000001,seq-0000000002")
		if d.name == "curator" { // kazoo cannot ask for these
			want("create "+base+"/container x c", "ok "+base+"/container")
			want("create "+base+"/ttl x t", "ok "+base+"/ttl")
			want("create "+base+"/ttl- x ts", "ok "+base+"/ttl-0000000003")
			want("get "+base+"/ttl", "ok x 0")
		}
	})
}

func TestForeignClientTransactionAppliesWhollyOrNotAtAll(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		p := d.program(t, servers, long)
		n := fresh(p)
		p.Send("multi %s 7", n)
		check(t, "multi with a wrong version", p.Answer(), "error BadVersion")
		check(t, "children after it", p.Do("children %s", n), "")
		check(t, "data after it", p.Do("get %s", n), "x 0")
		p.Do("multi %s 0", n)
		check(t, "children after the good one", p.Do("children %s", n), "b")
		check(t, "data after the good one", p.Do("get %s", n), "multi 1")
		p.Send("multi %s 1", n)
		check(t, "multi over a node that exists", p.Answer(), "error NodeExists")
		check(t, "data after it", p.Do("get %s", n), "multi 1")
	})
}

func TestForeignClientGetsEachEventOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		base := fresh(a)
		n := base + "/n"

		a.Do("watch %s", n)
		b.Do("create %s x p", n)
		check(t, "event of create", a.Do("event"), "CREATED "+n)
		b.Do("set %s y -1", n) // nobody watches: the next event must not be this one's

		a.Do("watch %s", n)
		b.Do("set %s z -1", n)
		check(t, "event of set", a.Do("event"), "CHANGED "+n)

		a.Do("watchchildren %s", base)
		b.Do("create %s/m x p", base)
		check(t, "event of a new child", a.Do("event"), "CHILD "+base)

		a.Do("watch %s", n)
		b.Do("delete %s -1", n)
		check(t, "event of delete", a.Do("event"), "DELETED "+n)
	})
}

func TestForeignClientIsKeptFromWhatIsPrivate(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		a, b := d.program(t, servers, long), d.program(t, servers, long)
		n := fresh(a)
		a.Do("auth anna secret")
		a.Do("private %s", n)
		check(t, "owner's get", a.Do("get %s", n), "x 0")
		b.Send("get %s", n)
		check(t, "stranger's get", b.Answer(), "error NoAuth")
		b.Send("set %s y -1", n)
		check(t, "stranger's set", b.Answer(), "error NoAuth")
		b.Do("auth anna wrong")
		b.Send("get %s", n)
		check(t, "get with the wrong password", b.Answer(), "error NoAuth")
		b.Do("auth anna secret")
		check(t, "get with the password", b.Do("get %s", n), "x 0")
	})
}

func TestForeignClientsEphemeralsGoWithItsSession(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		watcher := d.program(t, servers, long)
		base := fresh(watcher)
		for name, end := range map[string]func(p *interop.Program){
			"closed": func(p *interop.Program) { p.Lines() },
			"killed": func(p *interop.Program) { p.Kill() },
		} {
			n := base + "/" + name
			p := d.mortal(t, servers, short)
			p.Do("create %s x e", n)
			watcher.Do("watch %s", n)
			end(p)
			check(t, "event after the program was "+name, watcher.Do("event"), "DELETED "+n)
		}
	})
}

func TestForeignClientKeepsItsSessionOverALostConnection(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		proxy := netproxy.Start(t, servers)
		p, other := d.program(t, proxy.Addr(), long), d.program(t, servers, long)
		base := fresh(other)
		session := p.Do("session")
		p.Do("create %s/mine x e", base)
		p.Do("watch %s/mine", base)
		p.Do("watchchildren %s", base)

		proxy.Refuse()
		proxy.Disconnect()
		other.Do("set %s/mine y -1", base)
		other.Do("create %s/new x p", base)
		proxy.Accept()

		if d.name == "curator" { // kazoo gives its watches up with the connection
			events := []string{p.Do("event"), p.Do("event")}
			slices.Sort(events)
			check(t, "what happened meanwhile", strings.Join(events, ", "), "CHANGED "+base+"/mine, CHILD "+base)
		}
		eventually(t, "ok y 1", func() string {
			p.Send("get %s/mine", base)
			return p.Answer()
		})
		check(t, "session", p.Do("session"), session)
	})
}

func TestForeignClientGetsANewSessionWhenItsOwnExpired(t *testing.T) {
	everywhere(t, func(t *testing.T, d driver, servers string) {
		proxy := netproxy.Start(t, servers)
		p, other := d.program(t, proxy.Addr(), short), d.program(t, servers, long)
		base := fresh(other)
		session := p.Do("session")
		p.Do("create %s/mine x e", base)
		other.Do("watch %s/mine", base)

		proxy.Partition()
		check(t, "event", other.Do("event"), "DELETED "+base+"/mine")
		proxy.Heal()

		eventually(t, "ok "+base+"/mine", func() string {
			p.Send("create %s/mine x e", base)
			return p.Answer()
		})
		if p.Do("session") == session {
			t.Errorf("the client still has session %s", session)
		}
	})
}

func TestForeignClientMovesToAnotherServerWithItsSession(t *testing.T) {
	for name, open := range places() {
		for _, d := range []driver{kazoo, curator} {
			t.Run(name+"/"+d.name, func(t *testing.T) {
				s := open(t)
				if s.stop == nil {
					need.Missing(t, "an ensemble of three servers that may be stopped", "ZSYNC_TEST_ENSEMBLE names none")
				}
				p := d.program(t, s.servers, long)
				n := fresh(p) + "/mine"
				p.Do("create %s x e", n)
				session := p.Do("session")
				for i := range 3 { // whichever it is connected to, its server goes once
					s.stop(i)
					eventually(t, "ok x 0", func() string {
						p.Send("get %s", n)
						return p.Answer()
					})
					check(t, "session", p.Do("session"), session)
					s.restart(i)
				}
			})
		}
	}
}

func TestCuratorCacheFollowsATreeByOnePersistentRecursiveWatch(t *testing.T) {
	for name, open := range places() {
		t.Run(name, func(t *testing.T) {
			p := curator.program(t, open(t).one, long)
			base := fresh(p)
			p.Do("create %s/a x p", base)
			p.Do("cache %s", base)
			eventually(t, "2", func() string { return p.Do("cached") })
			p.Do("create %s/a/b x p", base)
			p.Do("create %s/a/b/c x p", base)
			eventually(t, "4", func() string { return p.Do("cached") })
			p.Do("delete %s/a/b/c 0", base)
			eventually(t, "3", func() string { return p.Do("cached") })
		})
	}
}
