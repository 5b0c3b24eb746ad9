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

// maxSkips is how many are skipped at once. With so many nothing more is claimed.
const maxSkips = 1000

// maxMisfits is how many elements in a row are set aside because they do not
// decode. If nothing decodes in between, the fault may be this consumer's: its
// type, or its codec, may not be that of the queue.
const maxMisfits = 3

// A skipper remembers what is skipped, by key or by the name of a bucket.
type skipper struct {
	complain func(error)

	mu      sync.Mutex
	until   map[string]time.Time // guarded by mu
	misfits map[string]bool      // those of them that did not decode; guarded by mu
	streak  int                  // how many in a row did not decode; guarded by mu
	told    time.Time            // when that was last complained of; guarded by mu
}

// skip begins to skip something.
func (s *skipper) skip(key string, misfit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until, s.misfits = make(map[string]time.Time), make(map[string]bool)
	}
	s.until[key] = time.Now().Add(skipFor)
	if delete(s.misfits, key); misfit {
		s.misfits[key] = true
	}
}

// skipped reports whether something is to be left alone now.
func (s *skipper) skipped(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.until[key]
	if ok && !time.Now().Before(until) {
		delete(s.until, key)
		delete(s.misfits, key)
		return false
	}
	return ok
}

// left reports whether something that is skipped did not decode.
func (s *skipper) left(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.misfits[key]
}

// next returns when to look again at what is skipped, or the zero time, and
// whether so much is skipped that nothing more may be claimed.
func (s *skipper) next() (at time.Time, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for key, until := range s.until {
		if !now.Before(until) {
			delete(s.until, key) // it is gone, or will be looked at
			delete(s.misfits, key)
		} else if at.IsZero() || until.Before(at) {
			at = until
		}
	}
	return at, len(s.until) >= maxSkips
}

// fits is told that an element has decoded, so those that do not are at fault
// themselves.
func (s *skipper) fits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streak = 0
	for key := range s.misfits {
		delete(s.until, key)
	}
	clear(s.misfits)
}

// misfit is told of an element that did not decode, and reports whether it may
// be set aside.
func (s *skipper) misfit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streak >= maxMisfits {
		return false
	}
	s.streak++
	return true
}

// leave leaves an element in the queue that did not decode, and returns why.
func (s *skipper) leave(key string, fault error) error {
	s.skip(key, true)
	err := fmt.Errorf("%d elements in a row could not be decoded, so those that follow are left in the queue: does this consumer's type, or codec, fit it? %w", maxMisfits, fault)
	s.mu.Lock()
	quiet := !s.told.IsZero() && time.Since(s.told) < skipFor
	if !quiet {
		s.told = time.Now()
	}
	s.mu.Unlock()
	if !quiet {
		s.complain(err)
	}
	return err
}

// unreadable is told what came of reading something, and reports whether the servers do not
// let us read it: then it is skipped from now on. What is gone is not.
func (s *skipper) unreadable(key string, err error) bool {
	if err == nil || session.IsNoNode(err) || session.OutcomeOf(err) != session.Answered {
		return false
	}
	s.skip(key, false)
	s.complain(fmt.Errorf("%s cannot be read, and is passed over: %w", key, err))
	return true
}
