package queue

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
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

// A Skipper remembers what consumers skip. It names an element or a bucket as [element.key] does.
type Skipper struct {
	Complain func(error)

	mu     sync.Mutex      // guards the fields from here to `told`
	skips  map[string]skip // by name
	streak int             // elements in a row that did not decode; not 0 while a misfit is skipped
	told   time.Time       // time of the latest complaint of Misfit

	begun atomic.Int64 // number of skips that have begun
}

// The type `skip` says until when consumers skip an element or a bucket.
type skip struct {
	until  time.Time
	misfit bool // the element is skipped because it did not decode
}

// Skip begins to skip what the servers do not let the client read or write.
func (s *Skipper) Skip(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipLocked(name, false)
}

func (s *Skipper) skipLocked(name string, misfit bool) {
	if s.skips == nil {
		s.skips = make(map[string]skip)
	}
	s.skips[name] = skip{time.Now().Add(skipFor), misfit}
	s.begun.Add(1)
}

// Skipped reports whether the consumer skips an element or a bucket.
func (s *Skipper) Skipped(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.skips[name].until)
}

// Left returns true if a consumer skips an element only because the element did not decode.
func (s *Skipper) Left(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skips[name].misfit
}

// Next returns the earliest time at which a skip ends, or the zero time if there is none.
func (s *Skipper) Next() (at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, k := range s.skips {
		if now.Before(k.until) {
			at = earlier(at, k.until)
		} else { // the caller looks at the element again, if it still exists
			delete(s.skips, name)
		}
	}
	return at
}

// Fits is called when an element has decoded. So the misfits are at fault, and not the consumer. Fits
// ends their skips.
func (s *Skipper) Fits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streak = 0
	maps.DeleteFunc(s.skips, func(_ string, k skip) bool { return k.misfit })
}

// Misfit is called for an element that did not decode. If it returns nil, the element should become
// a dead letter. If it returns an error, the element stays in the queue.
func (s *Skipper) Misfit(name string, fault error) error {
	s.mu.Lock()
	if s.streak < maxMisfits {
		s.streak++
		s.mu.Unlock()
		return nil
	}
	// Misfit holds the mutex until the skip is recorded. Otherwise, another goroutine could call
	// `Fits` first, and the new skip would survive that call.
	s.skipLocked(name, true)
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
func (s *Skipper) Unreadable(name string, err error) bool {
	if err == nil || session.IsNoNode(err) || session.OutcomeOf(err) != session.Answered {
		return false
	}
	s.Skip(name)
	s.Complain(fmt.Errorf("%s cannot be read, so consumers skip it for a minute: %w", name, err))
	return true
}
