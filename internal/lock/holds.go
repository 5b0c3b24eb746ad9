package lock

import (
	"cmp"
	"slices"
	"time"
)

// A Mode is how something is held.
type Mode int8

const (
	Exclusive Mode = iota // by one goroutine
	Shared                // by any number
)

// An Entry is how contenders of one mode enter a line.
type Entry struct {
	Base string // of their names
	Rule Rule   // who stands in their way
	Op   string // for the observer; "" for a part of something else
}

// Entries are how contenders of each mode enter a line. A lock without readers has no entry for
// them, and nil has none at all.
type Entries [Shared + 1]Entry

// Of returns the entry of mode.
func (es *Entries) Of(mode Mode) Entry {
	if es == nil {
		return Entry{}
	}
	return es[mode]
}

// Untold returns the same entries for a part of something else.
func (es *Entries) Untold() *Entries {
	part := *es
	for mode := range part {
		part[mode].Op = ""
	}
	return &part
}

// A hold is a claim whose turn has come, and its uses: one if the mode is exclusive, else any
// number. Everything in it is guarded by Lock.mu.
type hold struct {
	claim *Claim
	mode  Mode
	uses  []*Grant  // one for each goroutine, in the order in which they were granted
	first [1]*Grant // the memory of uses, while there is one

	passed  int           // hand-overs, or joins, since no other contender was known
	listing chan struct{} // closed when the listing under way is answered; nil if there is none
	listed  bool          // the line was listed once, and a watch set if h was alone
	closed  bool          // no more readers may join

	open   int           // transactions that may still be applied
	moving chan struct{} // closed at the end of the Downgrade under way; nil if there is none
	stop   func()        // ends that without a downgrade, unless it is done already

	kept   time.Time   // when the last goroutine released it, if no goroutine has it
	timer  *time.Timer // for the time that it is kept; nil if it ended while a goroutine had h
	recall func()      // gives up the place if no goroutine has it; nil if it was never kept
}

// stopTimer is for a hold whose place is given up.
func (h *hold) stopTimer() {
	if h.timer != nil {
		h.timer.Stop()
	}
}

// lost reports whether h is lost. If so, the hooks of the loss have run.
func (h *hold) lost() bool { return h.claim.Err() != nil }

func (h *hold) used() bool { return len(h.uses) > 0 }

// anonymous returns the index of the use that a goroutine without a handle releases, or -1. It is not
// the use of a Do, unless the hold is exclusive and has no other.
func (h *hold) anonymous() int {
	for i, g := range slices.Backward(h.uses) {
		if !g.Pinned {
			return i
		}
	}
	if h.mode == Exclusive {
		return len(h.uses) - 1
	}
	return -1
}

// holds are the holds of a process, in the order in which they were granted.
type holds []*hold

// occupied reports whether a hold must be released before another goroutine can hold mode. A lost
// hold must be, even before another reader comes: RUnlock has no handle, and would return the loss to
// the wrong reader.
func (hs holds) occupied(mode Mode) bool {
	return slices.ContainsFunc(hs, func(h *hold) bool {
		return mode == Exclusive || h.mode == Exclusive || h.lost()
	})
}

// shared reports whether hs has a shared hold.
func (hs holds) shared() bool {
	return slices.ContainsFunc(hs, func(h *hold) bool { return h.mode == Shared })
}

// joinable returns the hold that a reader may join, or nil.
func (hs holds) joinable() *hold {
	for _, h := range slices.Backward(hs) {
		if h.mode == Shared && !h.closed && h.used() {
			return h
		}
	}
	return nil
}

// present returns the hold in mode, for which so is true, of a goroutine without a handle. That is a
// lost hold, so that its loss is returned, or else the newest.
func (hs holds) present(mode Mode, so func(h *hold) bool) (found *hold) {
	for _, h := range slices.Backward(hs) {
		switch {
		case h.mode != mode || !so(h):
		case len(hs) == 1 || h.lost(): // the only one is the answer either way
			return h
		case found == nil:
			found = h
		}
	}
	return found
}

// anonymous returns the use in mode that a goroutine without a handle releases, or nil.
func (hs holds) anonymous(mode Mode) (*hold, int) {
	h := hs.present(mode, func(h *hold) bool { return h.anonymous() >= 0 })
	if h == nil {
		return nil, 0
	}
	return h, h.anonymous()
}

// useOf returns the use of g, or nil if it has been released.
func (hs holds) useOf(g *Grant) (*hold, int) {
	for _, h := range hs {
		if i := slices.Index(h.uses, g); i >= 0 {
			return h, i
		}
	}
	return nil, 0
}

// forgotten returns the error of a wait for a lost hold that was not released for a session timeout.
// The hold of a Do is not forgotten: it is released when the function returns.
func (hs holds) forgotten() (err error) {
	for _, h := range hs {
		if h.lost() && slices.ContainsFunc(h.uses, func(g *Grant) bool { return !g.Pinned }) {
			err = cmp.Or(err, h.claim.Forgotten())
		}
	}
	return err
}
