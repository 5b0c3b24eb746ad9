package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file converts text to stored bytes and back, for elements, values and the INFO of members.
// By default, the form is JSON, like the default codec of the library, so that programs and the
// command can exchange data. value.go limits the length of input.

// The type `form` has the flags that select the stored form of text.
type form struct{ raw, text bool }

// addRaw adds --raw. The argument `what` is a plural noun for the help text.
func (f *form) addRaw(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&f.raw, "raw", false, what+" are bytes, as with zsync.Raw, not JSON")
}

// addText adds --text to a command that already has --raw. The argument `what` is a singular noun
// for the help text.
func (f *form) addText(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&f.text, "text", false, "store "+what+" as a JSON string, even if it is JSON itself, such as 42")
	cmd.MarkFlagsMutuallyExclusive("raw", "text")
}

// The method `encode` returns the stored form of text. Without a flag, it leaves JSON unchanged, so
// that programs can receive objects or numbers. It makes other text a JSON string.
func (f *form) encode(element []byte) ([]byte, error) {
	switch {
	case f.raw, !f.text && json.Valid(element):
		return element, nil
	case !utf8.Valid(element):
		return nil, fail(exitUsage, "neither JSON nor UTF-8: %s: add --raw, and read it with zsync.Raw", printable(beginning(element)))
	}
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	err := to.Encode(string(element))
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// encodeAll encodes each element of the input. The first error ends the output, and is its last
// entry.
func (f *form) encodeAll(in <-chan input) <-chan input {
	if f.raw {
		return in
	}
	out := make(chan input, cap(in))
	go func() {
		for next := range in {
			if next.err == nil {
				next.element, next.err = f.encode(next.element)
			}
			out <- next
			if next.err != nil {
				return
			}
		}
	}()
	return out
}

// The function `beginning` returns the first bytes of data, for use in a message.
func beginning(data []byte) string {
	const most = 64
	if len(data) > most {
		return string(data[:most]) + "…"
	}
	return string(data)
}

// The method `decode` returns stored bytes as text. For a JSON string, the text is its content. For
// other bytes, the text is the bytes themselves.
func (f *form) decode(stored []byte) []byte {
	if f.raw || !bytes.HasPrefix(stored, []byte(`"`)) {
		return stored
	}
	var text string
	if json.Unmarshal(stored, &text) != nil {
		return stored
	}
	return []byte(text)
}

// The method `check` checks the flags against the layout of the queue.
func (f *form) check(layout zsync.QueueLayout) error {
	if layout == zsync.LayoutZsync {
		return nil
	}
	if f.text {
		return fail(exitUsage, "--text does not go with --layout: other libraries know bytes")
	}
	f.raw = true
	return nil
}

// writeText writes an element as text, and then the byte that ends it.
func (q *queueing) writeText(w io.Writer, stored []byte) error {
	_, err := fmt.Fprintf(w, "%s%c", q.decode(stored), q.end())
	return outputError(err)
}
