package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// candidates are campaigns in as many processes, which note who leads.
type candidates struct {
	es   []*zsync.Election
	done []<-chan error
	led  chan int
}

// stand has n candidates campaign one after another, the first of whom leads.
func standInLine(t *testing.T, srv *zktest.Server, n int, opts func(i int) []zsync.ElectionOption) *candidates {
	c := &candidates{led: make(chan int, 100)}
	for i := range n {
		var os []zsync.ElectionOption
		if opts != nil {
			os = opts(i)
		}
		e := zsync.NewElection(suite.Open(t, srv, zsync.WithOwner(fmt.Sprint(i))), "/e", os...)
		c.es = append(c.es, e)
		c.done = append(c.done, harness.Async(func() error {
			err := e.Campaign(t.Context())
			if err == nil {
				c.led <- i
			}
			return err
		}))
		synctest.Wait()
	}
	return c
}

// nodeOf returns the contender of the i'th.
func (c *candidates) contender(t *testing.T, i int) zsync.Contender {
	t.Helper()
	cs, err := c.es[0].Contenders(t.Context())
	harness.Must(t, err)
	for _, x := range cs {
		if x.Owner == fmt.Sprint(i) {
			return x
		}
	}
	t.Fatalf("%d is not in the line", i)
	return zsync.Contender{}
}

func TestTransferHandsTheLeadershipToTheNamedCandidate(t *testing.T) {
	t.Parallel()
	for to := 1; to < 5; to++ {
		for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo, zsync.LayoutSelector} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				c := standInLine(t, srv, 5, func(int) []zsync.ElectionOption { return []zsync.ElectionOption{zsync.WithLayout(layout)} })
				if got := <-c.led; got != 0 {
					t.Fatalf("%d leads", got)
				}
				harness.Must(t, c.es[0].Transfer(harness.Within(t, time.Minute), c.contender(t, to)))
				if got := <-c.led; got != to {
					t.Errorf("%d leads after the transfer to %d", got, to)
				}
				harness.WantErr(t, c.es[0].Resign(), zsync.ErrNotLocked)
				time.Sleep(time.Second)
				for _, name := range suite.ChildrenOf(t, inside.Session(c.es[0]), "/e") {
					if strings.HasPrefix(name, "transfer-") {
						t.Errorf("%q is left", name)
					}
				}
				// Nobody else has left the line for good.
				leader := to
				var rest []int
				for range 3 {
					harness.Must(t, c.es[leader].Resign())
					leader = <-c.led
					rest = append(rest, leader)
				}
				slices.Sort(rest)
				want := slices.DeleteFunc([]int{1, 2, 3, 4}, func(i int) bool { return i == to })
				if !slices.Equal(rest, want) {
					t.Errorf("then %v led, want %v", rest, want)
				}
			})
		}
	}
}

func TestTransferToWhoDoesNotWaitChangesNothing(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := standInLine(t, srv, 2, nil)
		<-c.led
		harness.WantErr(t, c.es[0].Transfer(t.Context(), zsync.Contender{Node: "nobody"}), zsync.ErrInvalid)
		gone := c.contender(t, 1)
		gone.Node = strings.Replace(gone.Node, "0000000001", "0000000007", 1)
		harness.WantErr(t, c.es[0].Transfer(t.Context(), gone), zsync.ErrNoCandidate)
		harness.WantErr(t, c.es[1].Transfer(t.Context(), c.contender(t, 0)), zsync.ErrNotLocked)
		harness.Must(t, c.es[0].Transfer(t.Context(), c.contender(t, 0))) // to itself
		if _, err := c.es[0].Token(t.Context()); err != nil {
			t.Errorf("it does not lead any more: %v", err)
		}
		if n := suite.ChildrenOf(t, inside.Session(c.es[0]), "/e"); len(n) != 2 {
			t.Errorf("in the line: %v", n)
		}
	})
}

func TestTransferToACandidateThatDiesLeavesALeader(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := standInLine(t, srv, 4, nil)
		<-c.led
		heir := c.contender(t, 3)
		srv.Partition(inside.Session(c.es[3]).ID()) // it will not notice
		got := harness.Async(func() error { return c.es[0].Transfer(harness.Within(t, time.Minute), heir) })
		leader := <-c.led
		if leader != 1 && leader != 2 {
			t.Errorf("%d leads", leader)
		}
		if err := <-got; err != nil && !errors.Is(err, zsync.ErrNoCandidate) {
			t.Error(err)
		}
	})
}

func TestRunKeepsTheLeadershipUntilItsFunctionHasReturned(t *testing.T) {
	t.Parallel()
	ends := map[string]func(t *testing.T, c *candidates, ctx context.Context) error{
		"Resign": func(t *testing.T, c *candidates, ctx context.Context) error { return c.es[0].Resign() },
		"Transfer": func(t *testing.T, c *candidates, ctx context.Context) error {
			return c.es[0].Transfer(ctx, c.contender(t, 1))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				c := &candidates{led: make(chan int, 10), es: []*zsync.Election{zsync.NewElection(suite.Open(t, srv, zsync.WithOwner("0")), "/e")}}
				e := zsync.NewElection(suite.Open(t, srv, zsync.WithOwner("1")), "/e")
				running, other := false, make(chan error, 1)
				ctx, cancel := context.WithCancel(t.Context())
				ran := harness.Async(func() error {
					return c.es[0].Run(ctx, func(ctx context.Context) error {
						running = true
						go func() { other <- e.Campaign(t.Context()) }()
						time.Sleep(time.Second)
						harness.Must(t, end(t, c, ctx))
						<-ctx.Done()
						time.Sleep(time.Minute) // it takes its time
						running = false
						cancel()
						return nil
					})
				})
				harness.Must(t, <-other)
				if running {
					t.Error("another leads while the function runs")
				}
				harness.WantErr(t, <-ran, context.Canceled)
			})
		})
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) { // a process that is lost holds nobody up
		a, b := zsync.NewElection(suite.Open(t, srv), "/e"), zsync.NewElection(suite.Open(t, srv), "/e")
		leads, release := make(chan struct{}), make(chan struct{})
		go a.Run(t.Context(), func(ctx context.Context) error { close(leads); <-release; return errors.New("enough") })
		<-leads
		harness.Must(t, a.Resign())
		got := harness.Async(func() error { return b.Campaign(t.Context()) })
		time.Sleep(time.Hour)
		harness.PendingStill(t, got)
		srv.Expire(inside.Session(a).ID())
		harness.Must(t, <-got)
		close(release)
	})
}

func TestThoseOfAHigherPriorityLeadFirst(t *testing.T) {
	for _, layout := range []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			priorities := []int{0, 1, -2, 7, 1, 7, 12}
			c := standInLine(t, srv, len(priorities), func(i int) []zsync.ElectionOption {
				return []zsync.ElectionOption{zsync.WithPriority(priorities[i]), zsync.WithLayout(layout)}
			})
			var order []int
			leader := <-c.led // nobody is removed from office
			for range priorities[1:] {
				synctest.Wait() // those who have let others go before stand in the line again
				harness.Must(t, c.es[leader].Resign())
				leader = <-c.led
				order = append(order, priorities[leader])
			}
			if want := []int{12, 7, 7, 1, 1, -2}; !slices.Equal(order, want) {
				t.Errorf("led in the order %v, want %v", order, want)
			}
		})
	}
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) { // who says nothing does not let others go before
		c := standInLine(t, srv, 3, func(i int) []zsync.ElectionOption {
			if i == 2 {
				return []zsync.ElectionOption{zsync.WithPriority(9)}
			}
			return nil
		})
		<-c.led
		harness.Must(t, c.es[0].Resign())
		if got := <-c.led; got != 1 {
			t.Errorf("%d leads", got)
		}
	})
}

// wishes returns those that stand in the line.
func wishes(t *testing.T, s *zsync.Session) []string {
	return slices.DeleteFunc(suite.ChildrenOf(t, s, "/e"), func(name string) bool { return !strings.HasPrefix(name, "transfer-") })
}

// withPriorities has candidates of these priorities stand in line, the first of whom leads.
func withPriorities(t *testing.T, srv *zktest.Server, ps ...int) *candidates {
	c := standInLine(t, srv, len(ps), func(i int) []zsync.ElectionOption { return []zsync.ElectionOption{zsync.WithPriority(ps[i])} })
	if got := <-c.led; got != 0 {
		t.Fatalf("%d leads", got)
	}
	return c
}

func TestTransferToALowerPriorityHoldsHoweverLateTheHeirLists(t *testing.T) {
	for _, late := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			c := withPriorities(t, srv, 0, 1, 5, 7)
			slow := inside.Session(c.es[1]).ID()
			heir := c.contender(t, 1)
			srv.Intercept(func(r zktest.Request) zktest.Action {
				if r.Session == slow && r.Op == zktest.OpGetChildren2 && r.Path == "/e" {
					return zktest.Delay(late)
				}
				return zktest.Pass
			})
			harness.Must(t, c.es[0].Transfer(harness.Within(t, time.Minute), heir))
			if got := <-c.led; got != 1 {
				t.Errorf("listing %v late: transferred to 1, and %d leads", late, got)
			}
			time.Sleep(time.Second)
			if w := wishes(t, inside.Session(c.es[0])); len(w) > 0 {
				t.Errorf("the heir leads, and %q is left", w)
			}
		})
	}
}

// The heir goes before it knows that it is the first, and the server refuses to tell who
// has made the wish that it has gone.
func TestAWishIsDeletedWhenTheHeirHasGoneThoughTheServerRefusesToTell(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := standInLine(t, srv, 3, nil)
		<-c.led
		from, heir, to := inside.Session(c.es[0]), c.contender(t, 1), inside.Session(c.es[1])
		var refused atomic.Int32
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Session == to.ID() && r.Path == "/e":
				return zktest.Delay(5 * time.Second)
			case r.Session == from.ID() && strings.HasSuffix(r.Path, heir.Node) && refused.Add(1) <= 3:
				return zktest.Fail(zktest.CodeNoAuth)
			}
			return zktest.Pass
		})
		harness.Must(t, c.es[0].Transfer(harness.Within(t, time.Minute), heir))
		if w := wishes(t, from); len(w) != 1 {
			t.Errorf("until the heir leads there is %q, want its wish", w)
		}
		time.Sleep(4 * time.Second) // the heir does not lead yet, and three reads of its znode are refused
		to.Close()
		if got := <-c.led; got != 2 {
			t.Errorf("%d leads, want who came behind the heir", got)
		}
		time.Sleep(time.Minute)
		if w := wishes(t, from); len(w) > 0 || refused.Load() < 3 {
			t.Errorf("refused %d times, and %q is left", refused.Load(), w)
		}
	})
}

// The heir's turn has come, and it waits for the confirmation of its session. Then the context of its
// Campaign ends, and another Campaign of the same Election takes over its place: it is the heir, too.
func TestTransferHoldsForWhoTakesOverThePlaceOfTheHeir(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := withPriorities(t, srv, 0)
		s := suite.Open(t, srv, zsync.WithOwner("1"))
		e, higher := zsync.NewElection(s, "/e", zsync.WithPriority(1)), zsync.NewElection(suite.Open(t, srv), "/e", zsync.WithPriority(5))
		ctx, cancel := context.WithCancel(t.Context())
		first := harness.Async(func() error { return e.Campaign(ctx) })
		synctest.Wait()
		second := harness.Async(func() error { return e.Campaign(harness.Within(t, time.Hour)) })
		synctest.Wait()
		third := harness.Async(func() error { return higher.Campaign(t.Context()) })
		time.Sleep(3 * harness.Timeout)
		heir := c.contender(t, 1)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Session == s.ID() && (r.Op == zktest.OpSync || r.Op == zktest.OpDelete && !strings.HasPrefix(r.Path, "/e/")) {
				return zktest.Delay(time.Second)
			}
			return zktest.Pass
		})
		harness.Must(t, c.es[0].Transfer(harness.Within(t, time.Minute), heir))
		time.Sleep(100 * time.Millisecond)
		harness.PendingStill(t, first)
		cancel()
		harness.WantErr(t, <-first, context.Canceled)
		srv.Intercept(nil)
		harness.Must(t, <-second)
		harness.PendingStill(t, third)
	})
}

func TestTransferHoldsHoweverLongTheFunctionOfRunGoesOn(t *testing.T) {
	t.Parallel()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		c := &candidates{led: make(chan int, 10)}
		for i, p := range []int{0, 1, 5} {
			c.es = append(c.es, zsync.NewElection(suite.Open(t, srv, zsync.WithOwner(fmt.Sprint(i))), "/e", zsync.WithPriority(p)))
		}
		ran := harness.Async(func() error {
			return c.es[0].Run(t.Context(), func(ctx context.Context) error {
				for i := range 2 {
					go func() {
						if c.es[i+1].Campaign(t.Context()) == nil {
							c.led <- i + 1
						}
					}()
					synctest.Wait()
				}
				harness.Must(t, c.es[0].Transfer(ctx, c.contender(t, 1)))
				time.Sleep(time.Hour)
				return errors.New("enough")
			})
		})
		if got := <-c.led; got != 1 {
			t.Errorf("transferred to 1, and %d leads", got)
		}
		inside.Session(c.es[0]).Close()
		<-ran
	})
}

// With the process that wishes, or the heir, or both killed at each moment of a
// transfer somebody leads when their sessions have ended.
func TestAWishOfAKilledLeaderKeepsNobodyFromLeading(t *testing.T) {
	t.Parallel()
	for killed, who := range map[string][]int{"the leader": {0}, "the heir": {1}, "both": {0, 1}} {
		t.Run(killed, func(t *testing.T) {
			for k := 1; ; k++ { // at the k'th request
				over := false
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					c := withPriorities(t, srv, 0, 1, 5, 7)
					heir := c.contender(t, 1)
					var n atomic.Int32
					start := time.Now()
					srv.Intercept(func(r zktest.Request) zktest.Action {
						if time.Since(start) < time.Second && int(n.Add(1)) == k {
							for _, i := range who {
								srv.Partition(inside.Session(c.es[i]).ID())
							}
						}
						return zktest.Pass
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					go c.es[0].Transfer(ctx, heir)
					time.Sleep(3 * harness.Timeout)
					leads := -1
					for len(c.led) > 0 {
						leads = <-c.led
					}
					if over = int(n.Load()) < k; leads < 0 || !over && slices.Contains(who, leads) {
						t.Errorf("killed at request %d: %d leads", k, leads)
					}
				})
				if over || t.Failed() {
					break
				}
			}
		})
	}
}

func TestTransferReachesTheHeirWhateverRequestOrReplyIsLost(t *testing.T) {
	for _, who := range []int{0, 1} {
		for fate, action := range map[string]zktest.Action{"request": zktest.DropRequest, "reply": zktest.DropReply} {
			t.Run(fmt.Sprintf("%s of %d", fate, who), func(t *testing.T) {
				for k := 1; ; k++ {
					over := false
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						c := withPriorities(t, srv, 0, 1, 5)
						heir, id := c.contender(t, 1), inside.Session(c.es[who]).ID()
						var n atomic.Int32
						srv.Intercept(func(r zktest.Request) zktest.Action {
							if r.Session == id && r.Op != zktest.OpPing && r.Op != zktest.OpConnect && int(n.Add(1)) == k {
								return action
							}
							return zktest.Pass
						})
						harness.Must(t, c.es[0].Transfer(harness.Within(t, time.Minute), heir))
						if got := <-c.led; got != 1 {
							t.Errorf("without %s %d: %d leads", fate, k, got)
						}
						time.Sleep(time.Second)
						if w := wishes(t, inside.Session(c.es[2])); len(w) > 0 {
							t.Errorf("without %s %d: %q is left", fate, k, w)
						}
						over = int(n.Load()) < k
					})
					if over || t.Failed() {
						break
					}
				}
			})
		}
	}
}

func TestTransferEndsWithItsContextAtAnyStepAndLeavesNoWish(t *testing.T) {
	for _, act := range []zktest.Action{zktest.Pass, zktest.Delay(time.Second), zktest.DropRequest, zktest.DropReply} {
		for k, over := 1, false; !over && !t.Failed(); k++ {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				c := standInLine(t, srv, 3, nil)
				<-c.led
				heir, id := c.contender(t, 2), inside.Session(c.es[0]).ID()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var n atomic.Int32
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Session == id && r.Op != zktest.OpPing && r.Op != zktest.OpConnect && int(n.Add(1)) == k {
						cancel()
						return act
					}
					return zktest.Pass
				})
				start := time.Now()
				if err := c.es[0].Transfer(ctx, heir); err != nil {
					harness.WantErr(t, err, context.Canceled)
				}
				if d := time.Since(start); d > 100*time.Millisecond {
					t.Errorf("step %d: Transfer took %v", k, d)
				}
				time.Sleep(2 * harness.Timeout)
				_, err := c.es[0].Token(t.Context())
				if leads := err == nil; leads == (len(c.led) == 1) {
					t.Errorf("step %d: it leads: %v; and %d others", k, leads, len(c.led))
				}
				if w := wishes(t, inside.Session(c.es[1])); len(w) > 0 {
					t.Errorf("step %d: %q is left", k, w)
				}
				over = int(n.Load()) < k
			})
		}
	}
}

func TestTransferHoldsThoughTheSessionIsClosedRightBehindIt(t *testing.T) {
	for _, late := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 800 * time.Millisecond} {
		for _, run := range []bool{false, true} {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				e := zsync.NewElection(s, "/e", zsync.WithPriority(9))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begun, going := make(chan struct{}), make(chan zsync.Contender)
				transfer := func(ctx context.Context) error {
					close(begun)
					err := e.Transfer(ctx, <-going)
					cancel()
					return err
				}
				left := harness.Async(func() error {
					if run {
						return e.Run(ctx, transfer)
					}
					harness.Must(t, e.Campaign(ctx))
					return transfer(ctx)
				})
				<-begun
				// The heir is neither the next nor the one of the highest priority, and whoever
				// comes to be the first lists late.
				c := standInLine(t, srv, 3, func(i int) []zsync.ElectionOption {
					return []zsync.ElectionOption{zsync.WithPriority([]int{1, 0, 5}[i])}
				})
				heir := c.contender(t, 1)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpGetChildren2 && r.Path == "/e" && r.Session != s.ID() {
						return zktest.Delay(late / 2)
					}
					return zktest.Pass
				})
				going <- heir
				if err := <-left; run {
					harness.WantErr(t, err, context.Canceled)
				} else {
					harness.Must(t, err)
				}
				start := time.Now()
				s.Close()
				if d := time.Since(start); d > time.Second+10*time.Millisecond {
					t.Errorf("Close took %v", d)
				}
				if got := <-c.led; got != 1 {
					t.Errorf("late by %v, in Run: %v: transferred to 1, and %d leads", late, run, got)
				}
			})
		}
	}
}
