package main

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// This file writes to standard error so that messages and a changing line do not mix. waiting.go
// and outage.go have the texts.

// A statusLine writes messages to standard error. On a terminal, its last line can show a text that
// changes, below the messages.
type statusLine struct {
	mu    sync.Mutex
	w     io.Writer
	width func() int // the width of the terminal, or 0 if zsync must not draw there
	shown string     // guarded by mu
}

// eraseLine is a sequence that moves the cursor to the start of the line and erases the line.
const eraseLine = "\r\x1b[K"

// The method `show` replaces the changing text. If there is no terminal to draw on, `show` does
// nothing and returns false.
func (l *statusLine) show(text string) bool {
	width := l.width()
	if width == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = cut(text, width-1) // so that the cursor stays in its line
	io.WriteString(l.w, eraseLine+l.shown)
	return true
}

// The method `clear` erases the changing text.
func (l *statusLine) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown != "" {
		l.shown = ""
		io.WriteString(l.w, eraseLine)
	}
}

// Write writes messages, which are whole lines, above the text.
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

// The function `columns` returns the width of the terminal w. It returns 0 if w is no terminal. It
// also returns 0 if zsync runs in the background, because the last line then has the shell's
// prompt.
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
