package gosync

import (
	"fmt"
	"strconv"
)

// This file converts the keys and values of Go's tests, which have any type, to the texts that
// zsync stores.

// Text returns the text of v: a letter for its type, followed by the value.
func Text(v any) string {
	switch v := v.(type) {
	case nil:
		return "n"
	case string:
		return "s" + v
	case int:
		return "i" + strconv.Itoa(v)
	case int64:
		return "l" + strconv.FormatInt(v, 10)
	}
	return fmt.Sprintf("p%p", v) // a pointer: no test reads its value back
}

// Value is the inverse of Text.
func Value(text string) any {
	if text == "" {
		panic("BUG: a value without a type")
	}
	switch rest := text[1:]; text[0] {
	case 'n':
		return nil
	case 's':
		return rest
	case 'i':
		n, err := strconv.Atoi(rest)
		Must(err)
		return n
	case 'l':
		n, err := strconv.ParseInt(rest, 10, 64)
		Must(err)
		return n
	}
	panic(fmt.Sprintf("BUG: a value %q", text))
}
