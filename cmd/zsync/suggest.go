package main

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// This file suggests names for unknown commands and flags, and selects the flags in the help of a
// command. cobra parses the command line.

// otherWords maps flags of flock(1) and of other clients to zsync's flags for the same purpose.
var otherWords = map[string][]string{
	"addr": {"listen", "servers"}, "address": {"listen", "servers"}, "bind": {"listen"}, "port": {"listen"},
	"server": {"servers"}, "host": {"servers"}, "hosts": {"servers"}, "zookeeper": {"servers"},
	"wait": {"timeout"}, "nonblock": {"try"}, "nb": {"try"}, "exclusive": {"rw"}, "name": {"owner"}, "password": {"auth-file"},
	"count": {"permits"}, "workers": {"jobs"}, "parallel": {"jobs"}, "retries": {"max-attempts"}, "debug": {"verbose"},
}

// The constant `near` is the maximum distance between a word and a suggested name.
const near = 2

// The function `nearest` returns two kinds of names: the names with the least distance from `word`,
// if that distance is at most `near` and half of `word`, and the names that begin with `word`.
func nearest(word string, names []string) (found []string) {
	least := min(near, len(word)/2)
	for _, name := range names {
		least = min(least, distance(word, name))
	}
	for _, name := range names {
		if distance(word, name) == least || strings.HasPrefix(name, word) {
			found = append(found, name)
		}
	}
	return found
}

// The function `distance` returns the number of changes from a to b. A change replaces, adds or
// removes a letter, or exchanges two neighbours.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j], rows[i][j-1], rows[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// commandNames returns the names of the commands below cmd.
func commandNames(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return names
}

// didYouMean adds names as suggestions to a message.
func didYouMean(message string, names []string) string {
	if len(names) == 0 {
		return message
	}
	return message + "; did you mean " + strings.Join(names, " or ") + "?"
}

// unknownFlag matches the error of an unknown flag.
var unknownFlag = regexp.MustCompile(`^unknown flag: --(\S+)$`)

// wantedOf maps the parsers of package strconv to what a flag wants.
var wantedOf = map[string]string{"ParseInt": "a whole number", "ParseFloat": "a number", "ParseBool": "true or false"}

// suggestFlags adds similar flags to the error of an unknown flag. In the error of a wrong value, it
// replaces the text of package strconv.
func suggestFlags(cmd *cobra.Command, err error) error {
	if wrong := new(strconv.NumError); errors.As(err, &wrong) {
		want := "want " + wantedOf[wrong.Func]
		if wrong.Err == strconv.ErrRange {
			want = "out of range"
		}
		return errors.New(strings.Replace(err.Error(), wrong.Error(), want, 1))
	}
	m := unknownFlag.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	var names, found []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	for _, name := range otherWords[m[1]] {
		if slices.Contains(names, name) && len(found) == 0 {
			found = append(found, name)
		}
	}
	for _, name := range nearest(m[1], names) {
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	for i, name := range found {
		found[i] = "--" + name
	}
	return errors.New(didYouMean(err.Error(), found))
}

// The list `offline` has the commands that need no global flags, because they do not connect. The
// list `looking` has the commands that need no flag for a trace: they hold nothing.
var (
	offline = []string{"server", "verify", "gen", "version", "completion", "help"}
	looking = []string{"ls", "status", "top", "ui", "doctor"}
)

// hideUnused removes the global flags that cmd does not use from its help.
func hideUnused(cmd *cobra.Command) {
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		f.Hidden = slices.Contains(offline, top.Name()) || f.Name == "trace" && slices.Contains(looking, top.Name())
	})
}
