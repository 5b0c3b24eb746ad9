package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/marks"
)

// This file describes the wait of a task in messages: the holders, and the waiters ahead. hold.go
// does the waiting.

// The constant `asking` is the time limit for finding the holders. The search delays only a command
// whose wait has failed.
const asking = time.Second

// The method `taken` returns a text about the holders and the waiters ahead, with the text `colon`
// before it. If there are none, or if `taken` cannot read them, it returns "".
func (t *task) taken(lines []line, colon string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.waiting), asking)
	defer cancel()
	var words []string
	for _, l := range lines {
		if who := t.inTheWay(ctx, l); who != "" {
			if len(lines) > 1 {
				who = l.Path() + " " + who
			}
			words = append(words, who)
		}
	}
	if len(words) == 0 {
		return ""
	}
	return colon + strings.Join(words, "; ")
}

// inTheWay returns a text about the line l: the holders, and the number of waiters ahead. If there
// is no holder, the text is about the waiters ahead.
func (t *task) inTheWay(ctx context.Context, l line) string {
	contenders, err := l.Contenders(ctx)
	if err != nil {
		return ""
	}
	mine := func(c zsync.Contender) bool { return c.Session == t.session.ID() }
	place := slices.IndexFunc(contenders, func(c zsync.Contender) bool { return mine(c) && !c.Holding })
	var holders, ahead []zsync.Contender
	for i, c := range contenders {
		switch {
		case mine(c):
		case c.Holding:
			holders = append(holders, c)
		case place < 0 || i < place:
			ahead = append(ahead, c)
		}
	}
	words := ""
	switch {
	case len(holders) > 0:
		words = "held by " + describe(holders)
	case len(ahead) > 0:
		return "behind " + describe(ahead)
	}
	if len(ahead) > 0 && words != "" {
		words += fmt.Sprintf("; waiting ahead: %d", len(ahead))
	}
	return words
}

// The function `describe` returns a text with the name of the first contender and the number of the
// others.
func describe(cs []zsync.Contender) string {
	owner, _ := marks.Outer(cs[0].Owner)
	if owner == "" {
		owner = fmt.Sprintf("session %#x", uint64(cs[0].Session))
	}
	since, at := " since ", cs[0].HeldSince
	if at.IsZero() {
		if at = cs[0].Since; cs[0].Holding {
			since = ", here since "
		}
	}
	words := printable(owner) + since + at.Local().Format(time.DateTime)
	if len(cs) > 1 {
		words += fmt.Sprintf(" and %s", count(len(cs)-1, "other"))
	}
	return words
}

// The constant `narrating` is the interval at which -v can report a change.
const narrating = 500 * time.Millisecond

// The method `narrate` calls narrateOf with a text about the holders and the waiters ahead in
// `lines`.
func (t *task) narrate(lines []line) (stop func(got bool)) {
	return t.narrateOf(func() string { return t.taken(lines, "") })
}

// inVain returns the error of a wait that took too long. The text `who` is about the current
// holders. If it is not empty, it replaces the older names in err.
func (t *task) inVain(err error, who string) error {
	var op *zsync.Error
	var wait *zsync.WaitError
	if who != "" && errors.As(err, &op) && errors.As(err, &wait) {
		err = &zsync.Error{Op: op.Op, Path: op.Path, Err: errors.Unwrap(wait)}
	}
	return &statusError{t.busy, fmt.Errorf("%w%s", err, who)}
}

// The function `colon` adds a colon before the text `words`, unless it is empty.
func colon(words string) string {
	if words == "" {
		return ""
	}
	return ": " + words
}

// With -v, narrateOf repeatedly calls `what`, and prints each new text to standard error, until the
// caller calls `stop`. The first call of `stop` prints whether the wait had success.
func (t *task) narrateOf(what func() string) (stop func(got bool)) {
	if !t.verbose {
		return func(bool) {}
	}
	var once sync.Once
	began, ended, gone := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		last := ""
		for {
			words := cmp.Or(what(), last) // in an outage, the function `what` returns ""
			select {
			case <-ended: // do not report the task itself as the holder
				return
			default:
			}
			t.sayWait(began, words, words != last)
			last = words
			select {
			case <-ended:
				return
			case <-time.After(narrating):
			}
		}
	}()
	return func(got bool) {
		once.Do(func() {
			close(ended)
			<-gone
			t.messages.clear()
			if got {
				t.say(fmt.Errorf("%s: granted after %v", t.path, elapsed(time.Since(began))))
			}
		})
	}
}

// sayWait reports a wait. On a terminal, it replaces the last line. Without a terminal, it prints a
// message if the text `words` is new.
func (t *task) sayWait(began time.Time, words string, isNew bool) {
	if words == "" {
		return
	}
	status := fmt.Sprintf("zsync: %s: waiting for %s: %s", t.path, age(time.Now(), &began), words)
	if !t.messages.show(plain(status)) && isNew {
		t.say(fmt.Errorf("%s: waiting: %s", t.path, words))
	}
}

// The function `elapsed` rounds a duration for people.
func elapsed(d time.Duration) time.Duration {
	if d < 10*time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
