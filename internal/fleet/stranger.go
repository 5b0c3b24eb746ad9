package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
)

// The type `stranger` is a client with its own session that changes znodes of locks and queues, as
// an operator may do. It deletes the znodes of contenders and consumers, or replaces them with
// copies. It creates znodes with numbers near the maximum, and makes the servers count from there.
// The arenas check for two holders.
type stranger struct {
	w     *world
	s     *zsync.Session
	prey  []prey
	work  sync.WaitGroup
	far   map[string]bool // the paths at which the servers count from a large number
	grant chan *hold      // receives a hold at the moment of its grant; has room for one
}

// The type `prey` is a parent znode whose children are ephemeral znodes of other clients.
type prey struct {
	dir    string
	of     func(r *resource) bool // reports whether the holders of r have their znodes in `dir`
	struck func(copied bool)
}

// The method `stranger` returns a stranger. The caller must set the stranger's Session.
func (w *world) stranger() *stranger {
	x := &stranger{w: w, grant: w.granted, far: map[string]bool{}}
	for _, a := range w.arenas {
		switch a := a.(type) {
		case *lock:
			x.prey = append(x.prey, prey{a.path + a.below, func(r *resource) bool { return r == a.resource }, a.strike})
		case *queue:
			x.prey = append(x.prey, prey{"/queue-live", a.owns, a.strike})
		}
	}
	return x
}

// strikeOnce connects a stranger, which changes one child of each prey and disconnects.
func (w *world) strikeOnce(d *rand.Rand) {
	x := w.stranger()
	ctx, cancel := context.WithTimeout(context.Background(), w.timeout)
	defer cancel()
	s, err := w.connect(ctx, 100_000+d.IntN(1000), d)
	if err != nil {
		return // another fault affects the servers
	}
	x.s = s
	defer s.Close()
	defer x.work.Wait()
	for _, p := range x.prey {
		x.strike(ctx, d, p, nil)
	}
}

// The method `harass` makes a stranger strike at random times until the faults are over.
func (w *world) harass(over chan struct{}) {
	d := rand.New(rand.NewPCG(w.seed, 5))
	x := w.stranger()
	if len(x.prey) == 0 {
		return
	}
	s, err := w.connect(context.Background(), 950, d)
	if err != nil {
		w.fail("a stranger cannot connect: %v", err)
		return
	}
	x.s = s
	defer s.Close()
	defer x.work.Wait()
	for {
		var h *hold
		select {
		case <-over:
			return
		case <-w.healed:
			return
		case h = <-x.grant: // strike at once, before the holder can read its znode
		case <-time.After(time.Duration(d.Int64N(int64(w.timeout)))):
		}
		p := x.prey[d.IntN(len(x.prey))]
		for _, o := range x.prey {
			if h != nil && o.of(h.r) {
				p = o
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), w.timeout)
		x.strike(ctx, d, p, h)
		cancel()
	}
}

// The method `strike` changes one child of a prey. If h is not nil, it is a hold that was granted
// just now.
func (x *stranger) strike(ctx context.Context, d *rand.Rand, p prey, h *hold) {
	dir := p.dir
	places, waiters := 0, h != nil && d.IntN(2) == 0 // if `waiters` is true, strike any contender, not only the holder
	var paths []string                               // the znodes to choose from
	for _, z := range x.w.tree() {
		if parent, _ := split(z.path); parent != dir || z.owner == 0 || z.owner == x.s.ID() {
			continue
		}
		if places++; waiters || h == nil || z.owner == h.a.s.ID() {
			paths = append(paths, z.path)
		}
	}
	if x.w.wraps && !x.far[dir] && d.IntN(4) == 0 {
		// The count jumps only once for each path, and only forward. During a hold in practice, a path
		// may get 2^31 more children, but never 2^32.
		x.far[dir] = true
		next := math.MaxInt32 - int32(d.IntN(6))
		if places == 0 {
			next = -1 - int32(d.IntN(3))
		}
		x.w.note("STRANGER has %s count from %d", dir, next)
		x.w.count(dir, next)
		return
	}
	if len(paths) == 0 {
		return
	}
	path := paths[d.IntN(len(paths))]
	create := func(path string) any {
		return &zk.CreateRequest{Path: path, Data: []byte("a stranger"), Acl: zk.WorldACL(zk.PermAll), Flags: zk.FlagEphemeral}
	}
	switch k := d.IntN(4); {
	case x.w.wraps && k < 2:
		_, name := split(path)
		at := len(name) - 10
		seq, err := strconv.Atoi(name[max(at, 0):])
		if at < 1 || err != nil || seq < 0 || seq > 1<<20 {
			return
		}
		x.w.note("STRANGER makes some whose numbers come %d behind the last of all", seq+2)
		base := name[strings.LastIndexByte(name[:at-1], '-')+1 : at]
		for n := range 6 {
			path := fmt.Sprintf("%s/x%d-%s%d", dir, n, base, math.MinInt32+seq+1)
			if _, err := x.s.Txn(ctx, create(path)); err == nil {
				x.remove(path, x.w.timeout)
			}
		}
	default:
		ops := []any{&zk.DeleteRequest{Path: path, Version: -1}, create(path)}[:1+min(k, 1)]
		x.w.note("STRANGER deletes %s, and makes it again: %v", path, len(ops) == 2)
		p.struck(len(ops) == 2)
		_, err := x.s.Txn(ctx, ops...)
		p.struck(len(ops) == 2)
		if err != nil {
			return
		}
		if h != nil && !waiters && len(paths) == 1 {
			h.deleted(len(ops) == 2)
		}
		if len(ops) == 2 {
			x.remove(path, time.Duration(d.Int64N(int64(2*x.w.timeout))))
		}
	}
}

// The method `remove` waits for the duration `after`, and deletes a znode that the stranger has
// created.
func (x *stranger) remove(path string, after time.Duration) {
	x.work.Go(func() {
		select {
		case <-time.After(after):
		case <-x.w.healed:
		}
		ctx, cancel := context.WithTimeout(context.Background(), x.w.timeout)
		defer cancel()
		_, err := x.s.Txn(ctx, &zk.DeleteRequest{Path: path, Version: -1})
		x.w.note("STRANGER removes %s: %v", path, err)
	})
}
