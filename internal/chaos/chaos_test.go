//go:build linux

package chaos_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/chaos"
	"github.com/zsync/zsync/internal/need"
	"github.com/zsync/zsync/internal/verify"
)

// A plan is what one ensemble is put through.
type plan struct {
	Name      string
	Tick      time.Duration
	SyncLimit int
	Timeouts  []time.Duration
	Pairs     int // holders for each timeout, idle and as many busy
	Faults    []string
	Rounds    int
	Proxies   bool
}

// A result is what became of one holder.
type result struct {
	Plan    string
	Fault   string
	Timeout time.Duration
	Busy    bool
	Told    time.Duration // after the fault
	Granted time.Duration // to another, after the fault
	Problem string        // "" if both happened
	Early   string        // how it was lost before the fault, which then shows nothing
}

// faults are brought to the server that is the only one that the holder knows.
// Another waits for the lock at the other two.
var faults = map[string]struct {
	leader bool // whether the server leads
	bring  func(e *chaos.Ensemble, victim int) error
}{
	"follower killed":  {false, (*chaos.Ensemble).Kill},
	"leader killed":    {true, (*chaos.Ensemble).Kill},
	"follower stopped": {false, (*chaos.Ensemble).Stop},
	"leader stopped":   {true, (*chaos.Ensemble).Stop},
	"follower cut off": {false, func(e *chaos.Ensemble, v int) error { return e.Cut(append(from(v), to(v)...)...) }},
	"leader cut off":   {true, func(e *chaos.Ensemble, v int) error { return e.Cut(append(from(v), to(v)...)...) }},
	"follower unheard": {false, func(e *chaos.Ensemble, v int) error { return e.Cut(from(v)...) }},
	"leader unheard":   {true, func(e *chaos.Ensemble, v int) error { return e.Cut(from(v)...) }},
	"follower deaf":    {false, func(e *chaos.Ensemble, v int) error { return e.Cut(to(v)...) }},
	"leader deaf":      {true, func(e *chaos.Ensemble, v int) error { return e.Cut(to(v)...) }},
}

// from returns the ways from server v to the others, and to those to it.
func from(v int) (ways [][2]int) {
	for i := 1; i <= chaos.Servers; i++ {
		if i != v {
			ways = append(ways, [2]int{v, i})
		}
	}
	return ways
}

func to(v int) (ways [][2]int) {
	for _, w := range from(v) {
		ways = append(ways, [2]int{w[1], w[0]})
	}
	return ways
}

const (
	stock = 2 * time.Second
	quick = 500 * time.Millisecond
	s     = time.Second
)

// plans returns what is to be done. ZSYNC_TEST_CHAOS=1 is the selection that
// takes less than four minutes, =full 20 holders of each kind at each fault.
func plans(full bool) []plan {
	every := []string{"follower killed", "follower cut off", "leader cut off", "follower unheard", "follower deaf",
		"leader unheard", "leader deaf", "follower stopped", "leader killed", "leader stopped"}
	if !full {
		first := every[:5]
		return []plan{
			{"stock", stock, 5, []time.Duration{10 * s}, 4, first[:2], 1, false},
			{"stock, leader", stock, 5, []time.Duration{10 * s}, 4, first[2:3], 1, false},
			{"quick", quick, 2, []time.Duration{4 * s, 6 * s, 10 * s}, 3, first, 1, false},
			{"quick, patient", quick, 5, []time.Duration{4 * s, 10 * s}, 3, every[5:8], 1, false},
		}
	}
	var list []plan
	for _, c := range []struct {
		name  string
		tick  time.Duration
		limit int
	}{{"tick 2 s, limit 5", stock, 5}, {"tick 0.5 s, limit 2", quick, 2}, {"tick 0.5 s, limit 10", quick, 10}} {
		for i := 0; i < len(every); i += 5 {
			name := fmt.Sprintf("%s (%d)", c.name, i/5+1)
			list = append(list,
				plan{name, c.tick, c.limit, []time.Duration{4 * s, 6 * s, 10 * s}, 5, every[i : i+5], 4, false},
				plan{name + " 30 s", c.tick, c.limit, []time.Duration{30 * s}, 10, every[i : i+5], 2, false})
		}
	}
	return list
}

// TestTheLossIsToldBeforeTheGrantElsewhereOnRealServers brings faults to real
// ensembles, and sees of many holders of a Mutex when each is told of its loss
// and when another is granted the lock.
//
// ZSYNC_TEST_CHAOS is 1 or full; ZSYNC_TEST_CHAOS_ONLY is a regular expression
// for the names of plans, ZSYNC_TEST_CHAOS_FAULT for those of faults,
// ZSYNC_TEST_CHAOS_PARALLEL how many ensembles run at a time, and
// ZSYNC_TEST_CHAOS_PROXIES=1 does without network namespaces.
func TestTheLossIsToldBeforeTheGrantElsewhereOnRealServers(t *testing.T) {
	mode := need.Variable(t, "ZSYNC_TEST_CHAOS")
	proxies := os.Getenv("ZSYNC_TEST_CHAOS_PROXIES") != ""
	if !proxies {
		if err := probe(); err != nil {
			t.Logf("no network namespaces, so proxies stand between the servers: %v", err)
			proxies = true
		}
	}
	only, which := regexp.MustCompile(os.Getenv("ZSYNC_TEST_CHAOS_ONLY")), regexp.MustCompile(os.Getenv("ZSYNC_TEST_CHAOS_FAULT"))
	parallel := 4
	if n := os.Getenv("ZSYNC_TEST_CHAOS_PARALLEL"); n != "" {
		if _, err := fmt.Sscan(n, &parallel); err != nil || parallel < 1 {
			t.Fatalf("ZSYNC_TEST_CHAOS_PARALLEL is %q; want a number from 1", n)
		}
	}
	places := make(chan struct{}, parallel)
	var mu sync.Mutex
	var results []result
	var running sync.WaitGroup
	for _, p := range plans(mode == "full") {
		p.Proxies = proxies
		p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f string) bool { return !which.MatchString(f) })
		if !only.MatchString(p.Name) || len(p.Faults) == 0 {
			continue
		}
		dir := t.TempDir()
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			err := carryOut(p, dir, func(r result) {
				mu.Lock()
				defer mu.Unlock()
				results = append(results, r)
			})
			if err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		})
	}
	running.Wait()
	report(t, results)
}

// probe reports why namespaces are not to be had.
func probe() error {
	for _, tool := range []string{"ip", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	cmd := exec.Command("sh", "-c", "ip link add br0 type bridge && ip link add v type veth peer name w && ip link set v master br0")
	chaos.Namespaced(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// carryOut has a process of its own, in a network of its own, carry out p.
func carryOut(p plan, dir string, add func(result)) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-test.run=^TestCarryOutOnePlan$", "-test.v", "-test.timeout=3h")
	cmd.Env = append(os.Environ(), "ZSYNC_CHAOS_PLAN="+string(text), "ZSYNC_CHAOS_DIR="+dir)
	if !p.Proxies {
		chaos.Namespaced(cmd)
		// The kernel kills it when this thread ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	var rest strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var r result
		if line, ok := strings.CutPrefix(lines.Text(), "RESULT "); ok && json.Unmarshal([]byte(line), &r) == nil {
			add(r)
			continue
		}
		fmt.Fprintln(&rest, lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, rest.String())
	}
	return nil
}

// report prints a table and fails the test for everyone who believed too long.
func report(t *testing.T, results []result) {
	type key struct {
		plan, fault string
		timeout     time.Duration
		busy        bool
	}
	groups := map[key][]result{}
	for _, r := range results {
		name, _, _ := strings.Cut(r.Plan, " (")
		k := key{name, r.Fault, r.Timeout, r.Busy}
		groups[k] = append(groups[k], r)
	}
	var keys []key
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int {
		busy := 0
		if a.busy != b.busy {
			busy = -1
			if a.busy {
				busy = 1
			}
		}
		return cmp.Or(strings.Compare(a.plan, b.plan), strings.Compare(a.fault, b.fault), cmp.Compare(a.timeout, b.timeout), busy)
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "settings\tfault\ttimeout\tholder\ttold in time\ttold after\tgranted after\tleast between\t")
	for _, k := range keys {
		holder := "idle"
		if k.busy {
			holder = "busy"
		}
		var told, granted, between []time.Duration
		good, tried := 0, 0
		for _, r := range groups[k] {
			if r.Early != "" {
				t.Logf("%s, %s, timeout %v, %s: lost %s", r.Plan, r.Fault, r.Timeout, holder, r.Early)
				continue
			}
			tried++
			if r.Problem != "" {
				t.Errorf("%s, %s, timeout %v, %s: %s", r.Plan, r.Fault, r.Timeout, holder, r.Problem)
				continue
			}
			told, granted, between = append(told, r.Told), append(granted, r.Granted), append(between, r.Granted-r.Told)
			if r.Told <= r.Granted {
				good++
			} else {
				t.Errorf("%s, %s, timeout %v, %s: told %v after the fault, another was granted the lock after %v: both believed for %v",
					r.Plan, r.Fault, r.Timeout, holder, r.Told, r.Granted, r.Told-r.Granted)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%s\t%d of %d\t%s\t%s\t%s\t\n", k.plan, k.fault, k.timeout, holder,
			good, tried, span(told), span(granted), least(between))
	}
	_ = w.Flush()
	t.Logf("\n%s", b.String())
	if len(results) == 0 {
		t.Error("nothing was tried")
	}
}

func span(list []time.Duration) string {
	if len(list) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f-%.1f s", slices.Min(list).Seconds(), slices.Max(list).Seconds())
}

func least(list []time.Duration) string {
	if len(list) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f s", slices.Min(list).Seconds())
}

// TestCarryOutOnePlan is what carryOut runs.
func TestCarryOutOnePlan(t *testing.T) {
	var p plan
	text := os.Getenv("ZSYNC_CHAOS_PLAN")
	if text == "" {
		t.Skip("ZSYNC_CHAOS_PLAN is not set: TestTheLossIsToldBeforeTheGrantElsewhereOnRealServers runs this in processes of its own")
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	e, err := chaos.Start(os.Getenv("ZSYNC_CHAOS_DIR"), chaos.Config{Tick: p.Tick, SyncLimit: p.SyncLimit, Proxies: p.Proxies})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	for range p.Rounds {
		for _, fault := range p.Faults {
			for _, r := range try(t, e, p, fault) {
				line, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Printf("RESULT %s\n", line)
			}
			if err := e.Repair(); err != nil {
				t.Fatalf("after %s: %v", fault, err)
			}
		}
	}
}

// A couple is a holder of a Mutex and another who waits for it.
type couple struct {
	path    string
	timeout time.Duration
	busy    bool

	holder, waiter *zsync.Session
	mutex          *zsync.Mutex
	pong           chan struct{} // gets something when a ping of the holder was answered
	trace          *traces

	told, granted time.Time
}

// try brings one fault to many couples and says what became of them.
func try(t *testing.T, e *chaos.Ensemble, p plan, fault string) []result {
	f := faults[fault]
	leader, err := e.Leader()
	if err != nil {
		t.Fatal(err)
	}
	victim := leader
	if !f.leader {
		victim = leader%chaos.Servers + 1
	}
	longest := slices.Max(p.Timeouts)
	ctx, cancel := context.WithTimeout(t.Context(), 4*longest+2*time.Minute)
	defer cancel()

	written := new(traces)
	var couples []*couple
	for _, timeout := range p.Timeouts {
		for i := range 2 * p.Pairs {
			couples = append(couples, &couple{
				path:    fmt.Sprintf("/%s-%v-%d-%d", strings.ReplaceAll(fault, " ", "-"), timeout, i, rand.Int64()),
				timeout: timeout, busy: i%2 == 1, pong: make(chan struct{}, 1), trace: written,
			})
		}
	}
	var all sync.WaitGroup
	for _, c := range couples {
		all.Go(func() { c.meet(ctx, t, e, victim) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, c := range couples {
		all.Go(func() { c.follow(ctx) })
	}
	time.Sleep(longest/2 + rand.N(longest/2))     // real time: the fault comes at a random moment of the session, which a real server keeps
	lucky := couples[2*rand.IntN(len(couples)/2)] // an idle one, which is hit at the worst moment
	select {
	case <-lucky.pong:
	default:
	}
	<-lucky.pong
	if err := f.bring(e, victim); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	all.Wait()

	var list []result
	for _, c := range couples {
		r := result{Plan: p.Name, Fault: fault, Timeout: c.timeout, Busy: c.busy, Told: c.told.Sub(began), Granted: c.granted.Sub(began)}
		switch {
		case !c.told.IsZero() && c.told.Before(began):
			r.Early = fmt.Sprintf("%v before the fault: %v", began.Sub(c.told), c.mutex.Unlock())
		case c.told.IsZero() && c.granted.IsZero():
			r.Problem = "neither was the loss told nor the lock granted to another"
		case c.told.IsZero():
			r.Problem = "the loss was never told"
		case c.granted.IsZero():
			r.Problem = "the lock was granted to nobody else"
		}
		list = append(list, r)
	}
	cancel()
	for _, c := range couples {
		all.Go(func() { c.holder.Close() })
		all.Go(func() { c.waiter.Close() })
	}
	all.Wait()
	written.verify(t, fault, 2*len(couples))
	return list
}

// traces is what all sessions of one fault write.
type traces struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *traces) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// verify judges them as zsync verify does. They are of one machine, with one clock.
func (w *traces) verify(t *testing.T, fault string, sessions int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, err := verify.Parse(&w.b, fault)
	if err != nil {
		t.Error(err)
		return
	}
	r := verify.Files([]*verify.File{f}, 0)
	var out strings.Builder
	_ = r.Print(&out)
	if !r.Whole() || r.Traces != sessions || r.Holds < sessions/2 {
		t.Errorf("%s: the traces of %d sessions:\n%s", fault, sessions, out.String())
	} else {
		t.Logf("%s: %s", fault, out.String())
	}
}

// meet has the holder hold the lock and the other wait for it.
func (c *couple) meet(ctx context.Context, t *testing.T, e *chaos.Ensemble, victim int) {
	time.Sleep(rand.N(c.timeout / 2)) // real time: so that the clients ping real servers at different times
	var others []string
	for i := 1; i <= chaos.Servers; i++ {
		if i != victim {
			others = append(others, e.Addr(i))
		}
	}
	dial := func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := net.DialTimeout(network, address, timeout)
		if err != nil {
			return nil, err
		}
		return &listener{Conn: conn, pong: c.pong}, nil
	}
	var err error
	if c.holder, err = zsync.Connect(ctx, e.Addr(victim), zsync.WithSessionTimeout(c.timeout), zsync.WithDialer(dial), zsync.WithTrace(c.trace)); err != nil {
		t.Error(err)
		return
	}
	if c.waiter, err = zsync.Connect(ctx, strings.Join(others, ","), zsync.WithSessionTimeout(c.timeout), zsync.WithTrace(c.trace)); err != nil {
		t.Error(err)
		return
	}
	m := zsync.NewMutex(c.holder, c.path)
	if err := m.Lock(ctx); err != nil {
		t.Error(err)
		return
	}
	c.mutex = m
}

// follow notes when the holder is told of the loss and when the other is granted the lock.
func (c *couple) follow(ctx context.Context) {
	var both sync.WaitGroup
	lost := c.mutex.Lost()
	working, idle := context.WithCancel(ctx)
	defer idle()
	if c.busy {
		go c.work(working)
	}
	both.Go(func() {
		select {
		case <-lost:
			c.told = time.Now()
		case <-ctx.Done():
		}
	})
	both.Go(func() {
		if zsync.NewMutex(c.waiter, c.path).Lock(ctx) == nil {
			c.granted = time.Now()
		}
	})
	both.Wait()
}

// work reads and writes as the holder until ctx is done.
func (c *couple) work(ctx context.Context) {
	v := zsync.NewValue[int](c.holder, c.path+"-value")
	for i := 0; ctx.Err() == nil; i++ {
		if i%3 == 0 {
			_ = v.Store(ctx, i)
		} else {
			_, _, _ = v.Load(ctx)
		}
		time.Sleep(rand.N(c.timeout / 5)) // real time: the work between two requests to real servers
	}
}

// A listener is a connection that tells when a ping was answered.
type listener struct {
	net.Conn
	pong chan struct{}
	buf  []byte // read and not yet looked at
}

const xidPing = -2

func (l *listener) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.buf = append(l.buf, b[:n]...)
	for len(l.buf) >= 8 {
		size := int(binary.BigEndian.Uint32(l.buf))
		if len(l.buf) < 4+size {
			break
		}
		if size == 16 && int32(binary.BigEndian.Uint32(l.buf[4:])) == xidPing {
			select {
			case l.pong <- struct{}{}:
			default:
			}
		}
		l.buf = l.buf[4+size:]
	}
	return n, err
}
