package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/probe"
	"github.com/zsync/zsync/internal/wire"
)

// This file has checks of zsync doctor --ensemble: the checks of one server that use znodes.
// doctorservers.go has all other checks.

// The type `visit` is the part of the examination that checks one server by means of znodes.
type visit struct {
	e     *examination
	ctx   context.Context
	a     *examined
	conn  *probe.Conn
	other *probe.Conn // a connection to another server, or to this server if no other can be reached
	at    string      // the parent of the znodes of this server's checks
	made  int         // the number of znodes named so far, below the path in `at`
}

// The method `all` makes every check. If a check ends the connection, the next check opens a new
// one.
func (v *visit) all() {
	for _, check := range []struct {
		name string
		make func() (grade, string)
	}{
		{"containers", v.containers},
		{"order of replies and events", v.order},
		{"sync before a read", v.sync},
		{"transactions", v.transactions},
		{"multiRead", v.multiRead},
		{"packets", v.packets},
		{"time of a write", v.writes},
		{"end of a session", v.ephemerals},
	} {
		g, text := v.try(check.make)
		if v.conn.Hung() || v.other.Hung() {
			// A server of an idle ensemble sometimes leaves one request without an answer, and then
			// answers the next request at once. So try the check again.
			if g, text = v.try(check.make); !v.conn.Hung() && !v.other.Hung() {
				g, text = max(g, doubt), fmt.Sprintf("%s; at first, a request had no answer for %v", text, answering)
			}
		}
		if v.ctx.Err() != nil || v.e.broken != nil {
			return
		}
		v.e.report(g, v.a.host, check.name, "%s", text)
	}
}

// The method `try` makes one attempt at a check.
func (v *visit) try(check func() (grade, string)) (grade, string) {
	if err := v.ready(); err != nil {
		return failed(err)
	}
	return check()
}

// The function `failed` returns the result of a check that has failed with err.
func failed(err error) (grade, string) { return unfit, fmt.Sprint(err) }

// The method `ready` opens a connection again if it has ended. A server closes a connection after a
// request that it does not know. During a long check over one connection, the session of the other
// can end.
func (v *visit) ready() (err error) {
	if !v.conn.Usable() || v.conn.Ping() != nil {
		v.conn.Abandon()
		if v.conn, err = v.e.open(v.ctx, v.a, v.e.cfg); err != nil {
			return err
		}
	}
	if v.other.Usable() && v.other.Ping() == nil {
		return nil
	}
	v.other.Abandon()
	me := slices.Index(v.e.servers, v.a)
	for i := range v.e.servers { // begin with the next server, and end with v's own
		a := v.e.servers[(me+i+1)%len(v.e.servers)]
		if v.other, err = v.e.open(v.ctx, a, v.e.cfg); err != nil {
			continue
		}
		if err = v.other.Ping(); err == nil { // the server does not refuse the credentials
			return nil
		}
		v.other.Abandon()
	}
	return err
}

// The method `leave` closes the connections.
func (v *visit) leave() {
	for _, c := range []*probe.Conn{v.conn, v.other} {
		if c.Usable() {
			c.Close()
		}
	}
}

// The method `node` returns the path for a new znode.
func (v *visit) node() string {
	v.made++
	return fmt.Sprintf("%s/%d", v.at, v.made)
}

// The method `ephemeral` creates an ephemeral znode.
func (v *visit) ephemeral(data string) (node string, err error) {
	node = v.node()
	if err := v.conn.Create(node, []byte(data), v.e.acl, zk.FlagEphemeral); err != nil {
		return "", fmt.Errorf("an ephemeral znode cannot be created: %w", err)
	}
	return node, nil
}

// The method `containers` is the check that the server can create containers. It creates a
// container, which is then the parent znode of the server's other checks.
func (v *visit) containers() (grade, string) {
	v.at = path.Join(v.e.own, fmt.Sprint(slices.Index(v.e.servers, v.a)+1))
	err := v.conn.Create(v.at, nil, v.e.acl, zk.FlagContainer)
	if err == nil {
		return fine, "it creates them"
	}
	unknown := probe.Code(err) == wire.CodeUnimplemented
	if again := v.ready(); again != nil { // a server closes the connection after a request that it does not know
		return failed(again)
	}
	if err := v.conn.Create(v.at, nil, v.e.acl, zk.FlagPersistent); err != nil && probe.Code(err) != wire.CodeNodeExists {
		return failed(err)
	}
	if unknown {
		return doubt, "it does not know them, as before version 3.5: parents that are no longer used will stay; update it"
	}
	return failed(err)
}

// The method `order` is the check that a watch event arrives before any read returns the change,
// and that replies arrive in the order of the requests.
func (v *visit) order() (grade, string) {
	node, err := v.ephemeral("0")
	if err != nil {
		return failed(err)
	}
	if _, err := v.conn.Call(wire.OpGetData, probe.Read(node, true)); err != nil {
		return failed(err)
	}
	// First, the client itself writes, and then reads.
	write, _ := v.conn.Send(wire.OpSetData, probe.Write(node, []byte("1")))
	read, err := v.conn.Send(wire.OpGetData, probe.Read(node, true))
	if err != nil {
		return failed(err)
	}
	data, told, err := v.await(read, write)
	switch {
	case err != nil:
		return failed(err)
	case string(data) != "1":
		return unfit, "a read returned older data than the write before it, on the same connection; zsync cannot use this server"
	case !told:
		return unfit, "a read returned a client's own write before the watch event of it; zsync cannot use this server"
	}
	// Second, another client writes.
	if err := v.other.Set(node, []byte("2")); err != nil {
		return failed(err)
	}
	told = false
	for begun := time.Now(); ; time.Sleep(answering / 100) {
		read, err := v.conn.Send(wire.OpGetData, probe.Read(node, false))
		if err != nil {
			return failed(err)
		}
		data, event, err := v.await(read)
		told = told || event
		switch {
		case err != nil:
			return failed(err)
		case string(data) == "2" && told:
			return fine, "a watch event comes before the change can be read; replies come in the order of the requests"
		case string(data) == "2":
			return unfit, "a read returned the write of another client before the watch event of it; zsync cannot use this server"
		case time.Since(begun) > answering || v.ctx.Err() != nil:
			return unfit, fmt.Sprintf("the write of another client could not be read within %v: it has fallen behind; look at its load and its disk", answering)
		}
	}
}

// The method `await` receives packets until the reply to the request `read`. It fails unless the
// replies to the requests in `earlier` arrive before that reply. It returns the data of the reply
// to `read`, and whether an event arrived before it.
func (v *visit) await(read int32, earlier ...int32) (data []byte, event bool, err error) {
	for _, xid := range append(earlier, read) {
		for {
			p, err := v.conn.Next()
			switch {
			case err != nil:
				return nil, event, err
			case p.Xid == wire.XidEvent:
				event = true
				continue
			case p.Xid != xid:
				return nil, event, fmt.Errorf("the reply to request %d came in the place of that to %d: replies must come in the order of the requests; zsync cannot use this server", p.Xid, xid)
			case p.Code != 0:
				return nil, event, &probe.RefusedError{Code: p.Code}
			}
			if xid == read {
				data = p.Body.Data()
			}
			break
		}
	}
	return data, event, nil
}

// The method `sync` is the check that after the request sync, a read returns what another client
// has written before.
func (v *visit) sync() (grade, string) {
	node, err := v.ephemeral("0")
	if err != nil {
		return failed(err)
	}
	for try := range 5 {
		want := fmt.Sprint("written ", try)
		if err := v.other.Set(node, []byte(want)); err != nil {
			return failed(err)
		}
		synced, _ := v.conn.Send(wire.OpSync, wire.AppendString(nil, node))
		read, err := v.conn.Send(wire.OpGetData, probe.Read(node, false))
		if err != nil {
			return failed(err)
		}
		data, _, err := v.await(read, synced)
		if err == nil && string(data) != want && v.a.mode != "follower" && v.a.mode != "observer" {
			// A leader answers a sync of its own client at once, as it answers a read. So for less
			// than a millisecond, the next read can miss a write. No grant depends on this; see
			// docs/guarantees.md.
			time.Sleep(answering / 50)
			if read, err = v.conn.Send(wire.OpGetData, probe.Read(node, false)); err == nil {
				data, _, err = v.await(read)
			}
		}
		switch {
		case err != nil:
			return failed(err)
		case string(data) != want:
			return unfit, "a read after a sync missed a write that another client had finished before; zsync cannot use this server"
		}
	}
	return fine, "a read after a sync sees what other clients wrote before"
}

// The method `transactions` is the check that the server applies a transaction either whole or not
// at all.
func (v *visit) transactions() (grade, string) {
	a, b := v.node(), v.node()
	create := func(node string) *zk.CreateRequest {
		return &zk.CreateRequest{Path: node, Data: []byte("1"), Acl: v.e.acl, Flags: zk.FlagEphemeral}
	}
	err := v.conn.Multi(create(a), create(b), &zk.CheckVersionRequest{Path: v.at, Version: 12345})
	switch {
	case probe.Code(err) == wire.CodeUnimplemented:
		return unfit, "it does not know transactions, as before version 3.4; update it"
	case err == nil:
		return unfit, "it applied a transaction whose check must fail; zsync cannot use this server"
	case probe.Code(err) == 0:
		return failed(err)
	}
	for _, node := range []string{a, b} {
		if err := v.conn.Exists(node); err == nil {
			return unfit, "it applied a part of a transaction that failed; zsync cannot use this server"
		} else if probe.Code(err) != wire.CodeNoNode {
			return failed(err)
		}
	}
	if err := v.conn.Multi(create(a), create(b), &zk.SetDataRequest{Path: a, Data: []byte("2"), Version: 0}); err != nil {
		return failed(err)
	}
	if err := v.conn.Exists(b); err != nil {
		return unfit, fmt.Sprintf("a part of a transaction is missing: %v; zsync cannot use this server", err)
	}
	switch data, _, err := v.conn.Get(a); {
	case err != nil:
		return failed(err)
	case string(data) != "2":
		return unfit, "a part of a transaction is missing; zsync cannot use this server"
	}
	return fine, "they are applied whole, or not at all"
}

// multiRead is the check that the server knows the request multiRead.
func (v *visit) multiRead() (grade, string) {
	a, err := v.ephemeral("a")
	if err != nil {
		return failed(err)
	}
	b, err := v.ephemeral("b")
	if err != nil {
		return failed(err)
	}
	switch got, err := v.conn.MultiRead(a, b); {
	case probe.Code(err) == wire.CodeUnimplemented:
		return doubt, "it does not know it, as before version 3.6: zsync reads each znode by itself, with more requests; update it"
	case err != nil:
		return failed(err)
	case len(got) != 2 || string(got[0]) != "a" || string(got[1]) != "b":
		return unfit, "it answers with other data than the znodes have; zsync cannot use this server"
	}
	return fine, "it answers it"
}

// The method `packets` is the check of the maximum packet size. It tries to read znodes with long
// names. These znodes do not exist, so the check writes nothing. No request is larger than
// ZooKeeper's default limit.
func (v *visit) packets() (grade, string) {
	taken := 0
	for _, size := range []int{4 << 10, 64 << 10, 256 << 10, packet - 100} {
		conn, err := v.e.open(v.ctx, v.a, v.e.cfg)
		if err != nil {
			return failed(err)
		}
		err = conn.Exists(v.at + "/" + strings.Repeat("x", size-len(v.at)))
		if conn.Usable() {
			conn.Close()
		}
		if err != nil && probe.Code(err) == 0 {
			return unfit, fmt.Sprintf("it takes one of %d bytes, and none of %d: set jute.maxbuffer to %d, the default, on all servers", taken, size, packet)
		}
		taken = size
	}
	return fine, fmt.Sprintf("it takes one of %d bytes, as zsync sends", taken)
}

// The method `writes` checks how long the servers take to agree to a write and to store it.
func (v *visit) writes() (grade, string) {
	node, err := v.ephemeral("")
	if err != nil {
		return failed(err)
	}
	data := bytes.Repeat([]byte("x"), 100)
	times, err := measure(func() error { return v.conn.Set(node, data) })
	if err != nil {
		return failed(err)
	}
	g, advice := beside(times.median, v.a.granted)
	if g != fine {
		advice += ", or put the transaction logs on faster disks"
	}
	return g, fmt.Sprintf("%v, the median of %d; the longest took %v%s", times.median, times.n, times.longest, advice)
}

// The method `ephemerals` is the check that the servers delete an ephemeral znode when its session
// ends.
func (v *visit) ephemerals() (grade, string) {
	node, err := v.ephemeral("")
	if err != nil {
		return failed(err)
	}
	if err := v.conn.Close(); err != nil {
		return failed(err)
	}
	switch err := errors.Join(v.other.Sync(node), v.other.Exists(node)); {
	case err == nil:
		return unfit, "an ephemeral znode is left by a session that has ended; zsync cannot use this server"
	case probe.Code(err) != wire.CodeNoNode:
		return failed(err)
	}
	return fine, "its ephemeral znodes are deleted"
}

// A times value summarizes the durations of several attempts.
type times struct {
	n               int
	median, longest time.Duration
}

// The function `measure` calls f several times, and returns a summary of the durations.
func measure(f func() error) (times, error) {
	var all []time.Duration
	for range 9 {
		begun := time.Now()
		if err := f(); err != nil {
			return times{}, err
		}
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	return times{len(all), shortened(all[len(all)/2]), shortened(all[len(all)-1])}, nil
}

// The function `shortened` returns d rounded, for a message.
func shortened(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(time.Millisecond / 10)
}

// The function `beside` returns the result of a write that took d, and advice for the message. It
// compares d with the session timeout, because a session must be confirmed within about a third of
// the timeout.
func beside(d, timeout time.Duration) (g grade, advice string) {
	switch {
	case d > timeout/10:
		return unfit, fmt.Sprintf("; that is more than a tenth of the session timeout of %v, and holds will be lost: ask for a longer one (--session, WithSessionTimeout)", timeout)
	case d > timeout/50:
		return doubt, fmt.Sprintf("; that is more than a fiftieth of the session timeout of %v: a longer one (--session, WithSessionTimeout) loses fewer holds", timeout)
	}
	return fine, ""
}
