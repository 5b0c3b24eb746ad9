package queue

import (
	"fmt"
	"sync"
	"time"

	"github.com/zsync/zsync/internal/session"
)

// This file keeps bad elements from blocking the queue: it remembers the elements that a consumer
// skips for a while. The servers do not let this client read them, or they do not decode, as several
// others in a row before them. It also remembers which znodes the servers do not let this client write.

// A consumer skips an element for the time skipFor.
const skipFor = time.Minute

// maxMisfits is the largest number of elements in a row that become dead letters because they do
// not decode. If still more elements in a row do not decode, the consumer itself may be at fault:
// its type or codec may differ from the queue's.
const maxMisfits = 3

// A Skipper remembers skipped elements and buckets.
type Skipper struct {
	Complain func(error)

	mu      sync.Mutex
	buckets map[string]skip // by name; guarded by mu
	streak  int             // elements in a row that did not decode; not 0 while a misfit is skipped; guarded by mu
	told    time.Time       // time of the latest complaint of Misfit; guarded by mu
}

// The type `skip` records the skipped elements of a bucket.
type skip struct {
	until   time.Time
	whole   bool  // the bucket itself
	hidden  spans // elements that the servers do not let the client read
	misfits spans // elements that did not decode
}

// The method `skip` begins to skip an element that the servers do not let the client read, or a znode
// that they do not let it write: then n is -1.
func (s *Skipper) skip(b string, n int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipLocked(b, n, false)
}

// skipLocked begins to skip the element with number n in bucket b, or the bucket if n is -1.
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

// Skipped reports whether the consumer skips the element, or the bucket if n is -1.
func (s *Skipper) Skipped(b string, n int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x, ok := s.buckets[b]
	return ok && time.Now().Before(x.until) && (x.whole || x.hidden.has(n) || x.misfits.has(n))
}

// Left returns true if a consumer skips an element only because the element did not decode.
func (s *Skipper) Left(b string, n int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.buckets[b]
	return x.misfits.has(n) && !x.hidden.has(n)
}

// Next returns the earliest time at which a skip ends, or the zero time if there is none.
func (s *Skipper) Next() (at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, x := range s.buckets {
		if !now.Before(x.until) {
			delete(s.buckets, name) // the caller looks at the element again, if its bucket still exists
		} else {
			at = earlier(at, x.until)
		}
	}
	return at
}

// Fits is called when an element has decoded. So the misfits are at fault, and not the consumer. Fits
// ends their skips.
func (s *Skipper) Fits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streak == 0 { // no misfit is skipped
		return
	}
	s.streak = 0
	for name, x := range s.buckets {
		x.misfits = nil
		s.buckets[name] = x
	}
}

// Misfit is called for an element that did not decode. If it returns nil, the element should become
// a dead letter. If it returns an error, the element stays in the queue.
func (s *Skipper) Misfit(b string, n int32, fault error) error {
	s.mu.Lock()
	if s.streak < maxMisfits {
		s.streak++
		s.mu.Unlock()
		return nil
	}
	// Misfit holds the mutex until the skip is recorded. Otherwise, another goroutine could call
	// `Fits` first, and the new skip would survive that call.
	s.skipLocked(b, n, true)
	quiet := !s.told.IsZero() && time.Since(s.told) < skipFor
	if !quiet {
		s.told = time.Now()
	}
	s.mu.Unlock()
	err := fmt.Errorf("%d elements in a row could not be decoded, so the next ones stay in the queue; check this consumer's type and codec: %w", maxMisfits, fault)
	if !quiet {
		s.Complain(err)
	}
	return err
}

// Unreadable is called with the error of a read. If the servers refuse to let the client read the
// znode, Unreadable returns true, and consumers skip the element or bucket from then on.
func (s *Skipper) Unreadable(b string, n int32, name string, err error) bool {
	if err == nil || session.IsNoNode(err) || session.OutcomeOf(err) != session.Answered {
		return false
	}
	s.skip(b, n)
	s.Complain(fmt.Errorf("%s cannot be read, so consumers skip it for a minute: %w", name, err))
	return true
}
