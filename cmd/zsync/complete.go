package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
)

// This file completes paths for shells. cobra completes commands and flags.

// The constant `completing` is the time limit of a completion. It is short, because a user has
// pressed the tab key and waits.
const completing = 1500 * time.Millisecond

// completePaths makes the shell complete the path arguments of all commands below cmd.
func completePaths(c *client, cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		completePaths(c, sub)
	}
	if !strings.Contains(cmd.Use, "PATH") {
		return
	}
	several := strings.Contains(cmd.Use, "PATH...")
	after := cobra.ShellCompDirectiveNoFileComp
	if strings.Contains(cmd.Use, "CMD") {
		after = cobra.ShellCompDirectiveDefault // complete files
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		// Search the command line for a --, except its last word, which is incomplete. The
		// arguments from cobra do not show this: cobra appends a -- to them.
		command := slices.Contains(c.args[:len(c.args)-1], "--")
		if command || len(args) > 0 && !several {
			return nil, after
		}
		return c.candidates(cmd.Context(), begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// The method `candidates` returns the paths that begin with the text `begun`, up to the next slash.
// It prints errors to standard error, which shells do not show.
func (c *client) candidates(ctx context.Context, begun string) []string {
	if begun == "" {
		begun = "/"
	}
	switch {
	case c.servers == "":
		c.say(errors.New("no paths to complete: ZSYNC_SERVERS is not set"))
		return nil
	case begun[0] != '/':
		c.say(fmt.Errorf("no paths to complete: %s does not begin with a slash", printable(begun)))
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completing)
	defer cancel()
	s, err := c.open(ctx)
	if err != nil {
		c.say(fmt.Errorf("no paths to complete: %w", errors.Unwrap(err)))
		return nil
	}
	defer s.Close()
	found := places(ctx, s, path.Dir(begun+"x"))
	found = slices.DeleteFunc(found, func(p string) bool { return !strings.HasPrefix(p, begun) })
	if len(found) == 1 && len(places(ctx, s, found[0])) > 0 {
		return append(found, found[0]+"/") // so that the user can stop here or continue
	}
	return found
}

// The function `places` returns the paths of the children of dir, except children that are parts of
// a primitive.
func places(ctx context.Context, s *zsync.Session, dir string) (paths []string) {
	names, _, err := s.Children(ctx, dir)
	if err != nil {
		return nil
	}
	for _, name := range names {
		of, beside := kinds.Beside(name)
		if kinds.Part(name, names) || beside && slices.Contains(names, of) || dir == "/" && name == "zookeeper" {
			continue
		}
		paths = append(paths, path.Join(dir, name))
	}
	slices.Sort(paths)
	return paths
}
