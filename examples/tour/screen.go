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

// This file prints the progress of the tour, on a terminal or line by line. The final table is the
// business of report.go.

// A screen shows the progress of the tour.
type screen interface {
	say(format string, args ...any)    // prints an event
	progress(rounds int)               // shows the number of completed rounds
	line(contenders []zsync.Contender) // shows the holder and the waiters
	close()                            // ends the output
}

// newScreen returns a screen with a bar and a line below it that changes, if out
// is a terminal. Otherwise, it returns a screen that prints line by line, and
// calls failed after an error of out.
func newScreen(out *os.File, goal int, failed context.CancelCauseFunc) screen {
	if cwriter.IsTerminal(int(out.Fd())) {
		return newLiveScreen(out, goal)
	}
	return &plainScreen{out: out, goal: goal, failed: failed}
}

// describe returns a text about the contenders, in width columns unless width is 0: all names if
// they fit, and otherwise the number of waiters.
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

// columns returns the width of a terminal, or 0 if out is none.
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

// liveLine writes the line below the bar. The line must not be wider than the terminal: the
// terminal would break it into two lines, and the library erases only one.
func (s *liveScreen) liveLine(w io.Writer, stat decor.Statistics) error {
	words := ""
	if contenders := s.last.Load().([]zsync.Contender); contenders != nil && !stat.Completed {
		// There is no line below a full bar, because the library may draw the full bar for the last
		// time before the tour calls close.
		words = describe(contenders, stat.AvailableWidth)
		words = words[:min(len(words), stat.AvailableWidth)] // the text is ASCII
	}
	_, err := fmt.Fprintln(w, words)
	return err
}

func (s *liveScreen) say(format string, args ...any) {
	fmt.Fprint(s.bars, wrap(fmt.Sprintf(format, args...), columns(s.out)))
}

func (s *liveScreen) progress(rounds int) { s.bar.SetCurrent(int64(rounds)) }

func (s *liveScreen) line(contenders []zsync.Contender) {
	s.last.Store(append([]zsync.Contender{}, contenders...)) // not nil, even without contenders
}

func (s *liveScreen) close() {
	s.last.Store([]zsync.Contender(nil))
	s.bar.Abort(false) // no effect on a full bar
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
