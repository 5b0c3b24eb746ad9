package turnstile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/zsync/zsync/internal/line"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fakeClaim is a claim of the tests.
type fakeClaim struct{ lost, asked, watched, others, doubtful bool }

func (c *fakeClaim) Err() error {
	if c.lost {
		return errors.New("lost")
	}
	return nil
}
func (c *fakeClaim) WasAsked() bool { return c.asked }
func (c *fakeClaim) Alone() bool    { return c.watched && !c.others }
func (c *fakeClaim) Ready() bool    { return c.Err() == nil && !c.others && !c.doubtful }

// A script tells a machine of events, by name, and writes down what is to be done.
// Goroutines are called E1, S2 and so on, by their mode and a number.
type script struct {
	t       *testing.T
	m       machine
	waiters map[string]*waiter
	uses    map[string]*use
	left    map[string]*use // who has left, and had to ask
	claim   *fakeClaim      // the newest
}

func (s *script) name(w *waiter, u *use) string {
	for n, x := range s.waiters {
		if x == w {
			return n
		}
	}
	for n, x := range s.uses {
		if x == u {
			return n
		}
	}
	return "?"
}

// do tells of one event, and returns what came out.
func (s *script) do(event string) string {
	verb, who, _ := strings.Cut(event, " ")
	m := &s.m
	mode := Exclusive
	if strings.HasPrefix(who, "S") {
		mode = Shared
	}
	say := ""
	switch verb {
	case "comes":
		s.waiters[who] = &waiter{mode: mode}
		m.arrive(s.waiters[who])
	case "pinned": // by Do
		s.waiters[who] = &waiter{mode: mode, pin: true}
		m.arrive(s.waiters[who])
	case "goes": // from the queue
		say = fmt.Sprint("left=", m.withdraw(s.waiters[who]))
	case "tries":
		u, busy := m.joinAtOnce(mode)
		if say = fmt.Sprint("busy=", busy); u != nil {
			s.uses[who] = u
		}
	case "enters":
		s.claim = &fakeClaim{watched: m.retains}
		if u := m.enter(&share{claim: s.claim, mode: mode}, false); u != nil {
			s.uses[who] = u
		} else {
			say = "unusable"
		}
	case "found":
		s.claim = &fakeClaim{watched: m.retains}
		usable, taken := m.found(&share{claim: s.claim, mode: m.acquiring.mode})
		if !usable {
			say = "unusable"
		} else if !taken {
			say = "give back"
		}
	case "failed":
		m.failed(errors.New("failed"))
	case "leaves":
		say = [...]string{"stays", "passes", "is given up", "is kept", "must ask", "must wait"}[m.leave(s.use(who))]
	case "told": // what leaves had to ask
		u := s.left[strings.Fields(who)[0]]
		say = [...]string{"stays", "passes", "is given up", "is kept"}[m.resume(u, strings.HasSuffix(who, "others"))]
	case "answered":
		m.answered(m.held[0], who == "others")
	case "retains":
		m.retains = true
	case "watched": // the line is, and nobody else is there
		s.claim.watched = true
	case "others": // come to the line, or have gone from it
		s.claim.others = who == "come"
	case "doubtful": // the session is
		s.claim.doubtful = true
	case "recalled":
		m.recalled(m.kept)
	case "lost":
		s.claim.lost = true
	case "asked": // to give it up
		s.claim.asked = true
	case "beside":
		m.held[0].beside = true
		if who != "" {
			t := &share{claim: &fakeClaim{}, mode: mode}
			m.hold(t)
			s.uses[who] = m.admit(t, nil, false)
		}
	case "exchanging":
		m.exchange()
	case "exchanged":
		m.exchanged(m.held[0], who == "done")
	case "writes": // begins a transaction
		if m.begin(s.use(who).grant) != s.use(who).share {
			say = "not held"
		}
	case "written": // it is known what became of it
		m.ended(s.uses[who].share)
	default:
		s.t.Fatalf("event %q", event)
	}
	var out []string
	for _, a := range m.actions() {
		name := [...]string{"admit", "refuse", "seek", "cancel", "join", "ask", "ask ahead", "lose", "drop", "end", "keep", "reuse", "discard"}[a.verb]
		switch a.verb {
		case admit:
			a.use.grant = new(line.Grant)
			if a.waiter != nil {
				s.uses[s.name(a.waiter, nil)] = a.use
			}
			name += " " + s.name(a.waiter, a.use)
		case refuse:
			name += " " + s.name(a.waiter, nil)
		case end:
			name += " " + s.name(nil, a.use)
		case lose:
			a.share.claim.(*fakeClaim).lost = true
		}
		out = append(out, name)
	}
	if say != "" {
		out = append(out, say)
	}
	return strings.Join(out, ", ")
}

func (s *script) use(who string) *use {
	u := s.uses[who]
	s.left[who] = u
	return u
}

// Each line of a script is an event, and what is to be done.
func TestMachineSaysWhatIsToBeDone(t *testing.T) {
	for name, lines := range map[string]string{
		"the first is sought for, and the next takes over": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			leaves E1 -> end E1, admit E2, ask ahead, passes
			leaves E2 -> drop, is given up`,
		"a place is kept until somebody else comes": `
			retains ->
			comes E1 -> seek
			found -> admit E1
			leaves E1 -> keep, drop, is kept
			comes E2 -> reuse, admit E2
			leaves E2 -> keep, drop, is kept
			tries E3 -> reuse, admit E3, busy=false
			others come ->
			leaves E3 -> drop, is given up
			comes E4 -> seek
			found -> admit E4
			leaves E4 -> keep, drop, is kept
			recalled -> discard
			comes E5 -> seek`,
		"who waits keeps others from keeping a place, and a reader has it given up": `
			retains ->
			comes E1 -> seek
			found -> admit E1
			comes S2 ->
			leaves E1 -> drop, seek, is given up
			found -> join, admit S2
			leaves S2 -> drop, is given up
			comes E3 -> seek
			found -> admit E3
			leaves E3 -> keep, drop, is kept
			tries S4 -> discard, busy=false
			comes E5 -> seek
			found -> admit E5
			leaves E5 -> keep, drop, is kept
			comes S6 -> discard, seek`,
		"what is doubtful, lost or asked for is not granted again": `
			retains ->
			comes E1 -> seek
			found -> admit E1
			leaves E1 -> keep, drop, is kept
			doubtful ->
			comes E2 -> discard, seek
			found -> admit E2
			leaves E2 -> keep, drop, is kept
			lost ->
			comes E3 -> discard, seek
			found -> admit E3
			asked ->
			leaves E3 -> drop, is given up`,
		"while nobody else is there hand-overs are not counted, and from then on all are": `
			retains ->
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			comes E3 ->
			comes E4 ->
			comes E5 ->
			comes E6 ->
			comes E7 ->
			leaves E1 -> end E1, admit E2, passes
			leaves E2 -> end E2, admit E3, passes
			leaves E3 -> end E3, admit E4, passes
			others come ->
			leaves E4 -> end E4, admit E5, ask ahead, passes
			others go ->
			leaves E5 -> end E5, admit E6, passes
			others come ->
			leaves E6 -> end E6, admit E7, ask ahead, passes
			leaves E7 -> drop, is given up`,
		"what was granted means that what is kept is gone": `
			retains ->
			comes E1 -> seek
			found -> admit E1
			leaves E1 -> keep, drop, is kept
			enters E2 -> discard, admit E2`,
		"a question says when it is enough": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			comes E3 ->
			comes E4 ->
			leaves E1 -> end E1, admit E2, ask ahead, passes
			leaves E2 -> end E2, admit E3, passes
			leaves E3 -> must ask
			comes E5 ->
			told E3 nobody -> end E3, admit E4, ask ahead, passes
			leaves E4 -> must ask
			told E4 others -> drop, seek, is given up`,
		"once nobody else is there, and the line watched, nothing is counted until others come": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			comes E3 ->
			comes E4 ->
			comes E5 ->
			comes E6 ->
			comes E7 ->
			leaves E1 -> end E1, admit E2, ask ahead, passes
			watched ->
			leaves E2 -> end E2, admit E3, passes
			leaves E3 -> end E3, admit E4, passes
			leaves E4 -> end E4, admit E5, passes
			others come ->
			leaves E5 -> end E5, admit E6, ask ahead, passes
			leaves E6 -> end E6, admit E7, passes
			leaves E7 -> drop, is given up`,
		"without retention a place is not kept, though nobody else is there": `
			comes E1 -> seek
			found -> admit E1
			watched ->
			leaves E1 -> drop, is given up`,
		"who has been asked to give up does not hand over": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			asked ->
			leaves E1 -> drop, seek, is given up`,
		"what may be written yet is not handed over, nor kept": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			comes E3 ->
			writes E1 ->
			written E1 ->
			leaves E1 -> end E1, admit E2, ask ahead, passes
			writes E2 ->
			leaves E2 -> drop, seek, is given up
			writes E2 -> not held
			retains ->
			found -> admit E3
			writes E3 ->
			leaves E3 -> drop, is given up`,
		"who has left by the time of the answer was asked for writes nothing any more": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			comes E3 ->
			comes E4 ->
			leaves E1 -> end E1, admit E2, ask ahead, passes
			leaves E2 -> end E2, admit E3, passes
			writes E3 ->
			leaves E3 -> drop, seek, is given up
			written E3 ->
			found -> admit E4`,
		"nobody begins to read beside what may be written yet": `
			comes E1 -> seek
			found -> admit E1
			writes E1 ->
			comes S2 ->
			exchanging ->
			exchanged done -> join, seek
			tries S3 -> busy=false
			leaves E1 -> drop, is given up
			found -> join, admit S2`,
		"nor by what stands beside that": `
			comes E1 -> seek
			found -> admit E1
			beside S2 -> join, admit S2
			comes S3 ->
			writes E1 ->
			leaves E1 -> drop, seek, is given up
			tries S4 -> busy=false
			found -> join, admit S3
			tries S5 -> admit S5, busy=false`,
		"what a reader stands beside is not handed over": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			beside ->
			leaves E1 -> drop, seek, is given up`,
		"readers enter together, and who comes later joins, twice": `
			comes S1 -> seek
			comes S2 ->
			comes E3 ->
			comes S4 ->
			found -> join, admit S1, admit S2, seek
			goes E3 -> admit S4, cancel, left=true
			comes S5 -> admit S5, cancel
			failed ->
			comes S6 -> ask
			answered nobody -> admit S6
			comes S7 -> admit S7
			comes S8 -> ask
			answered others -> seek
			leaves S1 -> end S1, stays`,
		"who is admitted as it goes is told so": `
			comes E1 -> seek
			found -> admit E1
			goes E1 -> left=false`,
		"what nobody waits for any more goes back": `
			comes E1 -> seek
			goes E1 -> cancel, left=true
			found -> give back
			comes E2 -> seek`,
		"nobody joins an acquisition that was called back": `
			comes E1 -> seek
			goes E1 -> cancel, left=true
			comes S2 -> cancel
			failed -> seek
			found -> join, admit S2`,
		"a refusal is told to everybody": `
			comes E1 -> seek
			comes S2 ->
			failed -> refuse E1, refuse S2`,
		"what is found while others are here means that they have lost": `
			comes E1 -> seek
			found -> admit E1
			enters E2 -> lose, unusable
			leaves E1 -> drop, is given up
			enters E2 -> admit E2`,
		"nobody is let in beside a loss that is not noticed": `
			comes S1 -> seek
			found -> join, admit S1
			lost ->
			comes S2 ->
			tries S3 -> busy=true
			leaves S1 -> drop, seek, is given up`,
		"who tries joins readers, unless somebody waits to write": `
			comes S1 -> seek
			found -> join, admit S1
			tries S2 -> admit S2, busy=false
			tries E3 -> busy=true
			comes E4 -> seek
			tries S5 -> busy=true`,
		"a downgrade lets readers in, and who leaves meanwhile waits": `
			comes E1 -> seek
			found -> admit E1
			comes S2 ->
			exchanging ->
			leaves E1 -> must wait
			exchanged done -> join, admit S2
			leaves E1 -> end E1, stays
			leaves S2 -> drop, is given up`,
		"a downgrade that fails changes nothing": `
			comes E1 -> seek
			found -> admit E1
			comes E2 ->
			exchanging ->
			exchanged not ->
			leaves E1 -> end E1, admit E2, ask ahead, passes`,
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{t: t, m: machine{handoffs: 2}, waiters: make(map[string]*waiter), uses: make(map[string]*use), left: make(map[string]*use)}
			for l := range strings.SplitSeq(strings.TrimSpace(lines), "\n") {
				event, want, _ := strings.Cut(strings.TrimSpace(l), " ->")
				if got := s.do(event); got != strings.TrimSpace(want) {
					t.Fatalf("%s -> %s; want%s", event, got, want)
				}
			}
		})
	}
}

// With 10 hand-overs in a row, of 100, and answers that take so many hand-overs.
func TestOthersAreAskedAfterAsLateAsAnswersAllow(t *testing.T) {
	for took, want := range map[int]struct{ questions, waits int }{
		0: {12, 0}, // after 5, and then for every 8
		1: {16, 0}, // for every 6
		4: {18, 0}, // never sooner than when half of them are used
		9: {18, 17},
	} {
		m := machine{handoffs: 10}
		first := &waiter{}
		m.arrive(first)
		m.found(&share{claim: &fakeClaim{}})
		u, questions, waits, due := first.use, 0, 0, -1
		for i := range 100 {
			next := &waiter{}
			m.arrive(next)
			if i == due {
				m.heard(u.share, u.share.ask)
			}
			if m.leave(u) == mustAsk {
				if waits++; i < due {
					m.heard(u.share, u.share.ask)
				} else {
					waits--
				}
				m.resume(u, false)
			}
			for _, a := range m.actions() {
				if a.verb == askAhead {
					questions++
					due = i + 1 + took
				}
			}
			u = next.use
		}
		if questions != want.questions || waits != want.waits {
			t.Errorf("answers that take %d hand-overs: %d questions, and %d hand-overs have waited; want %+v", took, questions, waits, want)
		}
	}
}

// A hall is the model: who is inside, who waits, and nothing of how it came to be.
// It knows what must never be, and what must be before everybody rests.
type hall struct {
	t           *testing.T
	m           machine
	rnd         *rand.Rand
	waiting     []*waiter
	inside      map[*use]bool
	shares      map[*share]*standing
	acquisition *acquisition
	asked       []*share      // answers that are under way
	leaving     map[*use]bool // who waits for the answer of a question
	refused     bool          // the acquisition has just failed
	open        []*share      // whose transactions may be applied yet
	admitted    int
	order       map[*use]int // in which they were admitted, so that a seed tells all
}

// A standing is a share as the model knows it.
type standing struct {
	exclusive bool
	passes    int               // how often it went from one to the next
	asked     map[*question]int // how often it had by then
	base      int               // how often it had when others were last asked after, and were none
	moving    bool
	sealed    bool // something may be written yet by who wrote before those who read by it
}

func (h *hall) fail(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf(format, args...)
}

// mayEnter reports whether somebody may come in beside those who are inside.
func (h *hall) mayEnter(t *share, mode Mode) bool {
	for x, s := range h.shares {
		switch {
		case x == t && mode == Shared && !s.exclusive && x.claim.Err() == nil:
		case x == t && mode == Exclusive && s.exclusive && !h.occupied(x):
		case x != t && mode == Shared && !s.exclusive && x.claim.Err() == nil:
		default:
			return false
		}
	}
	return true
}

func (h *hall) occupied(t *share) bool {
	for u := range h.inside {
		if u.share == t {
			return true
		}
	}
	return false
}

// perform carries out what the machine says, and complains where that breaks a rule.
func (h *hall) perform() {
	for _, a := range h.m.actions() {
		switch a.verb {
		case admit:
			mode := a.use.share.mode
			if s := h.shares[a.use.share]; s == nil {
				h.shares[a.use.share] = &standing{exclusive: mode == Exclusive, asked: make(map[*question]int)}
			} else if mode == Exclusive {
				if s.passes++; s.passes-s.base > h.m.handoffs {
					h.fail("%d hand-overs in a row", s.passes-s.base)
				}
			}
			a.use.grant = new(line.Grant)
			if s := h.shares[a.use.share]; s.sealed || s.passes > 0 && mode == Exclusive && slices.Contains(h.open, a.use.share) {
				h.fail("admitted in mode %v beside what may be written yet", mode)
			}
			if !h.mayEnter(a.use.share, mode) {
				h.fail("admitted in mode %v beside what does not go with it", mode)
			}
			if a.waiter != nil {
				if len(h.waiting) == 0 || h.waiting[0] != a.waiter {
					h.fail("admitted out of turn")
				}
				if a.waiter.mode != mode || a.waiter.pin != a.use.pin {
					h.fail("admitted to what it did not ask for")
				}
				h.waiting = h.waiting[1:]
			}
			h.inside[a.use] = true
			h.admitted++
			h.order[a.use] = h.admitted
		case refuse:
			if !h.refused || len(h.waiting) == 0 || h.waiting[0] != a.waiter {
				h.fail("refused without a reason")
			}
			h.waiting = h.waiting[1:]
		case seek:
			if h.acquisition != nil || len(h.waiting) == 0 || h.waiting[0].mode != a.acquisition.mode {
				h.fail("sought for nobody")
			}
			h.acquisition = a.acquisition
		case cancel:
			if h.acquisition != a.acquisition || len(h.waiting) > 0 && h.waiting[0].mode == a.acquisition.mode && !a.acquisition.unwanted {
				h.fail("called back what is wanted")
			}
		case ask:
			if slices.Contains(h.asked, a.share) {
				h.fail("asked twice")
			}
			h.asked = append(h.asked, a.share)
		case askAhead:
			h.shares[a.share].asked[a.question] = h.shares[a.share].passes
		case lose:
			a.share.claim.(*fakeClaim).lost = true
		case drop:
			if h.shares[a.share] == nil || h.occupied(a.share) {
				h.fail("given up while somebody has it")
			}
			h.seal(a.share)
			delete(h.shares, a.share)
		case end:
			if h.inside[a.use] {
				h.fail("ended while somebody has it")
			}
		}
	}
	h.refused = false
	h.rest()
}

// rest complains if somebody waits, and nothing that happens next can let it in.
func (h *hall) rest() {
	if len(h.waiting) == 0 || h.acquisition != nil || len(h.asked) > 0 {
		return
	}
	for x, s := range h.shares {
		if s.exclusive || x.claim.Err() != nil {
			return // it will go, and then the next is let in
		}
	}
	h.fail("%d wait, and nobody does anything for them", len(h.waiting))
}

func some[K comparable, V any](rnd *rand.Rand, m map[K]V, less func(K) int) (k K, ok bool) {
	keys := make([]K, 0, len(m))
	for x := range m {
		keys = append(keys, x)
	}
	if len(keys) == 0 {
		return k, false
	}
	slices.SortFunc(keys, func(a, b K) int { return less(a) - less(b) })
	return keys[rnd.IntN(len(keys))], true
}

// event tells the machine of something that can happen now.
func (h *hall) event(leaveOnly bool) {
	n := 14
	if leaveOnly {
		n = 5
	}
	byOrder := func(u *use) int { return h.order[u] }
	switch h.rnd.IntN(n) {
	case 0: // who is inside leaves
		if u, ok := some(h.rnd, h.inside, byOrder); ok {
			h.leave(u)
		}
	case 1: // the acquisition comes back
		if h.acquisition != nil {
			h.comeBack()
		}
	case 2: // somebody is answered whether others wait
		if len(h.asked) > 0 {
			t := h.asked[0]
			h.asked = h.asked[1:]
			h.m.answered(t, h.rnd.IntN(2) == 0)
		}
		if u, ok := some(h.rnd, h.inside, byOrder); ok && u.share.ask != nil {
			h.m.heard(u.share, u.share.ask)
		}
	case 3: // so is who leaves
		if u, ok := some(h.rnd, h.leaving, byOrder); ok {
			delete(h.leaving, u)
			s, q := h.shares[u.share], u.share.ask
			others := h.rnd.IntN(3) == 0
			if at, ok := s.asked[q]; !ok {
				h.fail("must ask what was never asked")
			} else if !others {
				s.base = at
			}
			if h.m.resume(u, others) == passes && others {
				h.fail("handed over while others wait")
			}
		}
	case 4: // an exchange ends
		for t, s := range h.shares {
			if s.moving { // there is only one exclusive share
				s.moving = false
				done := h.rnd.IntN(2) == 0
				if done {
					h.seal(t)
				}
				s.exclusive = s.exclusive && !done
				h.m.exchanged(t, done)
			}
		}
	case 5, 6, 7: // somebody comes
		w := &waiter{mode: Mode(h.rnd.IntN(2)), pin: h.rnd.IntN(4) == 0}
		h.waiting = append(h.waiting, w)
		h.m.arrive(w)
	case 8: // somebody who waits goes
		if len(h.waiting) > 0 {
			i := h.rnd.IntN(len(h.waiting))
			w := h.waiting[i]
			h.waiting = slices.Delete(h.waiting, i, i+1)
			if !h.m.withdraw(w) {
				h.fail("who waits is not in the queue")
			}
		}
	case 9: // somebody tries
		mode := Mode(h.rnd.IntN(2))
		if _, busy := h.m.joinAtOnce(mode); !busy && len(h.m.out) == 0 {
			h.m.enter(h.newShare(mode), false)
		}
	case 10: // something is lost
		if t, ok := some(h.rnd, h.shares, func(t *share) int { return slices.Index(h.m.held, t) }); ok {
			t.claim.(*fakeClaim).lost = h.rnd.IntN(2) == 0 || t.claim.(*fakeClaim).lost
		}
	case 11: // a writer becomes a reader
		if t := h.m.exchange(); t != nil {
			h.shares[t].moving = true
		}
	case 12: // somebody writes
		if u, ok := some(h.rnd, h.inside, byOrder); ok {
			h.open = append(h.open, h.m.begin(u.grant))
		}
	case 13: // it is known what became of it
		if len(h.open) > 0 {
			h.m.ended(h.open[0])
			h.open = h.open[1:]
		}
	}
	h.perform()
}

// seal is for t, which was held exclusively and whose znode goes. Until it has gone what
// has been begun may be written, which the machine does not hear of: so nobody is let in
// by what stands here.
func (h *hall) seal(t *share) {
	if h.shares[t].exclusive && slices.Contains(h.open, t) {
		for _, s := range h.shares {
			s.sealed = true
		}
	}
}

func (h *hall) newShare(mode Mode) *share {
	return &share{claim: &fakeClaim{lost: h.rnd.IntN(10) == 0}, mode: mode}
}

func (h *hall) leave(u *use) {
	delete(h.inside, u)
	d := h.m.leave(u)
	switch d {
	case mustWait:
		if !h.shares[u.share].moving {
			h.fail("must wait for nothing")
		}
		h.inside[u] = true
	case mustAsk:
		h.leaving[u] = true
	case stays:
		if !h.occupied(u.share) {
			h.fail("stays with nobody")
		}
	}
}

func (h *hall) comeBack() {
	s := h.acquisition
	if s.unwanted && h.rnd.IntN(2) == 0 || h.rnd.IntN(20) == 0 {
		h.acquisition, h.refused = nil, !s.unwanted
		h.m.failed(errors.New("failed"))
		return
	}
	t := h.newShare(s.mode)
	was := h.m.acquiring
	usable, taken := h.m.found(t)
	switch {
	case !usable:
		if h.m.acquiring != was {
			h.fail("the acquisition has gone without anything")
		}
	case taken, !taken:
		h.acquisition = nil
	}
}

// Whatever happens in whatever order: nobody is beside whom it must not be beside,
// the queue is served in its order, nobody waits for nothing, others are asked after
// in time, and when everybody goes nothing is left.
func TestMachineKeepsItsRulesWhateverHappens(t *testing.T) {
	admitted := 0
	for seed := range uint64(3000) {
		h := &hall{
			t: t, rnd: rand.New(rand.NewPCG(seed, 1)), inside: make(map[*use]bool),
			shares: make(map[*share]*standing), leaving: make(map[*use]bool), order: make(map[*use]int),
		}
		h.m.handoffs = 1 + h.rnd.IntN(8)
		for range 60 {
			h.event(false)
		}
		for i := 0; len(h.inside)+len(h.waiting)+len(h.shares)+len(h.leaving) > 0 || h.acquisition != nil; i++ {
			if i == 10000 {
				t.Fatalf("seed %d: %d wait, %d are inside, acquisition %v", seed, len(h.waiting), len(h.inside), h.acquisition)
			}
			h.event(true)
		}
		if m := &h.m; len(m.held) > 0 || len(m.waiting) > 0 || m.acquiring != nil {
			t.Fatalf("seed %d: the machine still has %d shares, %d waiters", seed, len(m.held), len(m.waiting))
		}
		admitted += h.admitted
	}
	if admitted < 10000 {
		t.Errorf("only %d were ever admitted", admitted)
	}
}

// The goroutine that begins a wait may be slow to make known what ends it: the event can
// have come by then, and the next wait be begun, by another goroutine that was quicker.
func TestWhoCallsBackEndsTheLastWaitThoughTheOneBeforeIsMadeKnownLater(t *testing.T) {
	var s acquisition
	s.begin()
	ended := 0
	for _, wait := range []int{1, 3, 2} {
		s.mayWake(&waking{wait, func() { ended = wait }})
	}
	if s.cancel(); ended != 3 {
		t.Errorf("wait %d was ended, want the last", ended)
	}
}
