package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A condRun is a program of a Cond. Things are put, each with a signal, and there are
// more who want one than there are things. Some of these give up, at any time, or lose
// their sessions.
type condRun struct {
	*lockRun
	casts bool // some signals are a Broadcast

	mu      sync.Mutex
	things  int                  // put, and not taken; guarded by mu
	want    int                  // who wants one and has not given up; guarded by mu
	signals int                  // calls of Signal; guarded by mu
	woken   int                  // Waits that returned nil; guarded by mu
	giveUps []context.CancelFunc // of those who want one; guarded by mu
	known   map[string]bool      // the znodes of waiters whose data was asked for; guarded by mu
}

// unknown reports whether a znode below /c is the signal of a waiter whose create was never
// answered, as its session was lost before: whoever has made a waiter asks for its data
// first. Nobody knows of this one, so its signal is left to whoever lists the line next.
func (c *condRun) unknown(name string) (is bool) {
	waiter, ok := strings.CutSuffix(name, "-signal")
	c.count(func() { is = ok && !c.known["/c/_c_"+waiter] })
	return is
}

// A condSide is the lock and the Conds of one process.
type condSide struct {
	s           *zsync.Session
	rw          *zsync.RWMutex
	write, read *zsync.Cond
}

func (c *condRun) side(s *zsync.Session) condSide {
	rw := zsync.NewRWMutex(s, "/l", lockOptions(c.dice(), zsync.WithLayout(zsync.LayoutCurator))...)
	return condSide{s, rw, zsync.NewCond(s, "/c", rw), zsync.NewCond(s, "/c", rw.RLocker())}
}

// get takes a thing. The caller holds L.
func (c *condRun) get() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.things == 0 {
		return false
	}
	c.things--
	return true
}

// ask waits for a thing, in one of the ways in which that can be done.
func (c *condRun) ask(ctx context.Context, d *rand.Rand, side condSide) {
	done := false
	await := func(cond *zsync.Cond) func(context.Context) error {
		return func(ctx context.Context) error {
			for done = c.get(); !done; done = c.get() {
				if err := cond.Wait(ctx); err != nil {
					return err
				}
				c.count(func() { c.woken++ })
			}
			return nil
		}
	}
	rw, began := side.rw, time.Now()
	var err error
	how := d.IntN(4)
	switch how {
	case 0:
		err = rw.Do(ctx, await(side.write))
	case 1:
		err = rw.RDo(ctx, await(side.read))
	case 2:
		if err = rw.Lock(ctx); err == nil {
			if err = await(side.write)(ctx); err == nil {
				err = rw.Unlock()
			}
		}
	case 3:
		if err = rw.RLock(ctx); err == nil {
			if err = await(side.read)(ctx); err == nil {
				err = rw.RUnlock()
			}
		}
	}
	// A loss ends the context of Do and RDo, and Wait fails with that of a
	// context that had ended before.
	if (done || how < 2) && errors.Is(err, zsync.ErrLost) {
		err = nil
	}
	c.got("a wait", side.s, ctx, began, err)
}

// put puts a thing and gives a signal.
//
// It counts as put in a hold only if a transaction within that hold succeeds after
// it. Otherwise the hold may have been lost before: then somebody may have looked
// for a thing before it was put, and have entered the line after the signal. So
// whoever put it takes L once more before the signal. What a process cannot do any
// more, as it is closed, another does.
func (c *condRun) put(d *rand.Rand, side, signaller, other condSide) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	put, held, began := false, false, time.Now()
	for !held {
		err := side.rw.Do(ctx, func(context.Context) error {
			if !put {
				c.count(func() { c.things++ })
				put = true
			}
			_, err := side.rw.Txn(ctx, &zk.SetDataRequest{Path: "/log", Version: -1})
			held = err == nil
			return err
		})
		if errors.Is(err, zsync.ErrClosed) {
			side = other
		} else if !errors.Is(err, zsync.ErrLost) && !c.got("Do", side.s, ctx, began, err) {
			return
		}
	}
	for {
		signal := signaller.write.Signal
		if c.casts && d.IntN(3) == 0 {
			signal = signaller.read.Broadcast
		} else {
			c.count(func() { c.signals++ })
		}
		if c.got("a signal", signaller.s, ctx, began, signal(ctx)) || signaller == other {
			break
		}
		signaller = other
	}
	// The one that was woken may be among those who give up now.
	harness.Nap(d, 6)
	c.count(func() {
		if len(c.giveUps) > 0 && d.IntN(2) == 0 {
			c.giveUps[d.IntN(len(c.giveUps))]()
		}
	})
}

// count runs f alone.
func (c *condRun) count(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// undisturbed reports whether nothing has happened of which a Wait is woken that was
// not signalled.
func (c *condRun) undisturbed() bool {
	for _, s := range c.ss {
		if s.Stats().Expiries > 0 {
			return false
		}
	}
	c.lockRun.mu.Lock()
	defer c.lockRun.mu.Unlock()
	return !c.casts && len(c.closed) == 0 && len(c.ended) == 0 && len(c.struck) == 0
}

// TestModelOfCond: as long as a thing is there, whoever wants one does not sleep:
// whatever becomes of others who wait, the signal for it has reached somebody. And a
// signal wakes one.
func TestModelOfCond(t *testing.T) { models(t, modelOfCond) }

func TestModelOfCondOverEnsembles(t *testing.T) { modelsOverEnsembles(t, 10, modelOfCond) }

func modelOfCond(m *modelRun) {
	c := &condRun{lockRun: newLockRun(m)}
	t := c.t
	c.refuses = false // a signal that is refused was not given
	c.casts = c.rnd.IntN(4) == 0
	c.known = make(map[string]bool)
	c.sees = func(q zktest.Request) {
		if q.Op == zktest.OpGetData {
			c.count(func() { c.known[q.Path] = true })
		}
	}
	other := c.side(c.stranger)
	c.harm([]string{"/l"})
	var sides []condSide
	for _, s := range c.ss {
		sides = append(sides, c.side(s))
	}
	var asking, putting sync.WaitGroup
	for _, side := range sides {
		for range 4 {
			d := c.dice()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			c.count(func() { c.want++; c.giveUps = append(c.giveUps, cancel) })
			asking.Go(func() {
				defer c.count(func() { c.want-- })
				if d.IntN(4) == 0 {
					harness.Nap(d, 200)
				}
				if d.IntN(3) == 0 {
					time.AfterFunc(time.Duration(d.IntN(300))*time.Millisecond, cancel)
				}
				c.ask(ctx, d, side)
			})
		}
		for range 2 {
			d, signaller := c.dice(), side
			if d.IntN(3) == 0 { // who has learned of the thing in some other way
				signaller = sides[d.IntN(len(sides))]
			}
			putting.Go(func() {
				harness.Nap(d, 200)
				c.put(d, side, signaller, other)
			})
		}
	}
	putting.Wait()
	c.heal()
	time.Sleep(settled)
	synctest.Wait()
	c.count(func() {
		if c.things > 0 && c.want > 0 {
			t.Errorf("%d things are there, and %d sleep who want one", c.things, c.want)
		}
		if c.undisturbed() && c.woken > c.signals {
			t.Errorf("%d signals have woken %d", c.signals, c.woken)
		}
		for _, giveUp := range c.giveUps {
			giveUp()
		}
	})
	asking.Wait()
	time.Sleep(time.Minute)
	c.idle()
	if left := suite.ChildrenOf(t, c.stranger, "/l"); len(left) > 0 {
		t.Errorf("left below /l: %q", left)
	}
	if len(c.closed) > 0 {
		// A process that is closed leaves its receipt, and the signal of one that was
		// woken there, to whoever comes next.
		_, err := other.write.Contenders(t.Context())
		harness.Must(t, err)
	}
	left := func() []string {
		return slices.DeleteFunc(suite.ChildrenOf(t, c.stranger, "/c"), func(name string) bool {
			return len(c.closed) > 0 && strings.HasSuffix(name, "-receipt")
		})
	}
	names := left()
	if slices.ContainsFunc(names, c.unknown) {
		_, err := other.write.Contenders(t.Context())
		harness.Must(t, err)
		after := left()
		names = slices.DeleteFunc(names, func(name string) bool { return c.unknown(name) && !slices.Contains(after, name) })
	}
	for _, name := range names {
		t.Errorf("left below /c: %q", name)
	}
}
