package session

import (
	"sync"
	"time"
)

// A shelf is the receipts of transactions across sessions that no transaction uses
// at present. They are persistent znodes, so they are kept for a moment only: for
// the next transaction of one who makes many.
type shelf struct {
	mu    sync.Mutex
	kept  map[string][]keptReceipt // by directory; the one that was used last is the last
	swept bool                     // somebody deletes those that are not used
	none  bool                     // the servers let us make receipts, but not write them
}

type keptReceipt struct {
	*receipt
	used time.Time
}

// receiptIdle is how long a receipt is kept that nobody uses.
const receiptIdle = time.Second

// removeAtOnce is how many receipts are deleted with one request.
const removeAtOnce = 128

// take takes a receipt that lies in dir, or a new one.
func (s *shelf) take(dir string) *receipt {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.kept[dir])
	if n == 0 {
		return newReceipt(dir)
	}
	r := s.kept[dir][n-1].receipt
	s.kept[dir] = s.kept[dir][:n-1]
	return r
}

func newReceipt(dir string) *receipt {
	return &receipt{ChildPath(dir, ProtectedName(NewGUID(), "receipt")), -1}
}

// keep puts r back, unless there is no room. With sweep nobody deletes those that
// are not used, and the caller must see to it.
func (s *shelf) keep(dir string, r *receipt, now time.Time) (kept, sweep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.none || len(s.kept[dir]) >= MaxPages || r.version >= lastVersion {
		return false, false
	}
	if s.kept == nil {
		s.kept = make(map[string][]keptReceipt)
	}
	s.kept[dir] = append(s.kept[dir], keptReceipt{r, now})
	sweep = !s.swept
	s.swept = true
	return true, sweep
}

// refuse has nothing be kept any more.
func (s *shelf) refuse() {
	s.mu.Lock()
	s.none = true
	s.mu.Unlock()
}

// idle takes those out that were last used at until or before. If there are others
// it says when the next was used; if there are none, nobody looks after them any more.
func (s *shelf) idle(until time.Time) (paths []string, next time.Time, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir, rs := range s.kept {
		n := 0
		for n < len(rs) && !rs[n].used.After(until) {
			paths = append(paths, rs[n].path)
			n++
		}
		if n == len(rs) {
			delete(s.kept, dir)
			continue
		}
		s.kept[dir] = rs[n:]
		if !more || rs[n].used.Before(next) {
			next, more = rs[n].used, true
		}
	}
	s.swept = more
	return paths, next, more
}
