package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/cwriter"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/zsync/zsync"
)

// A screen shows how the tour gets on.
type screen interface {
	say(format string, args ...any)    // something happened
	progress(rounds int)               // so many are done
	line(contenders []zsync.Contender) // who holds and who waits
	close()                            // nothing more comes
}

// newScreen returns a screen of one bar and one live line if out is a terminal,
// and one that prints line after line if not.
// If out cannot be written the latter calls failed.
func newScreen(out *os.File, goal int, failed context.CancelCauseFunc) screen {
	if cwriter.IsTerminal(int(out.Fd())) {
		return newLiveScreen(out, goal)
	}
	return &plainScreen{out: out, goal: goal, failed: failed}
}

// describe puts a line in words.
func describe(contenders []zsync.Contender) string {
	holder, waiters := "nobody", []string(nil)
	for _, c := range contenders {
		if c.Holding {
			holder = c.Owner
		} else {
			waiters = append(waiters, c.Owner)
		}
	}
	if len(waiters) == 0 {
		return holder + " holds the lock; nobody waits"
	}
	return holder + " holds the lock; waiting: " + strings.Join(waiters, ", ")
}

type liveScreen struct {
	bars *mpb.Progress
	bar  *mpb.Bar
	last atomic.Value // string: the live line
}

func newLiveScreen(out io.Writer, goal int) *liveScreen {
	s := &liveScreen{bars: mpb.New(mpb.WithOutput(out), mpb.WithWidth(64), mpb.WithRefreshRate(50*time.Millisecond))}
	s.last.Store("")
	s.bar = s.bars.New(int64(goal), mpb.BarStyle(),
		mpb.AppendDecorators(decor.CountersNoUnit("%d of %d rounds")),
		mpb.BarExtender(mpb.BarFillerFunc(func(w io.Writer, _ decor.Statistics) error {
			_, err := fmt.Fprintln(w, s.last.Load())
			return err
		}), false))
	return s
}

func (s *liveScreen) say(format string, args ...any) {
	fmt.Fprintf(s.bars, format+"\n", args...)
}

func (s *liveScreen) progress(rounds int)               { s.bar.SetCurrent(int64(rounds)) }
func (s *liveScreen) line(contenders []zsync.Contender) { s.last.Store(describe(contenders)) }

func (s *liveScreen) close() {
	s.last.Store("")
	s.bar.Abort(false) // does nothing to a bar that is full
	s.bars.Wait()
}

type plainScreen struct {
	out    io.Writer
	goal   int
	failed context.CancelCauseFunc
	last   string // who holds and who waits
}

func (s *plainScreen) say(format string, args ...any) {
	if _, err := fmt.Fprintf(s.out, format+"\n", args...); err != nil {
		s.failed(fmt.Errorf("standard output: %w", err))
	}
}

func (s *plainScreen) progress(rounds int) {
	if rounds%(s.goal/8) == 0 {
		s.say("%4d of %d rounds   %s", rounds, s.goal, s.last)
	}
}

func (s *plainScreen) line(contenders []zsync.Contender) { s.last = describe(contenders) }
func (s *plainScreen) close()                            {}
