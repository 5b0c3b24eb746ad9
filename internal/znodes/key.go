package znodes

// This file converts any string into the name of a znode, and back.

import (
	"fmt"
	"net/url"
	"strings"
)

// NameOfKey returns a znode name for any string. Characters that a name cannot contain are escaped,
// as in a URL.
func NameOfKey(key string) string {
	switch key {
	case "":
		return "%"
	case ".":
		return "%2E"
	case "..":
		return "%2E%2E"
	}
	var b strings.Builder
	for i, r := range key {
		size := len(string(r))
		if r == '\uFFFD' && !strings.HasPrefix(key[i:], "\uFFFD") {
			size = 1 // not UTF-8
		}
		if r == '%' || r == '/' || checkPathText("/"+key[i:i+size]) != nil && r != '.' {
			for _, c := range []byte(key[i : i+size]) {
				fmt.Fprintf(&b, "%%%02X", c)
			}
			continue
		}
		b.WriteString(key[i : i+size])
	}
	return b.String()
}

// KeyOfName returns the string for which NameOfKey returns `name`. If there is no such string, `ok`
// is false.
func KeyOfName(name string) (key string, ok bool) {
	if name == "%" {
		return "", true
	}
	key, err := url.PathUnescape(name)
	return key, err == nil && NameOfKey(key) == name
}
