package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

// This file has the workloads of go-zookeeper, for comparisons with zsync. The workloads of zsync
// are the business of main.go.

// goZookeeper returns the workloads of go-zookeeper: zk.Lock, and bare requests without a lock.
func goZookeeper() []workload {
	return []workload{
		{"lock_uncontended", func(b *bench) { b.drive(b.zkLocks(1)) }},
		{"lock_shared_session", func(b *bench) { b.drive(b.zkLocks(1)) }},
		{"lock_sessions", func(b *bench) { b.drive(b.zkLocks(b.n)) }},
		{"lock_waiters", func(b *bench) { b.zkWaiters(1) }},
		{"lock_waiters_200", func(b *bench) { b.zkWaiters(200) }},
		{"raw_create_delete", func(b *bench) { b.drive(b.rawPairs()) }}, // creates and deletes an ephemeral, sequential znode
		{"raw_get", func(b *bench) { b.drive(b.rawGets()) }},
	}
}

func (b *bench) dialZK() *zk.Conn {
	patient := func(network, addr string, _ time.Duration) (net.Conn, error) { // because go-zookeeper's dial fails after a second
		return net.DialTimeout(network, addr, time.Minute)
	}
	c, events, err := zk.Connect(strings.Split(b.servers, ","), 20*time.Second, zk.WithDialer(patient), zk.WithLogInfo(false))
	must(err)
	for e := range events {
		if e.State == zk.StateHasSession {
			break
		}
	}
	go func() {
		for range events {
		}
	}()
	return c
}

// zkLocks returns n locks of one path, distributed over several sessions.
func (b *bench) zkLocks(sessions int) []closedLoop { return b.zkLocksOf(b.path(), sessions) }

func (b *bench) zkLocksOf(path string, sessions int) []closedLoop {
	var conns []*zk.Conn
	for range sessions {
		conns = append(conns, b.dialZK())
	}
	var all []closedLoop
	for i := range b.n {
		l := zk.NewLock(conns[i%len(conns)], path, zk.WorldACL(zk.PermAll))
		all = append(all, closedLoop{l.Lock, l.Unlock, true})
	}
	return all
}

// zkWaiters is like waiters, with zk.Lock.
func (b *bench) zkWaiters(sessions int) {
	path, holder := b.path(), b.dialZK()
	l := zk.NewLock(holder, path, zk.WorldACL(zk.PermAll))
	b.drain(closedLoop{l.Lock, l.Unlock, true}, b.zkLocksOf(path, min(sessions, b.n)), func() int {
		names, _, err := holder.Children(path)
		must(err)
		return len(names)
	}, nil)
}

func (b *bench) rawPairs() []closedLoop {
	c, dir := b.dialZK(), b.path()
	_, err := c.Create(dir, nil, 0, zk.WorldACL(zk.PermAll))
	must(err)
	var all []closedLoop
	for range b.n {
		var made string
		all = append(all, closedLoop{func() (err error) {
			made, err = c.Create(dir+"/n-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			return err
		}, func() error { return c.Delete(made, -1) }, false})
	}
	return all
}

func (b *bench) rawGets() []closedLoop {
	c, path := b.dialZK(), b.path()
	_, err := c.Create(path, element, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
	must(err)
	var all []closedLoop
	for range b.n {
		all = append(all, closedLoop{func() error {
			_, _, err := c.Get(path)
			return err
		}, func() error { return nil }, false})
	}
	return all
}

// unknown ends the command because the peer has no such workload. For a comparison, that is not a
// failure.
func unknown(peer, name string) {
	log.Printf("%s has no workload %s", peer, name)
	os.Exit(noWorkload)
}

// noWorkload is the exit code for an unknown workload.
const noWorkload = 64

func (b *bench) line(workload string, rate float64) {
	fmt.Printf("%s,%s,%d,%.1f\n", b.peer, workload, b.n, rate)
}
