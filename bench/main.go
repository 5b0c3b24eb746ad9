// Command bench measures zsync on real servers. It prints the results in the format of
// bench/compare, so that they can be compared with the results of other libraries:
//
//	bench -servers HOST:PORT -workload lock_uncontended [-n N] [-dur 3s] [-warm 1s] [-peer zsync]
//
// It prints a line for each measurement, "<peer>,<workload>,<n>,<operations per second>", and the
// requests per operation to standard error. With -peer zk.Lock, it measures go-zookeeper in the
// same way. If a peer does not have the workload, the exit code is 64. The comparison is the
// business of bench/compare.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync"
)

// A workload measures one kind of operation. The list below describes each workload.
type workload struct {
	name string
	run  func(b *bench)
}

var workloads = []workload{
	{"lock_uncontended", func(b *bench) { b.locks(1, false) }},                                // one session, one path: pairs of Lock and Unlock
	{"lock_shared_session", func(b *bench) { b.locks(1, false) }},                             // n goroutines with one Mutex of one session: handoffs
	{"lock_retained", func(b *bench) { b.locks(1, false, zsync.WithRetention(time.Minute)) }}, // lock_uncontended (n = 1) or lock_shared_session, with WithRetention
	{"lock_strict", func(b *bench) { b.locks(1, true) }},                                      // like lock_shared_session, but in the order of arrival: every goroutine has a znode in the line
	{"lock_sessions", func(b *bench) { b.locks(b.n, false) }},                                 // n sessions, one path: handoffs between processes
	{"lock_rival", (*bench).rival},                                                            // lock_shared_session, while another session locks all the time
	{"lock_waiters", func(b *bench) { b.waiters(1) }},                                         // n goroutines of one session wait, each with a Mutex: the handoffs until the line is empty
	{"lock_waiters_200", func(b *bench) { b.waiters(200) }},                                   // like lock_waiters, with 200 sessions
	{"queue", (*bench).queue},                                                                 // n elements of 100 bytes into the channel of In (queue_put), then from the channel of Recv (queue_take)
	{"queue_send", (*bench).sends},                                                            // n elements of 100 bytes with Send, one after another
	{"sessions", (*bench).sessions},                                                           // n sessions connect and lock a path each: the rate of sessions, and the requests of all while they hold
	{"held", (*bench).held},                                                                   // one process locks n paths, at most 8,000 with each session, and holds all of them: the rate of locks, and the requests and the heap while they are held
	{"storm", (*bench).storm},                                                                 // n sessions with a lock each lose their servers and connect again: the rate at which they are served
	{"processes", (*bench).processes},                                                         // n processes, one path: handoffs between them
	{"process", (*bench).process},                                                             // one of the n processes
	{"barrier", (*bench).barrier},                                                             // rounds of a double barrier with n parties on one session
}

// A bench is one run of the command.
type bench struct {
	peer      string
	servers   string
	workload  string
	n         int
	dur, warm time.Duration

	requests func() int64 // the number of requests so far; nil: unknown
}

func main() {
	var b bench
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	flag.StringVar(&b.peer, "peer", "zsync", "zsync | zk.Lock")
	flag.StringVar(&b.servers, "servers", os.Getenv("ZSYNC_TEST_SERVERS"), "ZooKeeper connect `string`")
	flag.StringVar(&b.workload, "workload", "lock_uncontended", strings.Join(names, " | "))
	flag.IntVar(&b.n, "n", 1, "contenders, parties or items")
	flag.DurationVar(&b.dur, "dur", 3*time.Second, "measured time")
	flag.DurationVar(&b.warm, "warm", time.Second, "time before it")
	flag.Parse()
	peers := map[string][]workload{"zsync": workloads, "zk.Lock": goZookeeper()}
	if b.servers == "" || b.n < 1 || peers[b.peer] == nil {
		flag.Usage()
		os.Exit(2)
	}
	i := slices.IndexFunc(peers[b.peer], func(w workload) bool { return w.name == b.workload })
	if i < 0 {
		unknown(b.peer, b.workload)
	}
	peers[b.peer][i].run(&b)
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

// session connects the only session of a run. It also returns a counter of its requests.
func (b *bench) session() (s *zsync.Session, requests func() int64) {
	s = b.connect()
	return s, func() int64 { return s.Stats().Requests }
}

// report prints the rate of ops operations in the time d, and their requests.
func (b *bench) report(workload string, ops float64, d time.Duration, requests int64) {
	b.line(workload, ops/d.Seconds())
	fmt.Fprintf(os.Stderr, "REQ,%s,%s,%d,%.2f\n", b.peer, workload, b.n, float64(requests)/ops)
}

// locks measures n goroutines that lock and unlock, distributed over several sessions.
func (b *bench) locks(sessions int, strict bool, opts ...zsync.LockOption) {
	path := b.path()
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
	b.requests = func() (sum int64) {
		for _, s := range all {
			sum += s.Stats().Requests
		}
		return sum
	}
	var loops []closedLoop
	for i := range b.n {
		m := mutexes[i%len(mutexes)]
		loops = append(loops, closedLoop{func() error { return m.Lock(context.Background()) }, m.Unlock, true})
	}
	b.drive(loops)
}

// rival measures n goroutines that share a Mutex, while another session locks and unlocks as often
// as it can.
func (b *bench) rival() {
	path := b.path()
	s, other := b.connect(), b.connect()
	defer s.Close()
	defer other.Close()
	m, rival := zsync.NewMutex(s, path), zsync.NewMutex(other, path)
	var stop atomic.Bool
	var longest atomic.Int64
	var loop sync.WaitGroup
	loop.Go(func() {
		for !stop.Load() {
			start := time.Now()
			must(rival.Lock(context.Background()))
			longest.Store(max(longest.Load(), int64(time.Since(start))))
			must(rival.Unlock())
		}
	})
	var loops []closedLoop
	for range b.n {
		loops = append(loops, closedLoop{func() error { return m.Lock(context.Background()) }, m.Unlock, true})
	}
	b.drive(loops)
	stop.Store(true)
	loop.Wait()
	fmt.Fprintf(os.Stderr, "RIVAL,%s,%s,%d,%v\n", b.peer, b.workload, b.n, time.Duration(longest.Load()))
}

// sessions measures the rate at which n sessions connect and lock a path each, and the number of
// requests of all of them while they hold. For the cost at the servers, ask them with the
// four-letter word mntr.
func (b *bench) sessions() {
	path := b.path()
	all, mutexes := make([]*zsync.Session, b.n), make([]*zsync.Mutex, b.n)
	start := time.Now()
	b.together(func(i int) {
		all[i] = b.connect()
		mutexes[i] = zsync.NewMutex(all[i], fmt.Sprintf("%s/%d", path, i))
		must(mutexes[i].Lock(context.Background()))
	})
	b.line("sessions", float64(b.n)/time.Since(start).Seconds())
	requests := func() (sum, lost int64) {
		for _, s := range all {
			stats := s.Stats()
			sum, lost = sum+stats.Requests, lost+stats.Expiries
		}
		return sum, lost
	}
	time.Sleep(b.warm)
	before, _ := requests()
	time.Sleep(b.dur)
	after, lost := requests()
	b.line("sessions_requests", float64(after-before)/b.dur.Seconds())
	fmt.Fprintf(os.Stderr, "LOST,%s,%s,%d,%d\n", b.peer, b.workload, b.n, lost)
	b.together(func(i int) {
		must(mutexes[i].Unlock())
		all[i].Close()
	})
}

// held measures the rate at which one process locks n paths, and the number of its requests while it
// holds all of the locks. It prints the heap for each lock to standard error.
func (b *bench) held() {
	const most = 8000 // locks of a session: the servers bear about 10,000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	empty, path := heap(), b.path()
	all := make([]*zsync.Session, (b.n+most-1)/most)
	for i := range all {
		all[i] = b.connect()
		defer all[i].Close()
	}
	requests := func() (sum int64) {
		for _, s := range all {
			sum += s.Stats().Requests
		}
		return sum
	}
	mutexes := make([]*zsync.Mutex, b.n)
	start := time.Now()
	b.together(func(i int) {
		mutexes[i] = zsync.NewMutex(all[i%len(all)], fmt.Sprintf("%s/%d", path, i))
		must(mutexes[i].Lock(context.Background()))
	})
	b.line("held", float64(b.n)/time.Since(start).Seconds())
	each := (heap() - empty) / uint64(b.n)
	time.Sleep(b.warm)
	before := requests()
	time.Sleep(b.dur)
	b.line("held_requests", float64(requests()-before)/b.dur.Seconds())
	lost := 0
	for _, m := range mutexes {
		select {
		case <-m.Lost():
			lost++
		default:
		}
	}
	fmt.Fprintf(os.Stderr, "HELD,%s,%s,%d: %d sessions, %d bytes of heap for each lock, %d lost\n",
		b.peer, b.workload, b.n, len(all), each, lost)
	start = time.Now()
	b.together(func(i int) { must(mutexes[i].Unlock()) })
	b.line("held_released", float64(b.n)/time.Since(start).Seconds())
}

// storm measures how soon n sessions are served again after an outage. It waits for you to kill all
// servers and to start them again. The time counts from the first connection to a new server.
func (b *bench) storm() {
	path := b.path()
	all, mutexes := make([]*zsync.Session, b.n), make([]*zsync.Mutex, b.n)
	b.together(func(i int) {
		all[i] = b.connect()
		mutexes[i] = zsync.NewMutex(all[i], fmt.Sprintf("%s/%d", path, i))
		must(mutexes[i].Lock(context.Background()))
	})
	fmt.Fprintln(os.Stderr, "All sessions have a lock. Kill the servers, and start them again.")
	for _, s := range all {
		for s.State() == zsync.StateConnected {
			time.Sleep(time.Millisecond)
		}
	}
	served := make([]time.Time, b.n)
	var group sync.WaitGroup
	for i, s := range all {
		group.Go(func() {
			_, _, err := s.Get(context.Background(), "/") // waits for a connection
			must(err)
			served[i] = time.Now()
		})
	}
	group.Wait()
	slices.SortFunc(served, time.Time.Compare)
	lost, first := 0, served[0]
	for _, m := range mutexes {
		select {
		case <-m.Lost():
			lost++
		default:
		}
	}
	took := served[b.n-1].Sub(first)
	b.line("storm", float64(b.n)/took.Seconds())
	fmt.Fprintf(os.Stderr, "STORM,%s,%s,%d: half were served %v after the first, all after %v; %d locks lost\n",
		b.peer, b.workload, b.n, served[b.n/2].Sub(first), took, lost)
	b.together(func(i int) { all[i].Close() })
}

// processes measures handoffs between n processes. Each runs the workload process.
func (b *bench) processes() {
	path := b.path()
	start := time.Now().Add(b.warm + time.Duration(b.n)*20*time.Millisecond) // until then, all are connected
	counts := make([]int, b.n)
	var group sync.WaitGroup
	for i := range b.n {
		group.Go(func() {
			c := exec.Command(os.Args[0], "-servers", b.servers, "-workload", "process", "-dur", b.dur.String())
			c.Env = append(os.Environ(), "ZSYNC_BENCH_PATH="+path, "ZSYNC_BENCH_START="+start.Format(time.RFC3339Nano))
			c.Stderr = os.Stderr
			out, err := c.Output()
			must(err)
			counts[i], err = strconv.Atoi(strings.TrimSpace(string(out)))
			must(err)
		})
	}
	group.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	b.line(b.workload, float64(sum)/b.dur.Seconds())
	fmt.Fprintf(os.Stderr, "SHARE,%s,%s,%d: each process had the lock %d to %d times\n", b.peer, b.workload, b.n, slices.Min(counts), slices.Max(counts))
}

// process locks and unlocks the path of the workload processes from the start time on, and prints
// how often.
func (b *bench) process() {
	start, err := time.Parse(time.RFC3339Nano, os.Getenv("ZSYNC_BENCH_START"))
	must(err)
	s := b.connect()
	defer s.Close()
	m := zsync.NewMutex(s, os.Getenv("ZSYNC_BENCH_PATH"))
	if time.Now().After(start) {
		log.Fatal("connected too late: set a longer -warm")
	}
	time.Sleep(time.Until(start))
	n := 0
	for end := start.Add(b.dur); time.Now().Before(end); n++ {
		must(m.Lock(context.Background()))
		must(m.Unlock())
	}
	fmt.Println(n)
}

// together calls f for each number below n, up to 50 at a time.
func (b *bench) together(f func(i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(50, b.n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	group.Wait()
}

// waiters measures a line of n waiting goroutines, distributed over several sessions.
func (b *bench) waiters(sessions int) {
	path := b.path()
	holder := b.connect()
	defer holder.Close()
	var all []*zsync.Session
	for range min(sessions, b.n) {
		s := b.connect()
		defer s.Close()
		all = append(all, s)
	}
	lock := func(s *zsync.Session) closedLoop {
		m := zsync.NewMutex(s, path)
		return closedLoop{func() error { return m.Lock(context.Background()) }, m.Unlock, true}
	}
	var loops []closedLoop
	for i := range b.n {
		loops = append(loops, lock(all[i%len(all)]))
	}
	b.drain(lock(holder), loops, func() int {
		names, _, err := holder.Children(context.Background(), path)
		must(err)
		return len(names)
	}, func() (requests, sessions int64) {
		for _, s := range all {
			requests += s.Stats().Requests
		}
		return requests, int64(len(all))
	})
	for _, s := range all {
		if s.Stats().Expiries != 0 {
			log.Fatal("a session was lost")
		}
	}
}

// drain makes loops wait in line behind holder, and then reports the rate of their handoffs.
// standing returns the number of contenders. sent returns the number of requests and of sessions;
// it may be nil.
func (b *bench) drain(holder closedLoop, loops []closedLoop, standing func() int, sent func() (requests, sessions int64)) {
	must(holder.begin())
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	start := time.Now()
	var inside atomic.Int64
	var wg sync.WaitGroup
	for _, l := range loops {
		wg.Go(func() {
			must(l.begin())
			if inside.Add(1) != 1 {
				log.Fatal("two hold the lock")
			}
			inside.Add(-1)
			must(l.end())
		})
	}
	for standing() < len(loops)+1 {
		time.Sleep(50 * time.Millisecond)
	}
	entered := time.Since(start)
	time.Sleep(b.warm) // the waiters still read the znode ahead of them
	for before, busy := int64(0), sent != nil; busy; {
		requests, sessions := sent()
		if busy = requests-before > sessions; busy { // the rest are confirmations of sessions, with at most one request each
			before = requests
			time.Sleep(b.warm / 2)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	n := int64(len(loops))
	fmt.Fprintf(os.Stderr, "STAND,%s,%s,%d,in line after %v,%d bytes of heap and %d of stack and %.2f goroutines each\n", b.peer, b.workload, b.n, entered,
		int64(after.HeapAlloc-before.HeapAlloc)/n, int64(after.StackInuse-before.StackInuse)/n, float64(runtime.NumGoroutine()-goroutines)/float64(n))
	quiet := int64(0)
	if sent != nil {
		quiet, _ = sent()
	}
	start = time.Now()
	must(holder.end())
	wg.Wait()
	b.line(b.workload, float64(n)/time.Since(start).Seconds())
	if sent != nil {
		requests, _ := sent()
		fmt.Fprintf(os.Stderr, "REQ,%s,%s,%d,%.2f\n", b.peer, b.workload, b.n, float64(requests-quiet)/float64(n))
	}
}

// A closedLoop is the work that a goroutine repeats: begin and end are one operation. If excludes
// is true, drive checks that only one goroutine at a time is between the two.
type closedLoop struct {
	begin, end func() error
	excludes   bool
}

// counted has the number of operations of one goroutine and the longest operation, in a cache line
// of its own.
type counted struct {
	n       atomic.Int64
	longest atomic.Int64
	_       [48]byte
}

// drive runs loops at the same time, and reports the rate of their operations.
func (b *bench) drive(loops []closedLoop) {
	var stop atomic.Bool
	var inside atomic.Int64
	counts := make([]counted, len(loops))
	var wg sync.WaitGroup
	for i, l := range loops {
		c := &counts[i]
		wg.Go(func() {
			for !stop.Load() {
				start := time.Now()
				must(l.begin())
				if l.excludes && inside.Add(1) != 1 {
					log.Fatal("two hold the lock")
				}
				if l.excludes {
					inside.Add(-1)
				}
				must(l.end())
				c.n.Add(1)
				if d := int64(time.Since(start)); d > c.longest.Load() {
					c.longest.Store(d)
				}
			}
		})
	}
	sum := func() (n int64) {
		for i := range counts {
			n += counts[i].n.Load()
		}
		return n
	}
	if b.requests == nil {
		b.requests = func() int64 { return 0 }
	}
	time.Sleep(b.warm)
	for i := range counts {
		counts[i].longest.Store(0)
	}
	before, first, start := b.requests(), sum(), time.Now()
	time.Sleep(b.dur)
	n, d := sum()-first, time.Since(start)
	b.report(b.workload, float64(n), d, b.requests()-before)
	longest := int64(0)
	for i := range counts {
		longest = max(longest, counts[i].longest.Load())
	}
	fmt.Fprintf(os.Stderr, "LONGEST,%s,%s,%d,%v\n", b.peer, b.workload, b.n, time.Duration(longest))
	stop.Store(true)
	wg.Wait()
}

// element is the payload of the queues.
var element = bytes.Repeat([]byte("x"), 100)

// queue sends n elements without a consumer, and then receives them: once to warm up, and once to
// measure.
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

// sends sends n elements, and waits for each.
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

// barrier measures rounds of n goroutines. In a round, each goroutine enters and leaves.
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
