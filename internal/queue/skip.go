package queue

import (
	"fmt"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// Some elements are left where they are: what the servers do not let us read,
// and what does not decode while nothing else does either. They are skipped for
// a while, so that they do not hold up what stands behind them.

// skipFor is how long something is skipped. Somebody may cure it in the meantime.
const skipFor = time.Minute

// maxMisfits is how many elements in a row are set aside because they do not
// decode. If nothing decodes in between, the fault may be this consumer's: its
// type, or its codec, may not be that of the queue.
const maxMisfits = 3

// A Skipper remembers what is skipped.
type Skipper struct {
	Complain func(error)

	mu      sync.Mutex
	buckets map[string]skip // by name; guarded by mu
	streak  int             // how many in a row did not decode; not 0 while one of them is skipped; guarded by mu
	told    time.Time       // when that was last complained of; guarded by mu
}

// A skip is what is skipped of a bucket, and until when.
type skip struct {
	until   time.Time
	whole   bool
	hidden  spans // may not be read
	misfits spans // did not decode
}

// skipLocked begins to skip an element by its bucket and its number, or with -1 a bucket.
func (s *Skipper) skipLocked(b string, n int32, misfit bool) {
	x := s.buckets[b]
	if !time.Now().Before(x.until) {
		x = skip{until: time.Now().Add(skipFor)}
	}
	switch {
	case n < 0:
		x.whole = true
	case misfit:
		x.misfits = x.misfits.union(only(n))
	default:
		x.hidden = x.hidden.union(only(n))
	}
	if s.buckets == nil {
		s.buckets = make(map[string]skip)
	}
	s.buckets[b] = x
}

// Skipped reports whether something is to be left alone now.
func (s *Skipper) Skipped(b string, n int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.buckets[b]
	return time.Now().Before(x.until) && (x.whole || x.hidden.has(n) || x.misfits.has(n))
}

// Left reports whether an element that is skipped did not decode.
func (s *Skipper) Left(b string, n int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.buckets[b]
	return x.misfits.has(n) && !x.hidden.has(n)
}

// Next returns when to look again at what is skipped, or the zero time.
func (s *Skipper) Next() (at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, x := range s.buckets {
		if !now.Before(x.until) {
			delete(s.buckets, name) // it is gone, or will be looked at
		} else {
			at = earlier(at, x.until)
		}
	}
	return at
}

// Fits is told that an element has decoded, so those that do not are at fault
// themselves.
func (s *Skipper) Fits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streak == 0 { // nothing has been left
		return
	}
	s.streak = 0
	for name, x := range s.buckets {
		x.misfits = nil
		s.buckets[name] = x
	}
}

// Misfit is told of an element that did not decode. The error, if there is one, says why
// it is left in the queue, and not set aside.
func (s *Skipper) Misfit(b string, n int32, fault error) error {
	s.mu.Lock()
	if s.streak < maxMisfits {
		s.streak++
		s.mu.Unlock()
		return nil
	}
	// In one go: another may decode at this moment, which clears what is skipped.
	s.skipLocked(b, n, true)
	quiet := !s.told.IsZero() && time.Since(s.told) < skipFor
	if !quiet {
		s.told = time.Now()
	}
	s.mu.Unlock()
	err := fmt.Errorf("%d elements in a row could not be decoded, so those that follow are left in the queue: does this consumer's type, or codec, fit it? %w", maxMisfits, fault)
	if !quiet {
		s.Complain(err)
	}
	return err
}

// Unreadable is told what came of reading something, and reports whether the servers do not
// let us read it: then it is skipped from now on. What is gone is not.
func (s *Skipper) Unreadable(b string, n int32, name string, err error) bool {
	if err == nil || session.IsNoNode(err) || session.OutcomeOf(err) != session.Answered {
		return false
	}
	s.mu.Lock()
	s.skipLocked(b, n, false)
	s.mu.Unlock()
	s.Complain(fmt.Errorf("%s cannot be read, and is passed over: %w", name, err))
	return true
}
