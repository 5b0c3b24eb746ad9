package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8"
	"golang.org/x/sys/unix"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/need"
)

func TestBarAndLiveLineStayWhereTheyAreAtEveryWidth(t *testing.T) {
	for _, width := range []int{40, 41, 60, 61, 62, 79, 80, 81, 120, 200} {
		for _, workers := range []int{2, 4, 8, 12, 40} {
			screen := render(t, width, func(s *liveScreen, draw func()) {
				for round := range 30 {
					s.progress(10 * round)
					s.line(lineOf(workers, round%workers))
					draw()
				}
				s.say("%s", strings.Repeat("a long message ", 20))
				draw()
				s.progress(300)
			})
			all := strings.Join(screen, "\n")
			if got := strings.Count(all, " rounds"); got != 1 {
				t.Errorf("%d columns, %d workers: the bar stands there %d times:\n%s", width, workers, got, all)
			}
			if strings.Contains(all, "holds the lock") {
				t.Errorf("%d columns, %d workers: a live line was not erased:\n%s", width, workers, all)
			}
		}
	}
}

func TestLiveLineSaysWhoHoldsInFortyColumns(t *testing.T) {
	for _, tt := range []struct {
		workers, width int
		want           string
	}{
		{1, 40, "worker 1 holds the lock; nobody waits"},
		{2, 45, "worker 1 holds the lock; waiting: worker 2"},
		{2, 40, "worker 1 holds the lock; 1 wait"},
		{40, 40, "worker 1 holds the lock; 39 wait"},
		{3, 0, "worker 1 holds the lock; waiting: worker 2, worker 3"},
	} {
		if got := describe(lineOf(tt.workers, 0), tt.width); got != tt.want {
			t.Errorf("%d workers in %d columns: %q, want %q", tt.workers, tt.width, got, tt.want)
		}
	}
}

// lineOf is a line of so many workers, of whom one holds.
func lineOf(workers, holder int) (cs []zsync.Contender) {
	for i := range workers {
		cs = append(cs, zsync.Contender{Owner: fmt.Sprintf("worker %d", i+1), Holding: i == holder})
	}
	return cs
}

// render returns what a terminal shows in the end, with what has scrolled away,
// of what use does with a live screen. draw has the screen drawn.
func render(t *testing.T, width int, use func(s *liveScreen, draw func())) []string {
	t.Helper()
	terminal, out := openTerminal(t, width)
	shown := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(terminal) // EIO, when the last writer has gone
		shown <- all
	}()
	ticks := make(chan any)
	s := newLiveScreen(out, 300, mpb.WithManualRefresh(ticks))
	draw := func() { ticks <- time.Now() }
	use(s, draw)
	draw() // what is drawn by hand is not drawn once more at the end
	draw() // when this is taken, that one is under way
	s.close()
	out.Close()
	return show(string(<-shown), width)
}

// openTerminal returns the two ends of a pseudoterminal.
func openTerminal(t *testing.T, width int) (terminal, out *os.File) {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		need.Missing(t, "pseudoterminals", err.Error())
	}
	t.Cleanup(func() { terminal.Close() })
	fd := int(terminal.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(width)})
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return terminal, out
}

// show does what a terminal does with output: text, carriage return, newline,
// cursor up and erase to the end. Nothing else is used.
func show(output string, width int) []string {
	lines, row, col := [][]rune{{}}, 0, 0
	down := func() {
		if row++; row == len(lines) {
			lines = append(lines, nil)
		}
	}
	escape := regexp.MustCompile(`^\x1b\[(\d*)([AJ])`)
	for len(output) > 0 {
		if m := escape.FindStringSubmatch(output); m != nil {
			output = output[len(m[0]):]
			if m[2] == "A" {
				n, _ := strconv.Atoi(m[1])
				row = max(row-n, 0)
			} else {
				lines = lines[:row+1]
				lines[row] = lines[row][:min(col, len(lines[row]))]
			}
			continue
		}
		r := []rune(output[:min(4, len(output))])[0]
		output = output[len(string(r)):]
		switch r {
		case '\r':
			col = 0
		case '\n':
			down()
		default:
			if col == width {
				down()
				col = 0
			}
			for len(lines[row]) <= col {
				lines[row] = append(lines[row], ' ')
			}
			lines[row][col] = r
			col++
		}
	}
	var shown []string
	for _, l := range lines {
		shown = append(shown, strings.TrimRight(string(l), " "))
	}
	return shown
}

func TestTextIsBrokenBetweenWords(t *testing.T) {
	const text = "  held    the lock passes on from a dead holder"
	for width, want := range map[int]string{
		0:         text + "\n",
		len(text): text + "\n",
		40:        "  held    the lock passes on from a dead\n    holder\n",
		20:        "  held    the lock\n    passes on from a\n    dead holder\n",
		6:         "  held\n    th\n    e\n    lo\n    ck\n    pa\n    ss\n    es\n    on\n    fr\n    om\n    a\n    de\n    ad\n    ho\n    ld\n    er\n",
	} {
		if got := wrap(text, width); got != want {
			t.Errorf("in %d columns:\n%s\nwant\n%s", width, got, want)
		}
	}
}

func TestPlainScreenTellsAllNames(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	_, failed := context.WithCancelCause(t.Context())
	defer failed(nil)
	s := newScreen(file, 80, failed)
	s.line(lineOf(12, 0))
	s.progress(10)
	got, err := os.ReadFile(file.Name())
	if err != nil || !strings.Contains(string(got), "worker 12\n") {
		t.Errorf("%v, %q", err, got)
	}
}
