package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// This file writes the man pages and the shell completions, for packagers. The texts come from the
// commands.

func genCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gen",
		Short: "write man pages and completions, for packagers",
		Long:  "gen writes man pages or shell completions as files. zsync completion --help explains how\nto use completions without files.",
		RunE:  wantSubcommand,
	}
	cmd.AddCommand(
		genInto("man DIR", "write the man pages of all commands", writeMan),
		genInto("completion DIR", "write completions for bash, zsh, fish and PowerShell", writeCompletions),
	)
	return cmd
}

func genInto(use, short string, write func(root *cobra.Command, dir string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			err := os.MkdirAll(args[0], 0o755)
			if err == nil {
				err = write(cmd.Root(), args[0])
			}
			if err != nil {
				return &statusError{exitOutput, err}
			}
			return nil
		},
	}
}

func writeMan(root *cobra.Command, dir string) error {
	markUp(root)
	// A fixed date makes equal sources give equal files.
	built := time.Unix(0, 0).UTC()
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				built, _ = time.Parse(time.RFC3339, s.Value)
			}
		}
	}
	return writeManOf(root, dir, &built)
}

// writeManOf writes the pages of cmd and of its subcommands. The title of a page is the name of its
// command.
func writeManOf(cmd *cobra.Command, dir string, built *time.Time) error {
	hideUnused(cmd)
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	var page bytes.Buffer
	if err := doc.GenMan(cmd, &doc.GenManHeader{Title: strings.ToUpper(name), Section: "1", Source: "zsync", Manual: "zsync", Date: built}, &page); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".1"), page.Bytes(), 0o666); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			if err := writeManOf(sub, dir, built); err != nil {
				return err
			}
		}
	}
	return nil
}

// markUp changes the help texts of commands to Markdown for man pages. It leaves indented text
// unchanged.
func markUp(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	var b strings.Builder
	verbatim := false
	for line := range strings.Lines(cmd.Long) {
		if indented := strings.HasPrefix(line, "  "); indented != verbatim {
			b.WriteString("\n")
			verbatim = indented
		}
		if verbatim {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	cmd.Long = b.String()
	for _, c := range cmd.Commands() {
		markUp(c)
	}
}

func writeCompletions(root *cobra.Command, dir string) error {
	for _, f := range []struct {
		name  string
		write func(file string) error
	}{
		{"zsync.bash", func(file string) error { return root.GenBashCompletionFileV2(file, true) }},
		{"_zsync", root.GenZshCompletionFile},
		{"zsync.fish", func(file string) error { return root.GenFishCompletionFile(file, true) }},
		{"zsync.ps1", root.GenPowerShellCompletionFileWithDesc},
	} {
		if err := f.write(filepath.Join(dir, f.name)); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}
