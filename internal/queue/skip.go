package queue

import (
	"fmt"
	"maps"
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

	mu     sync.Mutex
	skips  map[string]skip // guarded by mu
	streak int             // how many in a row did not decode; not 0 while one of them is skipped; guarded by mu
	told   time.Time       // when that was last complained of; guarded by mu
}

// A skip is until when something is skipped.
type skip struct {
	until  time.Time
	misfit bool // it did not decode
}

// skipLocked begins to skip something.
func (s *skipper) skipLocked(key string, misfit bool) {
	if s.skips == nil {
		s.skips = make(map[string]skip)
	}
	s.skips[key] = skip{time.Now().Add(skipFor), misfit}
}

// skipped reports whether something is to be left alone now.
func (s *skipper) skipped(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.skips[key].until)
}

// left reports whether something that is skipped did not decode.
func (s *skipper) left(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.skips[key].misfit
}

// next returns when to look again at what is skipped, or the zero time, and
// whether so much is skipped that nothing more may be claimed.
func (s *skipper) next() (at time.Time, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for key, x := range s.skips {
		if !now.Before(x.until) {
			delete(s.skips, key) // it is gone, or will be looked at
		} else {
			at = earlier(at, x.until)
		}
	}
	return at, len(s.skips) >= maxSkips
}

// fits is told that an element has decoded, so those that do not are at fault
// themselves.
func (s *skipper) fits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streak > 0 { // else nothing has been left
		s.streak = 0
		maps.DeleteFunc(s.skips, func(_ string, x skip) bool { return x.misfit })
	}
}

// misfit is told of an element that did not decode. The error, if there is one, says why
// it is left in the queue, and not set aside.
func (s *skipper) misfit(key string, fault error) error {
	s.mu.Lock()
	if s.streak < maxMisfits {
		s.streak++
		s.mu.Unlock()
		return nil
	}
	// In one go: another may decode at this moment, which clears what is skipped.
	s.skipLocked(key, true)
	quiet := !s.told.IsZero() && time.Since(s.told) < skipFor
	if !quiet {
		s.told = time.Now()
	}
	s.mu.Unlock()
	err := fmt.Errorf("%d elements in a row could not be decoded, so those that follow are left in the queue: does this consumer's type, or codec, fit it? %w", maxMisfits, fault)
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
	s.mu.Lock()
	s.skipLocked(key, false)
	s.mu.Unlock()
	s.complain(fmt.Errorf("%s cannot be read, and is passed over: %w", key, err))
	return true
}
