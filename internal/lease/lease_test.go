package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
)

func TestConfirmedIsWhatALaterRequestProves(t *testing.T) {
	const T = 10 * time.Second
	start := time.Unix(1000, 0)
	gap := (&Lease{timeout: T}).gap()
	type step struct {
		at, answered time.Duration // sent at; answered at
		proof        Proof
		want         time.Duration // confirmed after that
	}
	const none = -1
	for _, c := range []struct {
		name      string
		continued bool // the session is not new
		steps     []step
	}{
		{"a new session counts from its handshake, and pings and reads prove nothing", false, []step{
			{1000, 2000, Server, 0},
			{1000 + T/3, 1000 + T/3, Server, 0},
		}},
		{"a ping is confirmed by a write a gap later and a sync behind that", false, []step{
			{100, 200, Server, 0},
			{200 + gap, 300 + gap, Quorum, 0},
			{400 + gap, 500 + gap, Leader, 100},
		}},
		{"a write that comes too early after the answer carries nothing", false, []step{
			{100, 200, Server, 0},
			{199 + gap, 300 + gap, Quorum, 0},
			{400 + gap, 500 + gap, Leader, 0},
		}},
		{"a sync carries nothing", false, []step{
			{100, 200, Server, 0},
			{200 + gap, 300 + gap, Leader, 0},
			{400 + gap, 500 + gap, Leader, 0},
		}},
		{"what was sent before the write was answered confirms nothing", false, []step{
			{100, 200, Server, 0},
			{200 + gap, 300 + gap, Quorum, 0},
			{250 + gap, 350 + gap, Quorum, 0},
			{400 + gap, 500 + gap, Quorum, 100},
		}},
		{"writes do both at once", false, []step{
			{0, 10, Quorum, 0},
			{gap + 10, gap + 20, Quorum, 0},
			{2*gap + 20, 2*gap + 30, Quorum, 0},
			{3*gap + 30, 3*gap + 40, Quorum, gap + 10},
		}},
		{"a refusal is nothing", false, []step{
			{100, 200, Server, 0},
			{200 + gap, 300 + gap, Nothing, 0},
			{400 + gap, 500 + gap, Quorum, 0},
			{500 + gap, 500 + gap, Nothing, 0},
			{600 + gap, 700 + gap, Leader, 100},
		}},
		{"a session that is out of date is confirmed by a write, not by a sync", false, []step{
			{T, T + 10, Server, 0},
			{T + 10 + gap, T + 20 + gap, Quorum, 0},
			{T + 30 + gap, T + 40 + gap, Leader, 0},
			{T + 50 + gap, T + 60 + gap, Quorum, T},
		}},
		{"a handshake that continues a session counts when a write was answered", true, []step{
			{100, 200, Server, none},
			{200, 300, Leader, none},
			{300, 400, Quorum, 0},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v Lease
			v.Connected(start, !c.continued, T)
			type answer struct {
				s Stamp
				step
			}
			var pending []answer
			check := func(until time.Duration) {
				for len(pending) > 0 && pending[0].answered <= until {
					a := pending[0]
					pending = pending[1:]
					v.Answered(a.s, a.proof, start.Add(a.answered))
					switch {
					case a.want == none && v.Sure != nil:
						t.Fatalf("confirmed at %v by what was sent at %v, want nothing", v.Sure.Mono.Sub(start), a.at)
					case a.want != none && (v.Sure == nil || !v.Sure.Mono.Equal(start.Add(a.want))):
						t.Fatalf("confirmed %+v after what was sent at %v, want %v", v.Sure, a.at, a.want)
					}
				}
			}
			for _, s := range c.steps {
				check(s.at)
				pending = append(pending, answer{v.Sending(start.Add(s.at)), s})
			}
			check(1 << 60)
		})
	}
}

func TestAnswersOfAFormerConnectionAreNoProof(t *testing.T) {
	const T = 10 * time.Second
	start := time.Unix(1000, 0)
	var v Lease
	v.Connected(start, true, T)
	s := v.Sending(start.Add(time.Second))
	v.Connected(start.Add(2*time.Second), false, T)
	v.Answered(s, Quorum, start.Add(3*time.Second))
	if !v.Sure.Mono.Equal(start) {
		t.Errorf("confirmed at %v", v.Sure.Mono.Sub(start))
	}
}

// A new connection begins with a confirming write. Another write is due if no reply to it comes within
// a twentieth of the timeout, though the session was confirmed not long ago.
func TestAnotherWriteIsDueSoonIfTheConfirmingWriteHasNoReply(t *testing.T) {
	const T = 10 * time.Second
	start := time.Unix(1000, 0)
	var v Lease
	v.Connected(start, true, T)
	again := start.Add(time.Second)
	v.Connected(again, false, T)
	v.Confirming()
	for _, waited := range []time.Duration{0, T / 40, T / 20, T / 10} {
		if p, wait := v.Next(again.Add(waited), false); p != Quorum || wait != T/20-waited {
			t.Errorf("%v after the handshake: proof %v, due in %v", waited, p, wait)
		}
	}
}

func TestALeaseRemembersFewPacketsHoweverManyThereAre(t *testing.T) {
	const T = 10 * time.Second
	at := time.Unix(1000, 0)
	var v Lease
	v.Connected(at, true, T)
	for i := range 100_000 {
		p := Server
		if i%7 == 0 && i > 50_000 {
			p = Quorum
		}
		s := v.Sending(at)
		at = at.Add(time.Millisecond)
		v.Answered(s, p, at)
		if n := len(v.seen) + len(v.carried); n > 30 { // one for each eighth of a gap, for a gap and the longest answer
			t.Fatalf("%d after %d packets", n, i)
		}
	}
	if age := at.Sub(v.Sure.Mono); age > v.gap()*3/2 {
		t.Errorf("a session that writes all the time is confirmed %v ago", age)
	}
}

// While a write is under way much else may be answered.
func TestASessionThatIsUsedAllTheTimeIsConfirmedHoweverLongItsAnswersTake(t *testing.T) {
	const T, every = 10 * time.Second, 50 * time.Millisecond
	for _, trip := range []time.Duration{every, T / 25, T / 10, T / 6} {
		at := time.Unix(1000, 0)
		var v Lease
		v.Connected(at, true, T)
		var sent []Stamp
		for end := at.Add(10 * T); at.Before(end); at = at.Add(every) {
			sent = append(sent, v.Sending(at))
			if at.Sub(sent[0].At) < trip {
				continue
			}
			if left := v.Confirmed(at); left <= 0 {
				t.Fatalf("round trip of %v: confirmed %v ago", trip, at.Sub(v.Sure.Mono))
			}
			v.Answered(sent[0], Quorum, at)
			sent = sent[1:]
			if n := len(v.seen) + len(v.carried); n > 100 {
				t.Fatalf("round trip of %v: %d are remembered", trip, n)
			}
		}
		if age := at.Sub(v.Sure.Mono); age > v.gap()*3/2+3*trip {
			t.Errorf("round trip of %v: confirmed %v ago", trip, age)
		}
	}
}

func TestWhoFollowsNextIsAlwaysConfirmed(t *testing.T) {
	const T = 10 * time.Second
	for _, rtt := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, T / 50} {
		at := time.Unix(1000, 0)
		var v Lease
		v.Connected(at, true, T)
		v.Answered(v.Sending(at), Quorum, at) // what it holds was created
		requests := 0
		for end := at.Add(time.Hour); at.Before(end); {
			p, wait := v.Next(at, false)
			if wait > 0 {
				at = at.Add(wait)
				continue
			}
			requests++
			s := v.Sending(at)
			at = at.Add(rtt)
			if v.Confirmed(at) <= 0 {
				t.Fatalf("round trip of %v: not confirmed in time", rtt)
			}
			v.Answered(s, p, at)
		}
		if limit := int(2*time.Hour/v.gap()) + 2; requests > limit {
			t.Errorf("round trip of %v: %d requests in an hour, want at most %d", rtt, requests, limit)
		}
	}
}

// A world is an ensemble as far as it matters to one session, with its client:
// a leader that may lose its quorum without noticing, and its successor; learners
// that tell what they heard only when they are asked, and may be cut off in one
// direction; delays on every connection. Times are milliseconds.
type world struct {
	rnd     *rand.Rand
	now     int64
	events  agenda
	serial  int64
	timeout int64
	tick    int64
	old     *ruler // leads until quorum
	young   *ruler // leads from takeover on
	quorum  int64  // until when old has it
	take    int64  // when young takes over
	ended   int64  // when the session ended, or 0
	client  *client
}

type happening struct {
	at, serial int64
	f          func()
}

func (h happening) before(o happening) bool {
	return h.at < o.at || h.at == o.at && h.serial < o.serial
}

// An agenda is a heap. The tests make millions of happenings, and container/heap would allocate
// memory for each of them.
type agenda []happening

func (h *agenda) push(e happening) {
	*h = append(*h, e)
	a := *h
	i := len(a) - 1
	for i > 0 && e.before(a[(i-1)/2]) {
		a[i] = a[(i-1)/2]
		i = (i - 1) / 2
	}
	a[i] = e
}

// The method `pop` removes the first happening.
func (h *agenda) pop() happening {
	a := *h
	first, last := a[0], a[len(a)-1]
	a[len(a)-1] = happening{}
	a = a[:len(a)-1]
	*h = a
	i := 0
	for i < len(a) {
		child := 2*i + 1
		if child+1 < len(a) && a[child+1].before(a[child]) {
			child++
		}
		if child >= len(a) || last.before(a[child]) {
			a[i] = last
			break
		}
		a[i] = a[child]
		i = child
	}
	return first
}

func (w *world) after(d int64, f func()) {
	w.serial++
	w.events.push(happening{w.now + d, w.serial, f})
}

// A way is one direction of a connection: in order, slow at times, and dead from
// some moment on.
type way struct {
	w     *world
	delay int64 // at most
	last  int64
	cut   bool
}

func (y *way) send(f func()) {
	if y.cut {
		return
	}
	at := max(y.last, y.w.now+y.w.rnd.Int64N(y.delay+1))
	y.last = at
	y.w.after(at-y.w.now, f)
}

// access is one direction between a client and its server.
func (w *world) access() *way {
	return &way{w: w, delay: []int64{20, 20, w.timeout / 4}[w.rnd.IntN(3)]}
}

// A ruler is a leader, or was one.
type ruler struct {
	w       *world
	end     int64 // when it will end the session
	closing bool
	commits int64 // when its last proposal is, or will be, committed
	stuck   bool  // it has a proposal that cannot be
}

// agrees reports whether the servers agree to what r proposes now.
func (r *ruler) agrees() bool { return r == r.w.young || r.w.now < r.w.quorum }

func (r *ruler) touch() {
	if r.closing {
		return
	}
	r.end = r.w.now + r.w.timeout
	r.w.after(r.w.timeout, func() {
		if r.w.now == r.end && !r.closing {
			r.closing = true
			if r.agrees() && r.w.ended == 0 {
				r.w.ended = r.w.now
			}
		}
	})
}

// A learner is a server that is connected to a leader.
type learner struct {
	r        *ruler
	up, down *way // to the leader, and from it
	touched  bool
}

func (w *world) newLearner(r *ruler) *learner {
	delay := func() int64 { return []int64{2, 50, w.timeout / 8, w.timeout / 3}[w.rnd.IntN(4)] }
	l := &learner{r: r, up: &way{w: w, delay: delay()}, down: &way{w: w, delay: delay()}}
	var ping func()
	ping = func() {
		l.down.send(func() {
			touched := l.touched
			l.touched = false
			l.up.send(func() {
				if touched {
					r.touch()
				}
			})
		})
		w.after(w.tick/2, ping)
	}
	w.after(w.rnd.Int64N(w.tick/2), ping)
	return l
}

// A client has a connection to one learner.
type client struct {
	w        *world
	v        Lease
	l        *learner
	to, from *way
	spoil    mutant
	violated string
}

func (w *world) time(ms int64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(ms) * time.Millisecond)
}

func (c *client) connect(l *learner) {
	w := c.w
	c.l, c.to, c.from = l, w.access(), w.access()
	to, from, asked := c.to, c.from, w.now
	to.send(func() {
		l.up.send(func() {
			if l.r.closing {
				return
			}
			l.r.touch()
			l.down.send(func() {
				from.send(func() {
					if c.from == from {
						c.v.Connected(w.time(asked), false, time.Duration(w.timeout)*time.Millisecond)
						if c.spoil.connected != nil {
							c.spoil.connected(&c.v, w.time(asked))
						}
					}
				})
			})
		})
	})
}

func (c *client) send(p Proof) {
	w, l, from := c.w, c.l, c.from
	s := c.v.Sending(w.time(w.now))
	answer := func() {
		from.send(func() {
			if c.from != from {
				return
			}
			c.answered(s, p)
		})
	}
	c.to.send(func() {
		l.touched = true
		if p == Server {
			answer()
			return
		}
		l.up.send(func() {
			r := l.r
			if r.closing && p == Quorum {
				return // refused
			}
			if p == Quorum {
				r.commits = max(r.commits, w.now+w.rnd.Int64N(20))
				r.stuck = r.stuck || !r.agrees()
			}
			if r.stuck {
				return
			}
			w.after(max(0, r.commits-w.now), func() {
				if p == Quorum && !r.agrees() {
					r.stuck = true
					return
				}
				l.down.send(answer)
			})
		})
	})
}

func (c *client) answered(s Stamp, p Proof) {
	if c.spoil.answer != nil {
		c.spoil.answer(&c.v, s, p, c.w.time(c.w.now))
	} else {
		c.v.Answered(s, p, c.w.time(c.w.now))
	}
	c.check()
}

// check looks for what must never be: the session has ended, though it was
// confirmed less than its timeout before.
func (c *client) check() {
	if c.w.ended == 0 || c.v.Sure == nil || c.violated != "" {
		return
	}
	if sure := c.v.Sure.Mono.Sub(c.w.time(0)).Milliseconds(); sure+c.w.timeout > c.w.ended {
		c.violated = fmt.Sprintf("confirmed at %d ms, ended at %d ms, timeout %d ms", sure, c.w.ended, c.w.timeout)
	}
}

// A mutant is a Lease with a fault.
type mutant struct {
	connected func(v *Lease, asked time.Time)
	answer    func(v *Lease, s Stamp, p Proof, now time.Time)
}

// run plays one random schedule, and returns what went wrong.
func runWorld(seed uint64, spoil mutant) string {
	rnd := rand.New(rand.NewPCG(seed, 7))
	w := &world{rnd: rnd, timeout: []int64{4000, 6000, 10000}[rnd.IntN(3)]}
	w.tick = w.timeout / int64(2+rnd.IntN(3)*rnd.IntN(4))
	w.old, w.young = &ruler{w: w}, &ruler{w: w}
	T := w.timeout
	w.quorum, w.take = 1<<60, 1<<60
	c := &client{w: w, spoil: spoil}
	w.client = c
	first := w.newLearner(w.old)
	c.l, c.to, c.from = first, w.access(), w.access()
	c.v.Connected(w.time(0), true, time.Duration(T)*time.Millisecond)
	w.old.touch()

	sometime := func() int64 { return T + rnd.Int64N(2*T) }
	for range 1 + rnd.IntN(2) {
		switch rnd.IntN(5) {
		case 0:
			w.after(sometime(), func() { first.up.cut = true })
		case 1:
			w.after(sometime(), func() { first.down.cut = true })
		case 2: // it dies
			w.after(sometime(), func() { first.up.cut, first.down.cut, c.to.cut = true, true, true })
		case 3:
			if w.take < 1<<60 {
				break
			}
			w.quorum = sometime()
			w.take = w.quorum + rnd.Int64N(T)
			w.after(w.take, func() {
				w.young.closing = w.ended != 0
				w.young.touch()
			})
		case 4: // slow for a while
			w.after(sometime(), func() { first.down.delay = T })
		}
	}
	for range rnd.IntN(3) {
		w.after(sometime(), func() {
			r := w.old
			if w.now > w.take && rnd.IntN(2) == 0 {
				r = w.young
			}
			c.connect(w.newLearner(r))
		})
	}
	if rnd.IntN(2) == 0 { // who holds something
		var look func()
		look = func() {
			p, wait := c.v.Next(w.time(w.now), false)
			if wait <= 0 {
				c.send(p)
				wait = 50 * time.Millisecond
			}
			w.after(wait.Milliseconds()+1, look)
		}
		w.after(1, look)
	}
	mean := []int64{T / 40, T / 10, T / 3, 3 * T}[rnd.IntN(4)]
	kinds := [][]Proof{{Server}, {Server, Leader}, {Server, Leader, Quorum}, {Quorum, Leader}}[rnd.IntN(4)]
	var chat func()
	chat = func() {
		c.send(kinds[rnd.IntN(len(kinds))])
		w.after(1+rnd.Int64N(2*mean), chat)
	}
	w.after(1, chat)
	for len(w.events) > 0 && w.now < 6*T && c.violated == "" {
		e := w.events.pop()
		w.now = e.at
		e.f()
		c.check()
	}
	return c.violated
}

func TestNoSessionEndsWithinATimeoutOfWhatIsConfirmed(t *testing.T) {
	seeds := 3000
	switch {
	case harness.Long():
		seeds = 30_000
	case harness.UnderRace:
		seeds = 300
	}
	for seed := range uint64(seeds) {
		if bad := runWorld(seed, mutant{}); bad != "" {
			t.Fatalf("seed %d: %s", seed, bad)
		}
	}
}

func TestEveryClauseOfTheRuleIsNeeded(t *testing.T) {
	// secondLeg confirms what is carried, if it was before s was sent.
	secondLeg := func(v *Lease, s Stamp) {
		for _, c := range v.carried {
			if c.event < s.event {
				v.confirm(c.sent)
			}
		}
	}
	for name, m := range map[string]mutant{
		"the gap between an answer and the write": {answer: func(v *Lease, s Stamp, p Proof, now time.Time) {
			early := s
			if p == Quorum {
				early.At = s.At.Add(v.gap())
			}
			v.Answered(early, p, now)
			for i := range v.seen {
				if v.seen[i].sent.Equal(early.At) {
					v.seen[i].sent = s.At
				}
			}
		}},
		"the request behind the write": {answer: func(v *Lease, s Stamp, p Proof, now time.Time) {
			v.Answered(s, p, now)
			for _, c := range v.carried {
				v.confirm(c.sent)
			}
		}},
		"the order of write and request": {answer: func(v *Lease, s Stamp, p Proof, now time.Time) {
			v.Answered(s, p, now)
			for i := range v.carried {
				v.carried[i].event = 0
			}
		}},
		"a write as the proof of a quorum": {answer: func(v *Lease, s Stamp, p Proof, now time.Time) {
			if p == Leader {
				p = Quorum
			}
			v.Answered(s, p, now)
		}},
		"more than the answer of the server itself": {answer: func(v *Lease, s Stamp, p Proof, now time.Time) {
			v.Answered(s, Quorum, now)
		}},
		"a write behind a handshake that continues the session": {connected: func(v *Lease, asked time.Time) { v.confirm(asked) }},
		"a write, where the session may be ending": {answer: func(v *Lease, s Stamp, p Proof, now time.Time) {
			if p == Leader && s.event > v.conn {
				secondLeg(v, s)
			}
			v.Answered(s, p, now)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20_000) {
				if bad := runWorld(seed, m); bad != "" {
					t.Logf("seed %d: without it, %s", seed, bad)
					return
				}
			}
			t.Error("nothing goes wrong without it")
		})
	}
}

// A server that continues the session grants less than before. A session without holds is abandoned by that timeout, even
// before a write confirms the handshake.
func TestASessionWithoutHoldsIsAbandonedByAShorterTimeout(t *testing.T) {
	const T = 10 * time.Second
	start := time.Unix(1000, 0)
	v := New(T)
	v.Connected(start, true, T)
	again := start.Add(time.Second)
	v.Connected(again, false, T/2)
	if left := v.Left(again, false); left != T/2*3/4 {
		t.Errorf("%v, want three quarters of %v", left, T/2)
	}
}
