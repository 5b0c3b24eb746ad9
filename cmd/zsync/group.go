package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync group: it joins a group while a command runs, and lists and watches the
// members. hold.go runs the command.

func groupCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "join a group, and list its members",
		Long: `A group lists its members. Each has an id, and some text (INFO), such as an
address. It is a zsync.Group with the default codec, zsync.JSON: INFO that is JSON is
stored and printed unchanged; other text is stored as a JSON string. With --raw, INFO
is bytes, as with zsync.Raw and in Curator's GroupMember. With --kazoo, the group can
share its path with kazoo's Party.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(joinCommand(c), membersCommand(c), groupWatchCommand(c))
	return cmd
}

type group = zsync.Group[[]byte]

// The type `grouping` has the flags for a group.
type grouping struct {
	holding
	form
}

func newGrouping(c *client) *grouping { return &grouping{holding: *newHolding(c)} }

func (h *grouping) addFlags(cmd *cobra.Command) {
	h.addTimeout(cmd)
	h.addKazoo(cmd, "Party", "GroupMember")
	h.addRaw(cmd, "INFO texts")
}

func (h *grouping) group(s *zsync.Session, path string) *group {
	layout := zsync.LayoutCurator
	if h.kazoo {
		layout = zsync.LayoutKazoo
	}
	return zsync.NewGroup[[]byte](s, path, zsync.WithCodec(zsync.Raw), zsync.WithLayout(layout))
}

func joinCommand(c *client) *cobra.Command {
	h := newGrouping(c)
	cmd := &cobra.Command{
		Use:   "join PATH ID [INFO] [flags] [-- CMD [ARG...]]",
		Short: "be a member while a command runs",
		Long: `zsync group join makes ID a member of the group at PATH until the command ends or,
without a command, until a signal ends zsync. While another process has that ID, zsync
waits. After --timeout, it exits with status 75.

If the session is lost, the member joins again and the command continues: a group is a
list of processes, not a lock. If the servers refuse that, zsync prints the reason.`,
		Example: `  zsync group join /services/billing "$(hostname)" 10.0.0.7:8080 -- ./billing`,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, argv := len(args), []string(nil)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				n, argv = dash, args[dash:]
			}
			switch {
			case n > 3 && argv == nil:
				return fail(exitUsage, "there is no -- before the command; want: %s", cmd.UseLine())
			case n < 2, n > 3, argv != nil && len(argv) == 0:
				return fail(exitUsage, "want: %s", cmd.UseLine())
			case args[1] == "":
				return fail(exitUsage, "the ID is empty; want: %s", cmd.UseLine())
			case h.kazoo && n == 3:
				return fail(exitUsage, "--kazoo: kazoo's members have no INFO")
			}
			info, err := h.encodeInfo(args[2:n])
			if err != nil {
				return err
			}
			return h.join(cmd, args[0], args[1], info, argv)
		},
	}
	h.addFlags(cmd)
	h.addText(cmd, "INFO")
	h.addBusy(cmd)
	return cmd
}

// noInfo is stored for a member without INFO. A program decodes it as the zero value of its type.
const noInfo = "null"

// encodeInfo returns the stored form of INFO, which may be missing.
func (h *grouping) encodeInfo(args []string) ([]byte, error) {
	switch {
	case len(args) > 0:
		return h.encode([]byte(args[0]))
	case h.raw:
		return nil, nil
	}
	return []byte(noInfo), nil
}

// decodeInfo returns the text of a stored INFO, or "" if there is none.
func (h *grouping) decodeInfo(stored []byte) string {
	if !h.raw && string(stored) == noInfo {
		return ""
	}
	return string(h.decode(stored))
}

// The method `join` makes this process a member of the group while argv runs. Without argv, the
// process is a member until a signal comes.
func (h *grouping) join(cmd *cobra.Command, path, id string, info []byte, argv []string) error {
	t, err := h.begin(cmd.Context(), argv, path)
	if err != nil {
		return err
	}
	defer t.session.Close()
	g := h.group(t.session, path)
	stop := t.narrateOf(func() string { return t.member(g, id) })
	m, err := g.Join(t.waiting, id, info)
	stop(err == nil)
	var late *lateError
	if errors.As(err, &late) {
		return t.inVain(err, colon(t.member(g, id)))
	}
	if err != nil {
		return verdict(err, t.busy)
	}
	defer m.Leave() // otherwise, the membership ends with the session
	if argv != nil {
		return t.run(nil, nil) // no loss stops the command, because a Membership joins again after a loss
	}
	t.stop() // --timeout limits only the call of Join
	ctx, done := untilSignalOf(context.Background(), t.signals)
	defer done()
	if t.waiting.Err() == nil {
		<-ctx.Done()
		return verdict(context.Cause(ctx), t.busy)
	}
	return verdict(context.Cause(t.waiting), t.busy)
}

// The method `member` returns a text about the member with the id. If it finds no such member, it
// returns "".
func (t *task) member(g *group, id string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.waiting), asking)
	defer cancel()
	ms, err := g.Members(ctx)
	if err != nil {
		return ""
	}
	for _, m := range ms {
		if m.ID == id && m.Session != t.session.ID() {
			return fmt.Sprintf("%s is a member since %s", printable(id), m.Since.Local().Format(time.DateTime))
		}
	}
	return ""
}

// A memberLine is a member in JSON.
type memberLine struct {
	ID      string    `json:"id"`
	Info    string    `json:"info"`
	Session string    `json:"session"`
	Since   time.Time `json:"since"`
}

func (h *grouping) memberLines(ms []zsync.Member[[]byte]) []memberLine {
	lines := make([]memberLine, len(ms))
	for i, m := range ms {
		lines[i] = memberLine{m.ID, h.decodeInfo(m.Info), fmt.Sprintf("%#x", uint64(m.Session)), m.Since}
	}
	return lines
}

func membersCommand(c *client) *cobra.Command {
	h := newGrouping(c)
	asJSON := false
	cmd := &cobra.Command{
		Use:   "members PATH [flags]",
		Short: "list the members",
		Long: `zsync group members lists the members of the group at PATH. --json prints an array of
objects with the fields id, info, session and since.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return h.connected(cmd, args[0], func(ctx context.Context, s *zsync.Session) error {
				ms, err := h.group(s, args[0]).Members(ctx)
				if err != nil {
					return err
				}
				lines := h.memberLines(ms)
				if asJSON {
					return outputError(writeJSON(cmd.OutOrStdout(), lines))
				}
				return outputError(printMembers(cmd.OutOrStdout(), lines))
			})
		},
	}
	h.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printMembers(w io.Writer, lines []memberLine) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "ID\tSINCE\tSESSION\tINFO")
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", printable(l.ID), l.Since.Local().Format(time.DateTime), l.Session, dash(printable(l.Info)))
	}
	t.Flush()
	_, err := b.WriteTo(w)
	return err
}

func groupWatchCommand(c *client) *cobra.Command {
	h := newGrouping(c)
	n := 0
	cmd := &cobra.Command{
		Use:   "watch PATH [flags]",
		Short: "print the members after each change",
		Long: `zsync group watch prints the members of the group at PATH, now and after each change, as
one line of JSON: an array, as members --json prints it. It ends with a signal, with
--timeout, or after --count lines.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return h.connected(cmd, args[0], func(ctx context.Context, s *zsync.Session) error {
				g := h.group(s, args[0])
				if _, err := g.Members(ctx); err != nil {
					return err // such as no permission, or no such path
				}
				return follow(ctx, cmd, n, args[0], g.Watch(ctx), func(w io.Writer, ms []zsync.Member[[]byte]) error {
					return writeLine(w, h.memberLines(ms))
				})
			})
		},
	}
	h.addFlags(cmd)
	addCount(cmd, &n, "lines")
	return cmd
}
