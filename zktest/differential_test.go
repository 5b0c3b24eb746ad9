package zktest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var update = flag.Bool("update", false, "write the transcripts of the real server to testdata")

// scripts is how many random scripts are played, each of scriptSteps requests.
const (
	scripts     = 20
	scriptSteps = 120
)

// TestRepliesAreThoseOfARealServer plays random requests of two sessions and
// compares every reply and notification, zxids and versions included, with the
// transcript that a ZooKeeper 3.8.0 left in testdata. With
// ZSYNC_TEST_STANDALONE set to the address of a real server it plays them to
// that as well. It must be standalone, have extendedTypesEnabled, and serve
// nobody else at the time.
func TestRepliesAreThoseOfARealServer(t *testing.T) {
	server := os.Getenv("ZSYNC_TEST_STANDALONE")
	for seed := range uint64(scripts) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			golden := filepath.Join("testdata", fmt.Sprintf("script-%d.txt", seed))
			if server != "" {
				real := play(t, seed, func() net.Conn {
					nc, err := net.DialTimeout("tcp", server, time.Second)
					if err != nil {
						t.Fatal(err)
					}
					return nc
				})
				if *update {
					if err := os.WriteFile(golden, []byte(real), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				compare(t, "the real server now", real, golden)
			}
			s := Start(t, existsOpen)
			compare(t, "zktest", play(t, seed, func() net.Conn {
				nc, err := s.Dial("tcp", s.Addr(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				return nc
			}), golden)
		})
	}
}

// TestRepliesOfAMemberAreThoseOfARealServer plays the same scripts to the
// members of an ensemble: to its leader, and to a follower.
func TestRepliesOfAMemberAreThoseOfARealServer(t *testing.T) {
	for seed := range uint64(scripts) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := StartEnsemble(t, 3, existsOpen).Server(int(seed % 3))
				golden := filepath.Join("testdata", fmt.Sprintf("script-%d.txt", seed))
				compare(t, "a member", play(t, seed, func() net.Conn {
					nc, err := s.Dial("tcp", s.Addr(), time.Second)
					if err != nil {
						t.Fatal(err)
					}
					return nc
				}), golden)
			})
		})
	}
}

// existsOpen makes exists need no permission, as in the recorded version.
func existsOpen(s *Server) { s.existsOpen = true }

// compare reports the first lines in which a transcript differs.
func compare(t *testing.T, who, got, golden string) {
	t.Helper()
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(b), "\n")
	differences := 0
	for i := range min(len(g), len(w)) {
		if g[i] == w[i] {
			continue
		}
		t.Errorf("line %d:\n %s: %s\n recorded: %s", i+1, who, g[i], w[i])
		if differences++; differences == 5 {
			return
		}
	}
	if len(g) != len(w) {
		t.Errorf("%s: %d lines, recorded %d", who, len(g), len(w))
	}
}

// A player plays one script.
type player struct {
	t       *testing.T
	rnd     *rand.Rand
	dial    func() net.Conn
	clients [2]*rawClient
	names   map[int64]string // of sessions
	base    int64            // zxid before the first request
	root    string
	log     strings.Builder
}

func play(t *testing.T, seed uint64, dial func() net.Conn) string {
	p := &player{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), dial: dial, names: map[int64]string{}}
	for i := range p.clients {
		p.connect(i)
	}
	c := p.clients[0]
	// A new root each time: some of what a script leaves cannot be deleted.
	p.root = fmt.Sprintf("/diff%d", time.Now().UnixNano())
	p.base = c.call(OpCreate, createBody(p.root, "", openACL, 0)).zxid
	for range scriptSteps {
		p.step()
	}
	for _, c := range p.clients {
		c.call(OpCloseSession, nil)
		_ = c.nc.Close()
	}
	return strings.ReplaceAll(p.log.String(), p.root, "/diff")
}

// connect gives client i a new session.
func (p *player) connect(i int) {
	c := newRaw(p.t, p.dial())
	if err := c.handshake(20000); err != nil {
		p.t.Fatal(err)
	}
	c.call(OpAuth, authBody("digest", "u:p"))
	p.clients[i] = c
	p.names[c.id] = fmt.Sprintf("session%d", len(p.names))
}

func pick[T any](p *player, list ...T) T { return list[p.rnd.IntN(len(list))] }

// path returns a path that often exists. Persistent watches are left only
// below /p and others only elsewhere: on one path they disturb each other in
// ZooKeeper 3.8.
func (p *player) path(persistent bool) string {
	if persistent {
		return p.root + pick(p, "/p", "/p/x", "/p/y", "/p/x/z")
	}
	if p.rnd.IntN(20) == 0 {
		return pick(p, "nothing", "no/slash", p.root+"/", p.root+"//x", p.root+"/./x", p.root+"/..",
			p.root+"/\x00", p.root+"/\u0085", p.root+"/\ufff8", p.root+"/é", p.root+"x/y")
	}
	return p.root + pick(p, "", "/a", "/a", "/b", "/c", "/a/x", "/a/y", "/b/x", "/a/x/z")
}

func (p *player) acl() []acl {
	digest, _ := authenticate("digest", []byte("u:p"), "")
	other, _ := authenticate("digest", []byte("other:p"), "")
	if p.rnd.IntN(4) > 0 {
		return openACL
	}
	return pick(p, nil, []acl{{permAll, identity{"auth", ""}}}, []acl{{permAll, digest}},
		[]acl{{permRead | permCreate, anyone}, {permAll, digest}},
		[]acl{{permRead, other}, {permRead, anyone}, {permAll, digest}},
		[]acl{{permAdmin, anyone}, {permRead, other}}, []acl{{permRead, other}, {permRead, anyone}},
		[]acl{{permAll, identity{"ip", "127.0.0.0/8"}}}, []acl{{permAll, identity{"ip", "10.0.0.1"}}, {permAll &^ permWrite, anyone}},
		[]acl{{permAll, identity{"digest", "nothing"}}}, []acl{{permAll, identity{"nonsense", "x"}}},
		[]acl{openACL[0], openACL[0]})
}

// write returns a write request.
func (p *player) write() (Op, []byte, string) {
	path := p.path(p.rnd.IntN(6) == 0)
	data := pick(p, "", "x", "yy")
	switch op := pick(p, OpCreate, OpCreate, OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpDelete, OpSetData, OpSetACL); op {
	case OpCreate, OpCreate2:
		if parentOf(path) == "/" { // whose children others create too
			path = p.root + "/c"
		}
		flags := pick[int32](p, 0, 0, 0, 1, 2, 3, 2, 7, -1, 4)
		return op, createBody(path, data, p.acl(), flags), fmt.Sprintf("%q flags %d", path, flags)
	case OpCreateContainer:
		return op, createBody(path, data, openACL, 4), fmt.Sprintf("%q", path)
	case OpCreateTTL:
		if parentOf(path) == "/" {
			path = p.root + "/c"
		}
		flags, ttl := pick[int32](p, 5, 6, 6, 0), pick[int64](p, 1000000, 1000000, 0, -1, maxTTL+1)
		if flags == 0 && ttl < 0 { // which ends a ZooKeeper 3.8.0, the whole server
			ttl = 0
		}
		return op, appendInt64(createBody(path, data, openACL, flags), ttl), fmt.Sprintf("%q flags %d ttl %d", path, flags, ttl)
	case OpDelete:
		v := pick[int32](p, -1, -1, 0, 1)
		return op, versionBody(path, v), fmt.Sprintf("%q version %d", path, v)
	case OpSetData:
		v := pick[int32](p, -1, -1, 0, 1, 2)
		return op, setDataBody(path, data, v), fmt.Sprintf("%q version %d", path, v)
	default:
		v := pick[int32](p, -1, -1, 0, 1)
		return op, setACLBody(path, p.acl(), v), fmt.Sprintf("%q version %d", path, v)
	}
}

// multi returns a multi and the operations that it is of.
func (p *player) multi() ([]byte, []Op, string) {
	var bodies [][]byte
	var ops []Op
	var text []string
	for range p.rnd.IntN(4) + 1 {
		op, body, what := p.write()
		if op == OpSetACL || p.rnd.IntN(5) == 0 {
			path, v := p.path(false), pick[int32](p, -1, 0, 1)
			op, body, what = OpCheck, versionBody(path, v), fmt.Sprintf("%q version %d", path, v)
		}
		bodies = append(bodies, multiOp(op, body))
		ops = append(ops, op)
		text = append(text, op.String()+" "+what)
	}
	return multiBody(bodies...), ops, strings.Join(text, "; ")
}

// step plays one request of one of the sessions, and collects what both see.
func (p *player) step() {
	i := p.rnd.IntN(2)
	c := p.clients[i]
	path := p.path(false)
	kind := p.rnd.IntN(20)
	switch {
	case kind < 8:
		op, body, what := p.write()
		p.note(i, op, what, c.call(op, body), nil)
	case kind < 10:
		body, ops, what := p.multi()
		p.note(i, OpMulti, what, c.call(OpMulti, body), ops)
	case kind < 16:
		op := pick(p, OpExists, OpGetData, OpGetChildren, OpGetChildren2)
		watch := p.rnd.IntN(2) == 0
		p.note(i, op, fmt.Sprintf("%q watch %v", path, watch), c.call(op, watchBody(path, watch)), nil)
	case kind < 17:
		op := pick(p, OpGetACL, OpGetEphemerals, OpGetAllChildrenNumber, OpWhoAmI, OpSync)
		if op == OpGetAllChildrenNumber {
			path = p.root
		}
		p.note(i, op, fmt.Sprintf("%q", path), c.call(op, pathBody(path)), nil)
	case kind < 18:
		a, b := p.path(false), p.path(false)
		body := multiBody(multiOp(OpGetData, watchBody(a, false)), multiOp(OpGetChildren, watchBody(b, false)))
		p.note(i, OpMultiRead, fmt.Sprintf("%q %q", a, b), c.call(OpMultiRead, body), []Op{OpGetData, OpGetChildren})
	case kind < 19:
		switch p.rnd.IntN(3) {
		case 0:
			path, mode := p.path(true), pick[int32](p, 0, 1)
			p.note(i, OpAddWatch, fmt.Sprintf("%q mode %d", path, mode), c.call(OpAddWatch, versionBody(path, mode)), nil)
		default:
			// Not checkWatches, which in ZooKeeper 3.8 finds the watches
			// of other clients too.
			kind := pick[int32](p, 1, 2, 3)
			p.note(i, OpRemoveWatches, fmt.Sprintf("%q type %d", path, kind), c.call(OpRemoveWatches, versionBody(path, kind)), nil)
		}
	case p.rnd.IntN(3) > 0:
		zxid := p.base + p.rnd.Int64N(max(c.zxid-p.base, 0)+1)
		data, exist, child := p.path(false), p.path(false), p.path(false)
		body := appendInt64(nil, zxid)
		for _, one := range []string{data, exist, child} {
			body = stringsBody(body, []string{one})
		}
		p.note(i, OpSetWatches, fmt.Sprintf("%d %q %q %q", zxid-p.base, data, exist, child), c.call(OpSetWatches, body), nil)
	default:
		p.note(i, OpCloseSession, "", c.call(OpCloseSession, nil), nil)
		_ = c.nc.Close()
		p.connect(i)
	}
}

// note writes a reply to the transcript, and the notifications.
func (p *player) note(i int, op Op, what string, r rawReply, ops []Op) {
	fmt.Fprintf(&p.log, "%d %v %s -> zxid %d code %d%s\n", i, op, what, r.zxid-p.base, r.code, p.body(op, &r, ops))
	for j, c := range p.clients {
		if j != i || op != OpCloseSession {
			c.call(OpSync, pathBody("/"))
		}
		slices.Sort(c.events)
		for _, e := range c.events {
			fmt.Fprintf(&p.log, "  %d sees %q\n", j, e)
		}
		c.events = nil
	}
}

// body renders the body of a reply.
func (p *player) body(op Op, r *rawReply, ops []Op) string {
	if r.code != CodeOK {
		return fmt.Sprintf(" %d bytes", len(r.d.b))
	}
	text := ""
	if ops == nil {
		text = p.result(op, &r.d)
	}
	for range ops {
		kind := Op(r.d.int32())
		r.d.bool()
		code := r.d.int32()
		text += fmt.Sprintf("; %v %d", kind, code)
		if kind == opError {
			text += fmt.Sprintf(" %d", r.d.int32())
		} else {
			text += p.result(kind, &r.d)
		}
	}
	if ops != nil {
		text += fmt.Sprint("; end ", r.d.int32(), r.d.bool(), r.d.int32())
	}
	if r.d.bad || len(r.d.b) > 0 {
		text += fmt.Sprintf(" BAD %v, left %d", r.d.bad, len(r.d.b))
	}
	return text
}

func (p *player) result(op Op, d *decoder) string {
	switch op {
	case OpCreate, OpSync:
		return fmt.Sprintf(" %q", d.string())
	case OpCreate2, OpCreateContainer, OpCreateTTL:
		return fmt.Sprintf(" %q%s", d.string(), p.stat(d))
	case OpExists, OpSetData, OpSetACL:
		return p.stat(d)
	case OpGetData:
		return fmt.Sprintf(" %q%s", d.buffer(), p.stat(d))
	case OpGetChildren, OpGetChildren2, OpGetEphemerals:
		list := d.strings()
		slices.Sort(list)
		text := fmt.Sprintf(" %q", list)
		if op == OpGetChildren2 {
			text += p.stat(d)
		}
		return text
	case OpGetACL:
		return fmt.Sprint(" ", d.acls(), p.stat(d))
	case OpGetAllChildrenNumber, OpAddWatch:
		return fmt.Sprint(" ", d.int32())
	case OpWhoAmI:
		text := ""
		for range d.count(8) {
			text += " " + d.string() + ":" + d.string()
		}
		return text
	}
	return ""
}

// stat renders a Stat, zxids relative to the script's beginning.
func (p *player) stat(d *decoder) string {
	czxid, mzxid := d.int64(), d.int64()
	ctime, mtime := d.int64(), d.int64()
	version, cversion, aversion := d.int32(), d.int32(), d.int32()
	owner := d.int64()
	length, children := d.int32(), d.int32()
	pzxid := d.int64()
	who, ok := p.names[owner]
	if !ok {
		who = fmt.Sprint(owner)
	}
	if czxid < p.base { // of the server's own nodes
		return fmt.Sprintf(" stat old length %d", length)
	}
	return fmt.Sprintf(" stat c%d m%d p%d changed %v v%d cv%d av%d owner %s length %d children %d",
		czxid-p.base, mzxid-p.base, pzxid-p.base, mtime > ctime && mzxid == czxid, version, cversion, aversion, who, length, children)
}
