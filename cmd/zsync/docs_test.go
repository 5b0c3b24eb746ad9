package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// What documents and examples tell to type is a command with flags that there are.
func TestEveryCommandOfTheDocumentsExists(t *testing.T) {
	lines := map[string][]string{}
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(documents, "../../README.md") {
		if slices.Contains([]string{"design.md", "decisions.md", "guarantees.md"}, filepath.Base(name)) {
			continue // they quote data and file maps that begin like a command
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)^    (.*)$|`(zsync [^`]*)`").FindAllStringSubmatch(string(text), -1) {
			lines[name] = append(lines[name], m[1]+m[2])
		}
	}
	var examples func(cmd *cobra.Command)
	examples = func(cmd *cobra.Command) {
		lines[cmd.CommandPath()] = strings.Split(cmd.Example, "\n")
		for _, c := range cmd.Commands() {
			examples(c)
		}
	}
	examples(newRoot(thisHost()))
	seen := 0
	for where, all := range lines {
		for _, line := range all {
			line, _, _ = strings.Cut(line, " #")
			for _, m := range regexp.MustCompile(`(?:^|[;|(] *)\bzsync ([^;|)]*)`).FindAllStringSubmatch(strings.TrimSpace(line), -1) {
				text := regexp.MustCompile(`\bN\b`).ReplaceAllString(strings.TrimSuffix(strings.TrimSpace(m[1]), "…"), "3")
				args := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(text, -1)
				seen++
				if err := parses(args); err != nil {
					t.Errorf("%s: zsync %s: %v", where, m[1], err)
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d commands were found", seen)
	}
	for _, bad := range []string{"lokc /p", "queue recv /q --bogus", "ls --interval x"} {
		if parses(strings.Fields(bad)) == nil {
			t.Errorf("zsync %s passes", bad)
		}
	}
}

// parses says what is wrong with a command line, as far as names and flags go.
func parses(args []string) error {
	root := newRoot(thisHost())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(behindDashes(root, withoutValue(root, args)))
	if err != nil || len(rest) > 0 && rest[0] == "--help" {
		return err
	}
	if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return wantSubcommand(cmd, rest)
	}
	return cmd.ParseFlags(rest)
}
