//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/zsync/zsync/zktest"
)

// aLine has a correct command line of each command that takes a path.
var aLine = []string{
	"lock PATH -- true", "rlock PATH -- true", "semaphore -n 2 PATH -- true", "elect PATH -- true", "once PATH -- true",
	"barrier wait PATH", "barrier close PATH", "barrier open PATH", "barrier enter -n 2 PATH", "barrier leave -n 2 PATH",
	"queue send PATH x", "queue cancel PATH 7", "queue recv PATH", "queue len PATH", "queue stats PATH", "queue ls PATH",
	"queue peek PATH", "queue clear PATH", "queue pause PATH", "queue resume PATH", "queue dead PATH",
	"queue requeue PATH 7", "queue purge PATH 7",
	"value get PATH", "value set PATH x", "value watch PATH",
	"map get PATH k", "map set PATH k v", "map delete PATH k", "map list PATH", "map watch PATH", "map clear PATH",
	"int get PATH", "int set PATH 1", "int add PATH 1", "int watch PATH",
	"group join PATH a -- true", "group members PATH", "group watch PATH",
	"schedule do PATH --every 1h -- true", "schedule run PATH --every 1h -- true", "schedule last PATH",
	"status PATH", "ls PATH", "ui PATH", "doctor PATH", "top PATH",
}

// A wrong argument ends a command before it connects, with a message that names the argument.
func TestEachCommandRefusesEachWrongPathAndEachWrongValueOfAFlag(t *testing.T) {
	values := map[string][]string{ // by the type of the flag
		"time":    {"", "x", " 1", "5x", "-1", "1e300", "\x00", "\xff"},
		"int":     {"", "x", " 1", "1.5", "5s", "99999999999999999999", "\x00", "\xff"},
		"int64":   {"", "x", " 1", "1.5", "5s", "99999999999999999999", "\x00", "\xff"},
		"float64": {"", "x", " 1", "5s", "1e999", "\x00", "\xff"},
		"bool":    {"x", "2", "\xff"},
	}
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		refused := func(names string, args ...string) {
			t.Helper()
			r := start(t, "127.0.0.1:1", "", args...)
			status, text := r.wait(), r.stderr.String()
			if status != exitUsage || !strings.Contains(text, names) || strings.Contains(text, "strconv") || strings.Count(text, "\n") != 1 {
				t.Errorf("zsync %q: exit status %d and %q, which must name %s", args, status, text, names)
			}
		}
		root, missing := newRoot(thisHost()), map[*cobra.Command]bool{}
		var visit func(cmd *cobra.Command)
		visit = func(cmd *cobra.Command) {
			missing[cmd] = strings.Contains(cmd.Use, "PATH")
			words := strings.Fields(cmd.CommandPath())[1:]
			flags := func(f *pflag.Flag) {
				for _, value := range values[f.Value.Type()] {
					refused("--"+f.Name, append(words, "--"+f.Name+"="+value)...)
				}
			}
			if cmd.HasParent() && !cmd.HasSubCommands() {
				cmd.LocalNonPersistentFlags().VisitAll(flags)
			}
			cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) {
				words = []string{"ls"}
				flags(f)
			})
			for _, c := range cmd.Commands() {
				visit(c)
			}
		}
		visit(root)
		for _, line := range aLine {
			args := strings.Fields(line)
			cmd, _, err := root.Find(args)
			if err != nil {
				t.Fatal(err)
			}
			missing[cmd] = false
			if line == "top PATH" {
				continue // without a terminal, it says so first
			}
			for _, path := range []string{"", "p", "/p/", "//p", "/p//q", "/p/../q", "/./p", "/p\x00", "/p\x1b[2J", "/\xff"} {
				with := strings.Fields(line)
				for i := range with {
					if with[i] == "PATH" {
						with[i] = path
					}
				}
				refused("path", with...)
			}
			var without []string
			for _, word := range args {
				if word == "--" {
					break
				}
				if word != "PATH" && word != "x" && word != "7" && word != "k" && word != "v" && word != "a" {
					without = append(without, word)
				}
			}
			if !strings.Contains(cmd.Use, "[PATH]") && !strings.HasPrefix(line, "int ") {
				refused("want: "+cmd.CommandPath(), without...)
			}
		}
		for cmd, is := range missing {
			if is {
				t.Errorf("%s has no line here", cmd.CommandPath())
			}
		}
	})
}
