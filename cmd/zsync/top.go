package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/zsync/zsync/internal/look"
)

// This file has zsync top: it draws the primitives on a terminal and reacts to keys. Package look
// reads the tree.

func topCommand(c *client) *cobra.Command {
	h := newHolding(c)
	every := seconds(2 * time.Second)
	cmd := &cobra.Command{
		Use:   "top [PATH] [flags]",
		Short: "show holders and waiters, live",
		Long: `zsync top shows everything at PATH and below it (default: /) in a terminal, the longest
wait first. Its keys:

  q, ctrl-c     quit
  s             sort by another column: longest wait, longest hold, waiters, path
  up, down, k, j, page up, page down, home, end   move
  enter         show the holders and waiters of the marked line; again: go back
  r             refresh at once`,
		Example: "  zsync top\n  zsync top /jobs --interval 0.5",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			root := "/"
			if len(args) == 1 {
				root = args[0]
			}
			in, out := c.terminal()
			if in == nil {
				return fail(exitUsage, "top wants a terminal; zsync ls --watch does without")
			}
			h.root, h.shows = true, true
			t, err := h.begin(cmd.Context(), nil, root)
			if err != nil {
				return err
			}
			defer t.session.Close()
			return t.top(in, out, root, time.Duration(every))
		},
	}
	cmd.Flags().Var(&every, "interval", "`TIME` between two refreshes")
	return cmd
}

// The constant `shortest` is the minimum time between two looks at the tree.
const shortest = 100 * time.Millisecond

// The method `terminal` returns standard input and output if both are terminals, and otherwise nil.
func (h *host) terminal() (in, out *os.File) {
	in, _ = h.stdin.(*os.File)
	out, _ = h.stdout.(*os.File)
	if in == nil || out == nil || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return nil, nil
	}
	return in, out
}

// The method `top` shows the primitives below root until the user quits.
func (t *task) top(in, out *os.File, root string, every time.Duration) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return &statusError{exitOutput, err}
	}
	io.WriteString(out, "\x1b[?1049h\x1b[?25l") // use the alternate screen, and hide the cursor
	defer func() {
		io.WriteString(out, "\x1b[?25h\x1b[?1049l")
		term.Restore(int(in.Fd()), before)
	}()
	keys := make(chan string)
	go readKeys(in, keys)
	type looked struct {
		tree *look.Tree
		err  error
	}
	found, busy := make(chan looked, 1), false
	v, seen := &view{root: root}, &look.Memory{} // only one look at a time uses `seen`
	again := func() {
		if !busy {
			busy, v.looking = true, time.Now()
			go func() {
				tree, err := look.Look(t.waiting, t.session, root)
				if err == nil {
					seen.Note(tree)
				}
				found <- looked{tree, err}
			}()
		}
	}
	again()
	ticks := time.NewTicker(max(every, shortest))
	defer ticks.Stop()
	draws := time.NewTicker(250 * time.Millisecond) // for the ages, and for a new size of the window
	defer draws.Stop()
	for {
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil {
			width, height = 80, 24
		}
		if _, err := io.WriteString(out, v.draw(width, height, time.Now())); err != nil {
			return outputError(err)
		}
		select {
		case key, ok := <-keys:
			switch {
			case !ok || key == "q" || key == "\x03":
				return nil
			case key == "r":
				again()
			default:
				v.press(key, height)
			}
		case f := <-found:
			busy, v.looking = false, time.Time{}
			if f.err == nil {
				v.set(f.tree)
			} else if v.failure = f.err.Error(); exitOf(verdict(f.err, exitServers)) == exitUsage {
				return verdict(f.err, exitServers)
			}
		case <-ticks.C:
			again()
		case <-draws.C:
		case <-t.waiting.Done():
			return verdict(context.Cause(t.waiting), exitBusy)
		}
	}
}

// readKeys sends each pressed key to the channel `keys`, as a rune or a whole escape sequence.
func readKeys(in io.Reader, keys chan<- string) {
	defer close(keys)
	buf := make([]byte, 256)
	for {
		n, err := in.Read(buf)
		for _, key := range splitKeys(string(buf[:n])) {
			keys <- key
		}
		if err != nil {
			return
		}
	}
}

// splitKeys splits the bytes from a terminal into keys.
func splitKeys(in string) (keys []string) {
	for in != "" {
		n := 1
		if strings.HasPrefix(in, "\x1b[") || strings.HasPrefix(in, "\x1bO") {
			for n = 2; n < len(in) && (in[n] < '@' || in[n] > '~'); {
				n++
			}
			n = min(n+1, len(in))
		} else if _, size := utf8.DecodeRuneInString(in); size > 1 {
			n = size
		}
		keys = append(keys, in[:n])
		in = in[n:]
	}
	return keys
}

// The constant `overdue` is a time limit. If a look at the tree takes longer than that, zsync top
// marks its display as old.
const overdue = 5 * time.Second

// The type `view` is the content of top's screen.
type view struct {
	root    string
	rows    []summary
	lines   map[string][]look.Line // by path
	znodes  int
	looked  bool
	looking time.Time // the start of the current look, or zero
	failure string
	order   int     // the index of the current order in the list `orders`
	marked  summary // the marked row
	at      int     // the index of the marked row
	top     int     // the index of the first visible row
	detail  bool    // whether to show the contenders of the marked row
}

// The list `orders` has the ways to sort the rows.
var orders = []struct {
	name string
	less func(a, b summary) int
}{
	{"longest wait", func(a, b summary) int { return cmp.Or(rank(a)-rank(b), earlier(a.Oldest, b.Oldest)) }},
	{"longest hold", func(a, b summary) int { return earlier(cmp.Or(a.Held, a.Since), cmp.Or(b.Held, b.Since)) }},
	{"waiters", func(a, b summary) int { return b.Waiters - a.Waiters }},
	{"path", func(a, b summary) int { return 0 }},
}

// The function `rank` returns a number by which to sort rows. There are three groups, in this
// order: rows with waiters whose wait is not normal, rows whose waiters wait normally, such as
// standby candidates, and rows without waiters; see `calm`.
func rank(r summary) int {
	switch {
	case r.Waiters == 0:
		return 2
	case r.calm() != "":
		return 1
	}
	return 0
}

// The function `earlier` compares two times. A missing time counts as the latest.
func earlier(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// The method `set` makes v show the result of a look.
func (v *view) set(t *look.Tree) {
	v.rows, v.lines, v.znodes, v.looked, v.failure = sumUpAll(t), map[string][]look.Line{}, t.Znodes, true, ""
	if t.Cut {
		v.failure = fmt.Sprintf("there are more than %d znodes; the rest is left out", look.TooMany)
	}
	for _, p := range t.Places {
		v.lines[p.Path] = p.Lines
	}
	v.sort()
}

// The method `sort` sorts the rows. The marked primitive stays marked.
func (v *view) sort() {
	slices.SortStableFunc(v.rows, func(a, b summary) int {
		return cmp.Or(orders[v.order].less(a, b), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Kind, b.Kind))
	})
	if i := slices.IndexFunc(v.rows, func(r summary) bool { return r.Path == v.marked.Path && r.Kind == v.marked.Kind }); i >= 0 {
		v.at = i
	}
	v.mark(v.at)
}

// The method `mark` marks the row i, or the nearest row.
func (v *view) mark(i int) {
	if v.at = max(min(i, len(v.rows)-1), 0); len(v.rows) > 0 {
		v.marked = v.rows[v.at]
	}
}

// The method `press` carries out the command of a key.
func (v *view) press(key string, height int) {
	page := max(height-4, 1)
	switch key {
	case "s":
		v.order = (v.order + 1) % len(orders)
		v.marked, v.at, v.top = summary{}, 0, 0
		v.sort()
	case "\x1b[A", "\x1bOA", "k":
		v.mark(v.at - 1)
	case "\x1b[B", "\x1bOB", "j":
		v.mark(v.at + 1)
	case "\x1b[5~":
		v.mark(v.at - page)
	case "\x1b[6~":
		v.mark(v.at + page)
	case "\x1b[H", "\x1b[1~", "\x1bOH", "g":
		v.mark(0)
	case "\x1b[F", "\x1b[4~", "\x1bOF", "G":
		v.mark(len(v.rows) - 1)
	case "\r", "\n", "\x1b":
		v.detail = !v.detail && key != "\x1b"
	}
}

// The method `draw` returns the bytes that draw v on a terminal.
func (v *view) draw(width, height int, now time.Time) string {
	head := fmt.Sprintf("zsync top %s   %s   sorted by %s", plain(v.root), count(len(v.rows), "line"), orders[v.order].name)
	if !v.looked {
		head = "zsync top " + plain(v.root) + "   looking..."
	}
	if v.failure != "" {
		head += "   " + plain(v.failure)
	}
	if !v.looking.IsZero() && now.Sub(v.looking) > overdue {
		head += fmt.Sprintf("   looking for %s: what is shown is old", age(now, &v.looking))
	}
	room := max(height-3, 1)
	var body []string
	marked := -1
	if v.detail && len(v.rows) > 0 {
		body = v.drawDetail(now)
	} else {
		if v.at < v.top {
			v.top = v.at
		}
		v.top = max(min(v.top, len(v.rows)-room), v.at-room+1, 0)
		var b strings.Builder
		shown := v.rows[v.top:min(v.top+room, len(v.rows))]
		printList(&b, shown, now)
		body = strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		if len(shown) > 0 {
			marked = v.at - v.top + 1
		}
	}
	var out strings.Builder
	out.WriteString("\x1b[H")
	line := func(text string, style string) {
		out.WriteString(style + cut(text, width) + "\x1b[0m\x1b[K\r\n")
	}
	line(head, "\x1b[1m")
	for i, text := range body[:min(len(body), room+1)] {
		style := ""
		switch i {
		case 0:
			style = "\x1b[4m"
		case marked:
			style = "\x1b[7m"
			text += strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
		}
		line(text, style)
	}
	out.WriteString("\x1b[J" + "\x1b[" + fmt.Sprint(height) + ";1H\x1b[2m" + cut("q quit  s sort  arrows move  enter who  r look again", width) + "\x1b[0m")
	return out.String()
}

// drawDetail returns the lines of text about the contenders of the marked row.
func (v *view) drawDetail(now time.Time) []string {
	rows := []string{fmt.Sprintf("%s: %s", plain(v.marked.Path), v.marked.Kind)}
	for _, l := range v.lines[v.marked.Path] {
		if l.Kind != v.marked.Kind {
			continue
		}
		if l.Since == nil {
			rows = append(rows, l.State)
			continue
		}
		long := age(now, l.Since)
		if since, atMost := l.HeldSince(); l.Holding && atMost {
			long = held(now, nil, since)
		} else if l.Holding {
			long = age(now, since)
		}
		rows = append(rows, fmt.Sprintf("%-7s %-10s %8s   %s   session %s", l.State, l.Mode, long, printable(l.Owner), l.Session))
	}
	return rows
}

// The function `cut` shortens text to width columns.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(width, 0)])
}
