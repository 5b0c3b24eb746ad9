package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Random programs beside a stranger that deletes any znode of the queue except its elements, and creates
// some.
func TestQueueLosesNothingAndGoesOnWhateverAStrangerDeletesBesideElements(t *testing.T) {
	harness.EachSeed(t, func(t *testing.T, srv *zktest.Server, rnd *rand.Rand) {
		opts := []zsync.QueueOption{zsync.WithPriorities(2)}
		if rnd.IntN(2) == 0 {
			opts = append(opts, zsync.WithKey(func(v int) string { return fmt.Sprint(v % 5) }))
		}
		var ss []*zsync.Session
		var qs []*zsync.Queue[int]
		for range 3 {
			s := open(t, srv)
			ss, qs = append(ss, s), append(qs, zsync.NewQueue[int](s, "/q", opts...))
		}
		var mu sync.Mutex
		sent, got, acked := map[int]bool{}, map[int]int{}, map[int]int{}
		next := 0
		var producers, rest sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		dice := func() *rand.Rand { return rand.New(rand.NewPCG(rnd.Uint64(), 3)) }
		for i := range 2 {
			d, q := dice(), qs[i]
			producers.Go(func() {
				for range 30 {
					mu.Lock()
					v := next
					next++
					mu.Unlock()
					var err error
					switch d.IntN(5) {
					case 0:
						err = q.SendPriority(ctx, 1, v)
					case 1:
						err = q.SendAt(ctx, time.Now().Add(time.Duration(d.IntN(3000))*time.Millisecond), v)
					case 2:
						_, err = q.SendID(ctx, fmt.Sprint(v), v)
					default:
						err = q.Send(ctx, v)
					}
					if err != nil && !strings.Contains(err.Error(), "may have been applied") {
						t.Errorf("send: %v", err)
					}
					mu.Lock()
					sent[v] = err == nil
					mu.Unlock()
					harness.Nap(d, 400)
				}
			})
		}
		receive := func(v int) {
			mu.Lock()
			defer mu.Unlock()
			got[v]++
		}
		removed := func(v int, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				if acked[v]++; acked[v] > 1 {
					t.Errorf("%d was removed twice", v)
				}
			} else if !errors.Is(err, zsync.ErrLost) && !errors.Is(err, zk.ErrNoNode) && ctx.Err() == nil {
				t.Errorf("ack: %v", err)
			}
		}
		for i := range 3 {
			d, q := dice(), qs[i]
			rest.Go(func() {
				for ctx.Err() == nil {
					c, stop := context.WithTimeout(ctx, time.Duration(1+d.IntN(20))*time.Second)
					switch d.IntN(5) {
					case 0:
						for v := range q.Recv(c) {
							receive(v)
							harness.Nap(d, 50)
						}
					case 1:
						q.Work(c, 2, func(ctx context.Context, v int) error {
							receive(v)
							return nil
						})
					case 2:
						for c.Err() == nil {
							v, ok, err := q.TryRecv(c)
							if ok {
								receive(v)
							}
							if err != nil && c.Err() == nil {
								t.Errorf("tryrecv: %v", err)
							}
							time.Sleep(50 * time.Millisecond)
						}
					case 3:
						for c.Err() == nil {
							dv, err := q.Receive(c)
							if err != nil {
								continue
							}
							receive(dv.Value)
							removed(dv.Value, dv.Ack(ctx))
						}
					default:
						for dv := range q.Deliveries(c) {
							receive(dv.Value)
							harness.Nap(d, 200)
							switch d.IntN(5) {
							case 0:
								dv.Nack()
							case 1:
								dv.NackAfter(time.Duration(d.IntN(1000)) * time.Millisecond)
							case 2:
								_, err := dv.Txn(ctx, &zk.CreateRequest{Path: fmt.Sprintf("/done-%d", dv.Value), Acl: zk.WorldACL(zk.PermAll)})
								removed(dv.Value, err)
							default:
								removed(dv.Value, dv.Ack(ctx))
							}
						}
					}
					stop()
				}
			})
		}
		stranger, over := plain(t, srv), make(chan struct{})
		d := dice()
		znodes := func() (paths []string) {
			var b strings.Builder
			srv.Dump(&b)
			for line := range strings.Lines(b.String()) {
				if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "/q") {
					paths = append(paths, f[0])
				}
			}
			return paths
		}
		var harm sync.WaitGroup
		harm.Go(func() {
			for !harness.Closed(over) {
				harness.Nap(d, 300)
				paths := znodes()
				if len(paths) == 0 {
					continue
				}
				path := paths[d.IntN(len(paths))]
				base := path[strings.LastIndexByte(path, '/')+1:]
				switch {
				case strings.HasPrefix(path, "/q/") && strings.Count(path, "/") == 3, strings.HasPrefix(path, "/q-dead"):
				case d.IntN(12) == 0:
					stranger.Create("/q/"+[]string{"keys", "paused"}[d.IntN(2)], nil, 0, zk.WorldACL(zk.PermAll))
				case strings.HasPrefix(base, "b-"):
					if stranger.Delete(path, -1) == nil && d.IntN(2) == 0 {
						harness.Nap(d, 100)
						stranger.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
					}
				default:
					stranger.Delete(path, -1)
				}
				stranger.Delete("/q/paused", -1)
			}
		})
		work := func() {
			producers.Wait()
			close(over)
			harm.Wait()
		}
		if rnd.IntN(2) == 0 {
			harness.UnderChaos(t, srv, dice(), ss, work)
		} else {
			work()
		}
		stranger.Delete("/q/paused", -1)
		missing := func() (vs []int) {
			mu.Lock()
			defer mu.Unlock()
			for v, ok := range sent {
				if ok && got[v] == 0 {
					vs = append(vs, v)
				}
			}
			return vs
		}
		time.Sleep(2*harness.Timeout + 20*time.Second)
		if vs := missing(); len(vs) > 0 {
			t.Errorf("%v are sent, and not received; the znodes are %s", vs, strings.Join(znodes(), " "))
		}
		if n, err := qs[0].Len(t.Context()); n != 0 || err != nil {
			t.Errorf("Len = %d, %v: %s", n, err, strings.Join(znodes(), " "))
		}
		cancel()
		rest.Wait()
		n := requests(srv, func() { time.Sleep(time.Minute) })
		if n > 300 {
			t.Errorf("%d requests in a minute without work", n)
		}
		for _, s := range ss {
			must(t, s.Close())
		}
		time.Sleep(time.Minute)
		for _, path := range znodes() {
			for _, dir := range []string{"/q-live/", "/q-consumers/"} {
				if strings.HasPrefix(path, dir) {
					t.Errorf("%s is left", path)
				}
			}
		}
	})
}
