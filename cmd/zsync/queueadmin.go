package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has the subcommands of zsync queue for operators: they show a queue, pause it, and
// handle dead letters. queue.go has the producer, and queuerecv.go the consumer.

// withQueue connects to the queue at path, and calls `do`.
func (q *queueing) withQueue(cmd *cobra.Command, path string, do func(ctx context.Context, queue *zsync.Queue[[]byte]) error) error {
	t, queue, err := q.open(cmd, path)
	if err != nil {
		return err
	}
	defer t.session.Close()
	return verdict(do(t.waiting, queue), exitBusy)
}

func peekCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   "peek PATH [flags]",
		Short: "print the first element, and leave it in the queue",
		Long: `zsync queue peek writes the first element that no consumer has claimed. Exit status 75
means that there is none.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				element, ok, err := queue.Peek(ctx)
				if err == nil && !ok {
					err = fail(exitBusy, "%s: there is no element", args[0])
				}
				if err != nil {
					return err
				}
				return q.writeText(cmd.OutOrStdout(), element)
			})
		},
	}
	q.addFlags(cmd)
	q.addNull(cmd)
	q.addRaw(cmd, "elements")
	return cmd
}

func clearCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   "clear PATH [flags]",
		Short: "remove all elements",
		Long: `zsync queue clear removes the elements that no consumer has claimed, delayed elements
too, and prints their number. Dead letters stay: see zsync queue purge.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				n, err := queue.Clear(ctx)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
				return outputError(err)
			})
		},
	}
	q.addFlags(cmd)
	return cmd
}

func cancelCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   "cancel PATH ID [flags]",
		Short: "remove the element that was sent with an ID",
		Long: `zsync queue cancel removes the element of the queue at PATH that was sent with --id ID,
if no consumer has claimed it. Exit status 75 means that it is claimed, or no longer in
the queue. The ID is still remembered.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch err := q.needOwn(true, cmd.CommandPath()); {
			case len(args) != 2:
				return fail(exitUsage, "want: %s", cmd.UseLine())
			case err != nil:
				return err
			case args[1] == "":
				return fail(exitUsage, "the ID is empty")
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				removed, err := queue.Cancel(ctx, args[1])
				if err == nil && !removed {
					err = fail(exitBusy, "%s: there is no element with the ID %s, or a consumer has received it", args[0], printable(args[1]))
				}
				return err
			})
		},
	}
	q.addFlags(cmd)
	return cmd
}

// A statsLine is the JSON form of a queue's numbers.
type statsLine struct {
	Ready    int          `json:"ready"`
	Claimed  int          `json:"claimed"`
	Delayed  int          `json:"delayed"`
	Dead     int          `json:"dead"`
	Attempts int          `json:"attempts"`
	Oldest   *time.Time   `json:"oldest,omitempty"`
	Paused   bool         `json:"paused"`
	Holders  []holderLine `json:"holders"`
}

type holderLine struct {
	Owner   string `json:"owner"`
	Claimed int    `json:"claimed"`
}

func statsCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "stats PATH [flags]",
		Short: "count elements, and list the consumers that claimed them",
		Long: `zsync queue stats prints how many elements of the queue at PATH are ready, claimed,
delayed or dead letters; how long the oldest ready element has waited; the highest
number of attempts of one unclaimed element; and the consumers, with the number of
elements that each has claimed. An element that moves during the count can be counted
twice or not at all. If the queue is paused, a last line says so.

With --json it prints an object with ready, claimed, delayed, dead, attempts, oldest
(a time), paused and holders (an array of objects with owner and claimed).`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				st, err := queue.Stats(ctx)
				if err != nil {
					return err
				}
				l := statsLine{Ready: st.Ready, Claimed: st.Claimed, Delayed: st.Delayed, Dead: st.Dead, Attempts: st.Attempts, Paused: st.Paused, Holders: []holderLine{}}
				if !st.Oldest.IsZero() {
					l.Oldest = &st.Oldest
				}
				for _, h := range st.Holders {
					l.Holders = append(l.Holders, holderLine(h))
				}
				if asJSON {
					return outputError(writeJSON(cmd.OutOrStdout(), l))
				}
				return outputError(l.print(cmd.OutOrStdout(), time.Now()))
			})
		},
	}
	q.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (l statsLine) print(w io.Writer, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "ready\t%d\nclaimed\t%d\ndelayed\t%d\ndead\t%d\noldest\t%s\nattempts\t%d\n", l.Ready, l.Claimed, l.Delayed, l.Dead, age(now, l.Oldest), l.Attempts)
	for _, h := range l.Holders {
		owner := h.Owner
		if owner == "" {
			owner = "a session that has ended"
		}
		fmt.Fprintf(t, "claimed by %s\t%d\n", printable(owner), h.Claimed)
	}
	if l.Paused {
		fmt.Fprintln(t, "paused\tyes: see zsync queue resume")
	}
	return t.Flush()
}

// orderCommand returns a command that calls `do` for the queue in its argument.
func orderCommand(c *client, name, short, long string, do func(*zsync.Queue[[]byte], context.Context) error) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   name + " PATH [flags]",
		Short: short,
		Long:  long,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if err := q.needOwn(true, cmd.CommandPath()); err != nil {
				return err
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error { return do(queue, ctx) })
		},
	}
	q.addFlags(cmd)
	return cmd
}

func pauseCommand(c *client) *cobra.Command {
	return orderCommand(c, "pause", "stop all consumers until zsync queue resume",
		`zsync queue pause stops all consumers of the queue at PATH, programs and commands,
until zsync queue resume. Work on claimed elements continues; the work has ended when
zsync queue stats shows none claimed. Elements can still be sent. A pause outlasts this
command.`,
		(*zsync.Queue[[]byte]).Pause)
}

func resumeCommand(c *client) *cobra.Command {
	return orderCommand(c, "resume", "end a pause",
		`zsync queue resume ends the pause of the queue at PATH. It does nothing if the queue
is not paused.`,
		(*zsync.Queue[[]byte]).Resume)
}

// An itemLine is the JSON form of an element.
type itemLine struct {
	ID       string     `json:"id"`
	State    string     `json:"state"`
	Attempts int        `json:"attempts"`
	Sent     time.Time  `json:"sent"`
	Due      *time.Time `json:"due,omitempty"`
	Owner    string     `json:"owner,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Data     []byte     `json:"data"` // in base64
}

func itemsCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	states := []zsync.QueueState{zsync.QueueReady, zsync.QueueClaimed, zsync.QueueDelayed, zsync.QueueDead}
	asJSON, only := false, ""
	cmd := &cobra.Command{
		Use:   "ls PATH [flags]",
		Short: "list the elements",
		Long: `zsync queue ls lists the elements of the queue at PATH, and leaves them there: ready,
claimed and delayed elements, and dead letters. Each line has the state, the ID, the
number of attempts that have ended, the time of sending, a note, and the element. The
note is the consumer of a claimed element, the time until which a delayed element waits,
or the reason of a dead letter. An element that moves during the list can be missing, or
be listed twice.

With --json it prints an object in each line, with id, state, attempts, sent, due,
owner, reason and data (as stored, in base64).`,
		Example: "  zsync queue ls /jobs\n  zsync queue ls /jobs --state claimed --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if err := q.needOwn(true, cmd.CommandPath()); err != nil {
				return err
			}
			if only != "" {
				i := slices.IndexFunc(states, func(s zsync.QueueState) bool { return s.String() == only })
				if i < 0 {
					return fail(exitUsage, "--state %s: want ready, claimed, delayed or dead", printable(only))
				}
				states = states[i : i+1]
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				out := bufio.NewWriter(cmd.OutOrStdout())
				t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
				if !asJSON {
					fmt.Fprintln(t, "STATE\tID\tATTEMPTS\tSENT\tNOTE\tDATA")
				}
				n := 0
				for _, state := range states {
					for item, err := range queue.List(ctx, state) {
						if err != nil && item.ID == "" {
							return err
						}
						if asJSON {
							err = writeLine(out, itemLineOf(item))
						} else {
							err = q.printItem(t, item)
						}
						if n++; err == nil && n%100 == 0 { // print a long list while it is read
							err = errors.Join(t.Flush(), out.Flush())
						}
						if err != nil {
							return outputError(err)
						}
					}
				}
				return outputError(errors.Join(t.Flush(), out.Flush()))
			})
		},
	}
	q.addFlags(cmd)
	q.addRaw(cmd, "elements")
	cmd.Flags().StringVar(&only, "state", "", "only this `STATE`: ready, claimed, delayed or dead")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func itemLineOf(item zsync.QueueItem[[]byte]) itemLine {
	l := itemLine{ID: item.ID, State: item.State.String(), Attempts: item.Attempts, Sent: item.Sent, Owner: item.Owner, Reason: item.Reason, Data: item.Data}
	if !item.Due.IsZero() {
		l.Due = &item.Due
	}
	return l
}

func (q *queueing) printItem(w io.Writer, item zsync.QueueItem[[]byte]) error {
	note := cmp.Or(item.Owner, item.Reason)
	if !item.Due.IsZero() {
		note = "due " + item.Due.Local().Format(time.DateTime)
	}
	_, err := fmt.Fprintf(w, "%v\t%s\t%d\t%s\t%s\t%s\n", item.State, plain(item.ID), item.Attempts, item.Sent.Local().Format(time.DateTime), dash(printable(note)), printable(string(q.decode(item.Data))))
	return err
}

// A letterLine is the JSON form of a dead letter.
type letterLine struct {
	ID       string     `json:"id"`
	Since    time.Time  `json:"since"`
	Attempts int        `json:"attempts"`
	First    *time.Time `json:"first,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Size     int        `json:"size"`
	Data     []byte     `json:"data"` // in base64
}

func deadCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "dead PATH [flags]",
		Short: "list the dead letters",
		Long: `zsync queue dead lists the dead letters of the queue at PATH: elements that could not be
decoded, failed too often, or were rejected. For each it prints the ID, the time, the
number of attempts, the reason and the element. With --json it prints an array of
objects with id, since, attempts, first (when it was sent), reason, size in bytes, and
data (as stored, in base64).`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				lines := []letterLine{}
				for d, err := range queue.Dead(ctx) {
					if err != nil {
						return err
					}
					l := letterLine{ID: d.ID, Since: d.Since, Attempts: d.Attempts, Reason: d.Reason, Size: len(d.Data), Data: d.Data}
					if !d.First.IsZero() {
						l.First = &d.First
					}
					lines = append(lines, l)
				}
				if asJSON {
					return outputError(writeJSON(cmd.OutOrStdout(), lines))
				}
				t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
				fmt.Fprintln(t, "ID\tSINCE\tATTEMPTS\tREASON\tDATA")
				for _, l := range lines {
					fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\n", plain(l.ID), l.Since.Local().Format(time.DateTime), l.Attempts, dash(printable(l.Reason)), printable(string(q.decode(l.Data))))
				}
				return outputError(t.Flush())
			})
		},
	}
	q.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// lettersCommand returns a command that calls `do` for the dead letters in its arguments.
func lettersCommand(c *client, name, short, long string, do func(*zsync.Queue[[]byte], context.Context, func(zsync.DeadLetter) bool) (int, error)) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	all := false
	cmd := &cobra.Command{
		Use:   name + " PATH [ID...] [flags]",
		Short: short,
		Long:  long + "\n\nName dead letters by their IDs, which zsync queue dead prints, or all of them with\n--all. The command prints their number.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || all != (len(args) == 1) {
				return fail(exitUsage, "want: zsync queue %s PATH ID..., or zsync queue %s PATH --all", name, name)
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				missing := slices.Clone(args[1:])
				done, err := do(queue, ctx, func(d zsync.DeadLetter) bool {
					named := all || slices.Contains(missing, d.ID)
					missing = slices.DeleteFunc(missing, func(id string) bool { return id == d.ID })
					return named
				})
				if err != nil {
					return fmt.Errorf("%d done: %w", done, err)
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), done); err != nil {
					return outputError(err)
				}
				if len(missing) > 0 {
					return fail(exitBusy, "%s: there is no dead letter %s", args[0], missing[0])
				}
				return nil
			})
		},
	}
	q.addFlags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all dead letters")
	return cmd
}

func requeueCommand(c *client) *cobra.Command {
	return lettersCommand(c, "requeue", "put dead letters back into the queue",
		"zsync queue requeue puts dead letters at the end of the queue at PATH, as if they had\njust been sent.",
		(*zsync.Queue[[]byte]).RequeueDead)
}

func purgeCommand(c *client) *cobra.Command {
	return lettersCommand(c, "purge", "delete dead letters",
		"zsync queue purge deletes dead letters of the queue at PATH.",
		(*zsync.Queue[[]byte]).PurgeDead)
}
