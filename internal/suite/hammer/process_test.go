package hammer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// These tests run producers and consumers in processes of their own, which are
// this test binary, and hurt the processes, their sessions and the server. Each
// process tells on its standard output what it does, a line before and a line
// after, so that nothing is forgotten when it is killed:
//
//	s FIRST N   about to send elements FIRST to FIRST+N-1; c FIRST N: sent
//	b V TIME    about to acknowledge V; a V: done; l V: lost, or returned; u V: unknown
//	r V         received V for good
//	x           its session has ended
//	e TEXT      something is wrong
//
// It ends when its standard input does.

// TIME is of the machine's clock, in nanoseconds. So it orders the lines of two processes.

// A cast says which processes of a trial send and which ones consume.
type cast struct {
	Producers []int
	Consumers []int
	Ordered   bool // the consumer is a single Recv, and not several Deliveries
	Keys      int  // how many keys each producer's elements have, or 0
}

// four are processes that all send and consume.
var four = cast{Producers: []int{0, 1, 2, 3}, Consumers: []int{0, 1, 2, 3}}

// key returns the key of an element.
func (c cast) key(v int) int { return v/perProducer*c.Keys + v%c.Keys }

// TestQueueProcess is such a process.
func TestQueueProcess(t *testing.T) {
	number, err := strconv.Atoi(os.Getenv("ZSYNC_QUEUE_PROCESS"))
	if err != nil {
		t.Skip("ZSYNC_QUEUE_PROCESS is not set: TestQueueOfFourProcessesUnderFaults and others run this in processes of their own")
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	s, err := zsync.Connect(ctx, os.Getenv("ZSYNC_QUEUE_SERVERS"), zsync.WithSessionTimeout(time.Second),
		zsync.WithObserver(zsync.ObserverFunc(func(e zsync.Event) {
			if e.Kind == zsync.EventExpired {
				say("x")
			}
		})))
	if err != nil {
		return // nobody wants it any more
	}
	defer s.Close()
	var c cast
	harness.Must(t, json.Unmarshal([]byte(os.Getenv("ZSYNC_QUEUE_CAST")), &c))
	first, _ := strconv.Atoi(os.Getenv("ZSYNC_QUEUE_FIRST"))
	left, _ := strconv.Atoi(os.Getenv("ZSYNC_QUEUE_LEFT"))
	rest, _ := time.ParseDuration(os.Getenv("ZSYNC_QUEUE_REST"))
	var opts []zsync.QueueOption
	if c.Keys > 0 {
		opts = append(opts, zsync.WithKey(func(v int) string { return strconv.Itoa(c.key(v)) }))
	}
	q := zsync.NewQueue[int](s, "/q", opts...)
	var all sync.WaitGroup
	defer func() {
		<-ctx.Done()
		all.Wait()
	}()
	all.Go(func() {
		for left > 0 {
			vs := make([]int, min(1+rand.IntN(100), left))
			for i := range vs {
				vs[i] = number*perProducer + first + i
			}
			say("s %d %d", vs[0], len(vs))
			switch err := q.Send(ctx, vs...); {
			case err == nil:
				say("c %d %d", vs[0], len(vs))
			case ctx.Err() == nil:
				say("e Send: %v", err)
			}
			first, left = first+len(vs), left-len(vs)
			harness.Pause(t, rand.N(rest)) // so that there is time for faults
		}
	})
	switch {
	case !slices.Contains(c.Consumers, number):
	case c.Ordered:
		for v := range q.Recv(ctx) {
			say("r %d", v)
			if rand.IntN(500) == 0 {
				harness.Pause(t, rand.N(100*time.Millisecond)) // so that some elements are claimed and wait when a session ends
			}
		}
	default:
		for range 2 {
			all.Go(func() {
				var acks sync.WaitGroup
				defer acks.Wait()
				limit := make(chan struct{}, 16)
				for d := range q.Deliveries(ctx) {
					limit <- struct{}{}
					acks.Go(func() {
						defer func() { <-limit }()
						settleAloud(d, say)
					})
				}
			})
		}
	}
}

func settleAloud(d zsync.Delivery[int], say func(format string, args ...any)) {
	if rand.IntN(50) == 0 {
		if err := d.Nack(); err != nil && !errors.Is(err, zsync.ErrLost) {
			say("e Nack: %v", err)
		}
		return
	}
	say("b %d %d", d.Value, time.Now().UnixNano())
	switch err := d.Ack(context.Background()); {
	case err == nil:
		say("a %d", d.Value)
	case errors.Is(err, zsync.ErrLost):
		say("l %d", d.Value)
	case errors.Is(err, zk.ErrNoNode): // the session has ended, and another consumer or this Ack has removed it
		say("u %d", d.Value)
	default:
		say("e Ack: %v", err)
	}
}

// A trial is what the processes have said.
type trial struct {
	t       *testing.T
	servers string
	cast    cast
	share   int           // what each producer has to send
	rest    time.Duration // at most, between two of its Sends

	mu        sync.Mutex
	sent      map[int]bool        // true when it is confirmed
	taken     map[int]bool        // acknowledged, or received
	begun     map[int]map[int]int // by process: acknowledgements under way
	maybe     map[int]bool        // a process was killed while it acknowledged these, or its session ended
	offered   map[int]int         // the time of the first "b" of an element
	next      map[int]int         // by producer: its next element
	confirmed map[int]int         // by producer: how many it has confirmed
	received  []int               // by the only consumer, in order; also a second time
	ends      []int               // the length of received when the session of the only consumer ended
	procs     map[int]*exec.Cmd
	over      bool
	strikes   int // how often a process was killed, stopped, or cut off with its server
	running   sync.WaitGroup
	stdins    []io.Closer
}

// start runs a process, and another in its place when it is killed.
func (tr *trial) start(i int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.over {
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestQueueProcess$")
	left := 0
	if slices.Contains(tr.cast.Producers, i) {
		left = tr.share - tr.confirmed[i]
	}
	roles, err := json.Marshal(tr.cast)
	harness.Must(tr.t, err)
	cmd.Env = append(os.Environ(),
		"ZSYNC_QUEUE_PROCESS="+strconv.Itoa(i),
		"ZSYNC_QUEUE_CAST="+string(roles),
		"ZSYNC_QUEUE_SERVERS="+tr.servers,
		"ZSYNC_QUEUE_REST="+tr.rest.String(),
		"ZSYNC_QUEUE_FIRST="+strconv.Itoa(tr.next[i]),
		"ZSYNC_QUEUE_LEFT="+strconv.Itoa(left))
	in, err := cmd.StdinPipe()
	harness.Must(tr.t, err)
	out, err := cmd.StdoutPipe()
	harness.Must(tr.t, err)
	cmd.Stderr = os.Stderr
	harness.Must(tr.t, cmd.Start())
	tr.procs[i] = cmd
	tr.stdins = append(tr.stdins, in)
	tr.running.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			tr.hear(i, lines.Text())
		}
		cmd.Wait()
		in.Close()
		tr.mu.Lock()
		for v := range tr.begun[i] {
			tr.maybe[v] = true
		}
		delete(tr.begun, i)
		tr.mu.Unlock()
		tr.start(i)
	})
}

func (tr *trial) hear(i int, line string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	kind, rest, _ := strings.Cut(line, " ")
	first, second, _ := strings.Cut(rest, " ")
	v, _ := strconv.Atoi(first)
	n, _ := strconv.Atoi(second)
	switch kind {
	case "s":
		for k := range n {
			tr.sent[v+k] = false
		}
		tr.next[i] = v%perProducer + n
	case "c":
		for k := range n {
			tr.sent[v+k] = true
		}
		tr.confirmed[i] += n
	case "b":
		if tr.begun[i] == nil {
			tr.begun[i] = make(map[int]int)
		}
		tr.begun[i][v]++
		if first, ok := tr.offered[v]; !ok || n < first {
			tr.offered[v] = n
		}
	case "l":
		delete(tr.begun[i], v)
	case "u":
		delete(tr.begun[i], v)
		tr.maybe[v] = true
	case "a":
		delete(tr.begun[i], v)
		if tr.taken[v] {
			tr.t.Errorf("acknowledged %d twice", v)
		}
		tr.taken[v] = true
	case "r":
		tr.taken[v] = true
		tr.received = append(tr.received, v)
	case "x":
		if tr.cast.Ordered && slices.Contains(tr.cast.Consumers, i) {
			tr.ends = append(tr.ends, len(tr.received))
		}
	case "e", "panic:", "fatal", "---":
		tr.t.Errorf("process %d: %s", i, line)
	}
}

// missing returns how many elements were confirmed, and not taken as far as can
// be known; -1 while not all have been sent.
func (tr *trial) missing() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, i := range tr.cast.Producers {
		if tr.confirmed[i] < tr.share {
			return -1
		}
	}
	n := 0
	for v, confirmed := range tr.sent {
		if confirmed && !tr.taken[v] && !tr.maybe[v] {
			n++
		}
	}
	return n
}

// victim returns a process to hurt, or nil.
func (tr *trial) victim() *os.Process {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	i := rand.IntN(len(tr.procs))
	if tr.cast.Ordered && slices.Contains(tr.cast.Consumers, i) {
		return nil
	}
	return tr.procs[i].Process
}

// struck counts n processes that were killed, stopped, or cut off.
func (tr *trial) struck(n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.strikes += n
}

// hurt does harm until done is closed. srv is nil if the server is a real one.
func (tr *trial) hurt(srv *zktest.Server, done <-chan struct{}) {
	if srv != nil {
		srv.Intercept(func(r zktest.Request) zktest.Action {
			switch {
			case r.Op == zktest.OpConnect || r.Op == zktest.OpPing:
				return zktest.Pass
			case r.Op == zktest.OpCloseSession && rand.IntN(2) == 0: // a session that a client has given up lives on
				return zktest.DropRequest
			}
			switch rand.IntN(1000) {
			case 0:
				return zktest.DropRequest
			case 1:
				return zktest.DropReply
			}
			return zktest.Pass
		})
		defer srv.Intercept(nil)
	}
	for {
		select {
		case <-done:
			return
		case <-time.After(rand.N(400 * time.Millisecond)):
		}
		what := rand.IntN(12)
		if srv == nil {
			what %= 4
		}
		switch what {
		case 0, 1, 2:
			if p := tr.victim(); p != nil {
				p.Kill()
				tr.struck(1)
			}
		case 3:
			if p := tr.victim(); p != nil { // its session ends while it sleeps
				goOn := stopProcess(p)
				tr.struck(1)
				harness.Pause(tr.t, 1500*time.Millisecond)
				goOn()
			}
		case 4:
			srv.Stop()
			harness.Pause(tr.t, rand.N(1200*time.Millisecond)) // more than the session timeout, too
			srv.Restart()
		default:
			ids := srv.Sessions()
			if len(ids) == 0 {
				continue
			}
			if id := ids[rand.IntN(len(ids))]; what < 9 {
				srv.Expire(id)
			} else {
				srv.Disconnect(id)
			}
		}
	}
}

// queueTrial sends elements through a queue under faults. While producers send, it calls outage
// again and again, unless outage is nil.
func queueTrial(t *testing.T, c cast, elements int, rest, limit time.Duration, outage func()) {
	tr := &trial{
		t: t, cast: c, share: elements / len(c.Producers), rest: rest,
		sent: make(map[int]bool), taken: make(map[int]bool), offered: make(map[int]int),
		begun: make(map[int]map[int]int), maybe: make(map[int]bool),
		next: make(map[int]int), confirmed: make(map[int]int), procs: make(map[int]*exec.Cmd),
	}
	var srv *zktest.Server
	if tr.servers = os.Getenv("ZSYNC_TEST_SERVERS"); tr.servers == "" {
		srv = zktest.Start(t)
		tr.servers = srv.Addr()
	}
	tr.servers += "/zsync-test-" + uuid.NewString()
	for i := range 1 + slices.Max(slices.Concat(c.Producers, c.Consumers)) {
		tr.start(i)
	}
	done := make(chan struct{})
	var harm sync.WaitGroup
	harm.Go(func() { tr.hurt(srv, done) })
	deadline := time.Now().Add(limit)
	begin := time.Now()
	outages := 0
	for tr.missing() < 0 && time.Now().Before(deadline) {
		if outage == nil {
			harness.Pause(t, 50*time.Millisecond)
			continue
		}
		outage()
		outages++
		tr.struck(len(c.Consumers)) // the sessions of all consumers may end
	}
	close(done)
	harm.Wait()
	sending := time.Since(begin)
	for tr.missing() > 0 && time.Now().Before(deadline) && !t.Failed() {
		harness.Pause(t, 50*time.Millisecond)
	}
	if n := tr.missing(); n != 0 {
		t.Errorf("%d elements were confirmed and never came", n)
	}
	tr.mu.Lock()
	tr.over = true
	for _, in := range tr.stdins {
		in.Close()
	}
	tr.mu.Unlock()
	tr.running.Wait()
	for v := range tr.taken { // not before: what two processes say comes in any order
		if _, ok := tr.sent[v]; !ok {
			t.Errorf("took %d, which was never sent", v)
		}
	}
	if c.Ordered {
		for _, v := range tr.judgeReceived() {
			t.Error(v)
		}
	}
	if c.Keys > 0 {
		tr.judgeKeys()
	}
	lost := 0
	for v := range tr.maybe {
		if !tr.taken[v] {
			lost++
		}
	}
	if most := 2 * 16 * tr.strikes; lost > most {
		t.Errorf("%d elements are lost to processes that were killed or stopped while they acknowledged them, want at most %d", lost, most)
	}
	t.Logf("%d elements sent in %v, all taken in %v; %d servers and %d processes were killed or stopped, with %d acknowledgements of unknown outcome",
		elements, sending, time.Since(begin), outages, tr.strikes-outages*len(c.Consumers), lost)
}

// judgeKeys checks that consumers were offered the elements of a key in the order in which the
// producer sent them. A consumer says "b" before it removes an element, and the next element of the
// key is offered after that. So no loss of a process or a session explains another order.
func (tr *trial) judgeKeys() {
	last := make(map[int]int) // by key: the element before
	for _, v := range slices.Sorted(maps.Keys(tr.offered)) {
		if !tr.sent[v] {
			continue // the producer was killed as it sent v: see judgeReceived
		}
		key := tr.cast.key(v)
		if before, ok := last[key]; ok && tr.offered[v] < tr.offered[before] {
			tr.t.Errorf("%d was offered %v before %d of the same key", v, time.Duration(tr.offered[before]-tr.offered[v]), before)
		}
		last[key] = v
	}
	tr.t.Logf("%d elements of %d keys were offered", len(tr.offered), len(last))
}

// lastMoment is how many elements the session of the only consumer may have claimed when it ended. The
// client removes elements that were taken from the channel of Recv in transactions that the servers
// then refuse. So such an element may come once more.
const lastMoment = 512

// judgeReceived checks what the only consumer has received: each element once, and each producer's
// elements in order. It returns a text for each violation. An end of the session excuses two things.
// An element that was received in the last moment before may come once more. And a session that the
// client has given up may live a little longer on the servers. Until it ends there, the elements that it has
// claimed are withheld, and the next session receives later ones first.
func (tr *trial) judgeReceived() (violations []string) {
	first := make(map[int]int)
	last := make(map[int]int) // by producer: its last element
	var before []map[int]int  // by end of the session: last at that time
	again, late := 0, 0
	for at, v := range tr.received {
		for len(before) < len(tr.ends) && tr.ends[len(before)] <= at {
			before = append(before, maps.Clone(last))
		}
		if seen, twice := first[v]; twice {
			again++
			// The report of the end and the report of an element may pass each other.
			if !slices.ContainsFunc(tr.ends, func(end int) bool { return seen <= end && end-seen <= lastMoment && end <= at+1 }) {
				violations = append(violations, fmt.Sprintf("received %d twice, as elements %d and %d, and no end of the session explains it", v, seen, at))
			}
			continue
		}
		first[v] = at
		// A process may have been killed as it sent v. Then v may be stored behind the elements that
		// its successor sends through another server. A confirmed element may not.
		if !tr.sent[v] {
			continue
		}
		producer := v / perProducer
		newest, known := last[producer]
		if !known || v > newest {
			last[producer] = v
			continue
		}
		// The session had claimed v when it ended: v is one of the next elements after those that were
		// received until then, and newest came later.
		late++
		withheld := false
		for i := range before {
			head, known := before[i][producer]
			if !known {
				head = producer*perProducer - 1
			}
			withheld = withheld || tr.ends[i] <= first[newest]+1 && head < v && v-head <= lastMoment
		}
		if !withheld {
			violations = append(violations, fmt.Sprintf("received %d after %d of the same producer", v, newest))
		}
	}
	tr.t.Logf("the session of the only consumer ended %d times, %d elements came again, and %d came late", len(tr.ends), again, late)
	return violations
}

func upTo(n int) (vs []int) {
	for v := range n {
		vs = append(vs, v)
	}
	return vs
}

func TestTheJudgeExcusesOnlyWhatAnEndOfTheSessionExplains(t *testing.T) {
	for name, c := range map[string]struct {
		received, ends []int
		violations     int
	}{
		"in order":                           {received: []int{0, 1, 2, 3}},
		"late":                               {received: []int{0, 2, 1}, violations: 1},
		"late, for the next session":         {received: []int{0, 2, 3, 1}, ends: []int{1}},
		"late, before the end":               {received: []int{0, 2, 3, 4, 1}, ends: []int{4}, violations: 1},
		"late, and not of the first":         {received: []int{0, 1001, 1000}, ends: []int{1}, violations: 1},
		"late, of a producer not heard yet":  {received: []int{0, perProducer + 1, perProducer}, ends: []int{1}},
		"late by two ends":                   {received: []int{0, 2, 3, 1}, ends: []int{1, 2}},
		"again":                              {received: []int{0, 1, 0, 2}, violations: 1},
		"again, after the end":               {received: []int{0, 1, 0, 2}, ends: []int{2}},
		"again, and long before the end":     {received: append(upTo(600), 0), ends: []int{600}, violations: 1},
		"an element that was not sent, late": {received: []int{0, 2, -1}},
	} {
		tr := &trial{t: t, sent: make(map[int]bool), received: c.received, ends: c.ends}
		for _, v := range c.received {
			tr.sent[v] = v >= 0
		}
		if got := tr.judgeReceived(); len(got) != c.violations {
			t.Errorf("%s: the judge says %q, want %d violations", name, got, c.violations)
		}
	}
}

// trialSize is how many elements a trial has where time is short.
func trialSize() int {
	if harness.UnderRace {
		return 1500
	}
	return 2500
}

// one has the processes of four, but a single consumer.
var one = cast{Producers: four.Producers, Consumers: []int{0}, Ordered: true}

func TestQueueOfFourProcessesUnderFaults(t *testing.T) {
	queueTrial(t, four, trialSize(), 200*time.Millisecond, 10*time.Minute, nil)
}

func TestQueueOfFourProcessesKeepsTheOrderForOneConsumer(t *testing.T) {
	queueTrial(t, one, trialSize(), 200*time.Millisecond, 10*time.Minute, nil)
}

func TestLongQueueOfFourProcessesUnderFaults(t *testing.T) {
	if !harness.Long() {
		t.Skip("ZSYNC_TEST_LONG is not set, so this is not shown: four processes carry 200,000 elements under faults")
	}
	queueTrial(t, four, 200_000, 100*time.Millisecond, 40*time.Minute, nil)
}

func TestLongQueueOfFourProcessesKeepsTheOrderForOneConsumer(t *testing.T) {
	if !harness.Long() {
		t.Skip("ZSYNC_TEST_LONG is not set, so this is not shown: four processes keep the order of 200,000 elements for one consumer")
	}
	queueTrial(t, one, 200_000, 100*time.Millisecond, 40*time.Minute, nil)
}

func TestLongQueueKeepsTheOrderOfEachKeyWhileServersAreKilled(t *testing.T) {
	if !harness.Long() {
		t.Skip("ZSYNC_TEST_LONG is not set, so this is not shown: three processes send 100,002 elements to five, while processes and servers are killed and stopped")
	}
	c := cast{Producers: []int{0, 1, 2}, Consumers: []int{3, 4, 5, 6, 7}, Keys: 100}
	queueTrial(t, c, 100_002, 100*time.Millisecond, 20*time.Minute, suite.Outages(t))
}
