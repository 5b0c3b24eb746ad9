package main

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// A statusLine writes messages to standard error. On a terminal, its last line can show a text that changes; the
// messages appear above it.
type statusLine struct {
	mu    sync.Mutex
	w     io.Writer
	width func() int // columns of the terminal; 0 if zsync must not rewrite a line there
	shown string     // guarded by mu
}

// eraseLine returns to the beginning of the line and erases it.
const eraseLine = "\r\x1b[K"

// show replaces the text. It does nothing and returns false if there is no terminal for it.
func (l *statusLine) show(text string) bool {
	width := l.width()
	if width == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = cut(text, width-1) // the cursor keeps its line
	io.WriteString(l.w, eraseLine+l.shown)
	return true
}

// clear erases the text.
func (l *statusLine) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown != "" {
		l.shown = ""
		io.WriteString(l.w, eraseLine)
	}
}

// Write writes messages, each of whole lines.
func (l *statusLine) Write(messages []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown == "" {
		return l.w.Write(messages)
	}
	io.WriteString(l.w, eraseLine)
	n, err := l.w.Write(messages)
	io.WriteString(l.w, l.shown)
	return n, err
}

// columns returns the width of the terminal that w is. It returns 0 if w is none, and if zsync runs in the
// background, where a prompt has the last line.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || !inForeground() {
		return 0
	}
	return width
}
