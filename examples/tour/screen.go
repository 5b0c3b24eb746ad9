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
	line(contenders []zsync.Contender) // the holder and the waiters
	close()                            // nothing more comes
}

// newScreen returns a screen of one bar and one live line if out is a terminal.
// Otherwise, it returns a screen that prints line after line, and calls failed if
// out cannot be written.
func newScreen(out *os.File, goal int, failed context.CancelCauseFunc) screen {
	if cwriter.IsTerminal(int(out.Fd())) {
		return newLiveScreen(out, goal)
	}
	return &plainScreen{out: out, goal: goal, failed: failed}
}

// describe puts a line in words, in width columns if that is not 0: all the
// names if they fit, or else the number of waiters.
func describe(contenders []zsync.Contender, width int) string {
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
	words := holder + " holds the lock; waiting: " + strings.Join(waiters, ", ")
	if width > 0 && len(words) > width {
		words = fmt.Sprintf("%s holds the lock; %d wait", holder, len(waiters))
	}
	return words
}

// columns returns how wide a terminal is, or 0 if out is none.
func columns(out io.Writer) int {
	if f, ok := out.(*os.File); ok {
		if width, _, err := cwriter.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 0
}

type liveScreen struct {
	out  io.Writer
	bars *mpb.Progress
	bar  *mpb.Bar
	last atomic.Value // []zsync.Contender: the holder and the waiters; nil: say nothing
}

func newLiveScreen(out io.Writer, goal int, opts ...mpb.ContainerOption) *liveScreen {
	opts = append([]mpb.ContainerOption{mpb.WithOutput(out), mpb.WithWidth(64), mpb.WithRefreshRate(50 * time.Millisecond)}, opts...)
	s := &liveScreen{out: out, bars: mpb.New(opts...)}
	s.last.Store([]zsync.Contender(nil))
	s.bar = s.bars.New(int64(goal), mpb.BarStyle(),
		mpb.AppendDecorators(decor.CountersNoUnit("%d of %d rounds")),
		mpb.BarExtender(mpb.BarFillerFunc(s.liveLine), false))
	return s
}

// liveLine writes the line below the bar. It must not be wider than the
// terminal, which would make two of it: only one is erased before the next.
func (s *liveScreen) liveLine(w io.Writer, stat decor.Statistics) error {
	words := ""
	if contenders := s.last.Load().([]zsync.Contender); contenders != nil && !stat.Completed {
		// There is nothing below a full bar: the library may draw it for the last time
		// before the tour calls close.
		words = describe(contenders, stat.AvailableWidth)
		words = words[:min(len(words), stat.AvailableWidth)] // all of it is ASCII
	}
	_, err := fmt.Fprintln(w, words)
	return err
}

func (s *liveScreen) say(format string, args ...any) {
	fmt.Fprint(s.bars, wrap(fmt.Sprintf(format, args...), columns(s.out)))
}

func (s *liveScreen) progress(rounds int) { s.bar.SetCurrent(int64(rounds)) }

func (s *liveScreen) line(contenders []zsync.Contender) {
	s.last.Store(append([]zsync.Contender{}, contenders...)) // not nil, even if the line is empty
}

func (s *liveScreen) close() {
	s.last.Store([]zsync.Contender(nil))
	s.bar.Abort(false) // does nothing to a bar that is full
	s.bars.Wait()
}

type plainScreen struct {
	out    io.Writer
	goal   int
	failed context.CancelCauseFunc
	last   string // the holder and the waiters
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

func (s *plainScreen) line(contenders []zsync.Contender) { s.last = describe(contenders, 0) }
func (s *plainScreen) close()                            {}
