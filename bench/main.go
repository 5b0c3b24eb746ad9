// Command bench measures zsync on real servers, in the words of other
// libraries' benchmarks, so that the figures can be set side by side:
//
//	bench -servers HOST:PORT -workload lock_uncontended [-n N] [-dur 3s] [-warm 1s]
//
// It prints one line a measurement, "zsync,<workload>,<n>,<operations per second>",
// and to standard error what each operation cost in requests.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync"
)

// A workload measures one thing; its words are those of the list below.
type workload struct {
	name string
	run  func(b *bench)
}

var workloads = []workload{
	{"lock_uncontended", func(b *bench) { b.locks(1, false) }},    // one session, one path: pairs of Lock and Unlock
	{"lock_shared_session", func(b *bench) { b.locks(1, false) }}, // n goroutines, one Mutex, one session: hand-overs
	{"lock_strict", func(b *bench) { b.locks(1, true) }},          // the same in strict global order: every goroutine in the line
	{"lock_sessions", func(b *bench) { b.locks(b.n, false) }},     // n sessions, one path: hand-overs between processes
	{"queue", (*bench).queue},                                     // n elements of 100 bytes into the channel of In (queue_put), then out of that of Recv (queue_take)
	{"queue_send", (*bench).sends},                                // n elements of 100 bytes by Send, one after the other by one goroutine
	{"barrier", (*bench).barrier},                                 // rounds of a double barrier with n parties on one session
}

// A bench is one run of the command.
type bench struct {
	servers   string
	workload  string
	n         int
	dur, warm time.Duration
}

func main() {
	var b bench
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	flag.StringVar(&b.servers, "servers", os.Getenv("ZSYNC_TEST_SERVERS"), "ZooKeeper connect `string`")
	flag.StringVar(&b.workload, "workload", "lock_uncontended", strings.Join(names, " | "))
	flag.IntVar(&b.n, "n", 1, "contenders, parties or items")
	flag.DurationVar(&b.dur, "dur", 3*time.Second, "measured time")
	flag.DurationVar(&b.warm, "warm", time.Second, "time before it")
	flag.Parse()
	i := slices.Index(names, b.workload)
	if i < 0 || b.servers == "" || b.n < 1 {
		flag.Usage()
		os.Exit(2)
	}
	workloads[i].run(&b)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func (b *bench) connect() *zsync.Session {
	s, err := zsync.Connect(context.Background(), b.servers, zsync.WithSessionTimeout(20*time.Second))
	must(err)
	return s
}

// path returns a path that no other run uses.
func (b *bench) path() string { return fmt.Sprintf("/zsync-bench-%d", time.Now().UnixNano()) }

// session returns the one session of a run, and what it has sent so far.
func (b *bench) session() (s *zsync.Session, requests func() int64) {
	s = b.connect()
	return s, func() int64 { return s.Stats().Requests }
}

// report prints the rate of ops operations in d, and their cost.
func (b *bench) report(workload string, ops float64, d time.Duration, requests int64) {
	fmt.Printf("zsync,%s,%d,%.1f\n", workload, b.n, ops/d.Seconds())
	fmt.Fprintf(os.Stderr, "REQ,zsync,%s,%d,%.2f\n", workload, b.n, float64(requests)/ops)
}

// locks has n goroutines lock and unlock in a closed loop.
func (b *bench) locks(sessions int, strict bool) {
	path := b.path()
	var opts []zsync.LockOption
	if strict {
		opts = append(opts, zsync.WithHandoffs(0))
	}
	var all []*zsync.Session
	var mutexes []*zsync.Mutex
	for range sessions {
		s := b.connect()
		defer s.Close()
		all = append(all, s)
		mutexes = append(mutexes, zsync.NewMutex(s, path, opts...))
	}
	requests := func() (sum int64) {
		for _, s := range all {
			sum += s.Stats().Requests
		}
		return sum
	}
	ctx := context.Background()
	var measuring, stop atomic.Bool
	var ops, inside atomic.Int64
	var mu sync.Mutex
	var waits []time.Duration
	var wg sync.WaitGroup
	for i := range b.n {
		m := mutexes[i%len(mutexes)]
		wg.Go(func() {
			var mine []time.Duration
			for !stop.Load() {
				start := time.Now()
				must(m.Lock(ctx))
				if inside.Add(1) != 1 {
					log.Fatal("two hold the lock")
				}
				inside.Add(-1)
				must(m.Unlock())
				if measuring.Load() {
					ops.Add(1)
					mine = append(mine, time.Since(start))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, mine...)
		})
	}
	time.Sleep(b.warm)
	before, start := requests(), time.Now()
	measuring.Store(true)
	time.Sleep(b.dur)
	measuring.Store(false)
	n, d := ops.Load(), time.Since(start)
	b.report(b.workload, float64(n), d, requests()-before)
	stop.Store(true)
	wg.Wait()
	sort.Slice(waits, func(i, j int) bool { return waits[i] < waits[j] })
	if len(waits) > 0 {
		fmt.Fprintf(os.Stderr, "LAT,zsync,%s,%d,p50=%v,p99=%v\n", b.workload, b.n, waits[len(waits)/2], waits[len(waits)*99/100])
	}
}

// element is what the queues carry.
var element = bytes.Repeat([]byte("x"), 100)

// queue puts n elements with nobody consuming, and takes them, once to warm
// up and once measured.
func (b *bench) queue() {
	s, requests := b.session()
	defer s.Close()
	for _, n := range []int{min(b.n, 2000), b.n} {
		measured := n == b.n
		q := zsync.NewQueue[[]byte](s, b.path(), zsync.WithCodec(zsync.Raw))
		before, start := requests(), time.Now()
		in, done := q.In(context.Background())
		for range n {
			in <- element
		}
		close(in)
		must(<-done)
		if d := time.Since(start); measured {
			b.report("queue_put", float64(n), d, requests()-before)
		}
		ctx, cancel := context.WithCancel(context.Background())
		before, start = requests(), time.Now()
		ch := q.Recv(ctx)
		for range n {
			if e, ok := <-ch; !ok || !bytes.Equal(e, element) {
				log.Fatalf("received %q, %v", e, ok)
			}
		}
		if d := time.Since(start); measured {
			b.report("queue_take", float64(n), d, requests()-before)
		}
		cancel()
		for range ch {
		}
	}
}

// sends puts n elements, waiting for each.
func (b *bench) sends() {
	s, requests := b.session()
	defer s.Close()
	q := zsync.NewQueue[[]byte](s, b.path(), zsync.WithCodec(zsync.Raw))
	before, start := requests(), time.Now()
	for range b.n {
		must(q.Send(context.Background(), element))
	}
	b.report(b.workload, float64(b.n), time.Since(start), requests()-before)
	_, err := q.Clear(context.Background())
	must(err)
}

// barrier has n goroutines enter and leave in rounds. A round is everybody's
// Enter and everybody's Leave.
func (b *bench) barrier() {
	s, requests := b.session()
	defer s.Close()
	path := b.path()
	var inside atomic.Int64
	var rounds atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range b.n {
		p := zsync.NewWaitGroup(s, path)
		wg.Go(func() {
			for {
				if p.Enter(ctx, b.n) != nil {
					return
				}
				if in := inside.Add(1); in > int64(b.n) {
					log.Fatalf("%d are inside", in)
				}
				inside.Add(-1)
				if p.Leave(ctx) != nil {
					return
				}
				if i == 0 {
					rounds.Add(1)
				}
			}
		})
	}
	time.Sleep(b.warm)
	before, start, first := requests(), time.Now(), rounds.Load()
	time.Sleep(b.dur)
	n, d := rounds.Load()-first, time.Since(start)
	b.report(b.workload, float64(n), d, requests()-before)
	cancel()
	wg.Wait()
}
