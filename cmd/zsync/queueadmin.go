package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has the commands for whoever looks after a queue.

// withQueue connects to the queue at path.
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
		Short: "print the first element, and leave it where it is",
		Long: `peek writes the first element that nobody is about to receive. Exit status 75
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
				return writeElement(cmd.OutOrStdout(), element, q.end())
			})
		},
	}
	q.addFlags(cmd)
	q.addNull(cmd)
	return cmd
}

func clearCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   "clear PATH [flags]",
		Short: "remove all elements",
		Long: `clear removes the elements that nobody is about to receive, those for later too,
and prints how many there were. Dead letters stay: see zsync queue purge.`,
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

// A letterLine is a dead letter in JSON.
type letterLine struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
	Size  int       `json:"size"`
	Data  []byte    `json:"data"` // in base64
}

func deadCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "dead PATH [flags]",
		Short: "show the dead letters",
		Long: `dead lists the elements of the queue at PATH that were set aside, because they
could not be decoded or were delivered too often: their IDs, since when, how
many bytes they have and how they begin. With --json it prints an array of
objects with id, since, size, and data in base64.`,
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
					lines = append(lines, letterLine{d.ID, d.Since, len(d.Data), d.Data})
				}
				if asJSON {
					return outputError(writeJSON(cmd.OutOrStdout(), lines))
				}
				t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 3, ' ', 0)
				fmt.Fprintln(t, "ID\tSINCE\tBYTES\tDATA")
				for _, l := range lines {
					fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", plain(l.ID), l.Since.Local().Format(time.DateTime), l.Size, printable(string(l.Data)))
				}
				return outputError(t.Flush())
			})
		},
	}
	q.addFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// lettersCommand does something with each of the dead letters that are named.
func lettersCommand(c *client, name, short, long string, do func(zsync.DeadLetter, context.Context) error) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	all := false
	cmd := &cobra.Command{
		Use:   name + " PATH [ID...] [flags]",
		Short: short,
		Long:  long + "\n\nThe IDs are those of zsync queue dead; --all names all. The number of those done\nis printed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || all != (len(args) == 1) {
				return fail(exitUsage, "want: zsync queue %s PATH ID..., or zsync queue %s PATH --all", name, name)
			}
			return q.withQueue(cmd, args[0], func(ctx context.Context, queue *zsync.Queue[[]byte]) error {
				done, missing := 0, slices.Clone(args[1:])
				for d, err := range queue.Dead(ctx) {
					if err != nil {
						return err
					}
					if !all && !slices.Contains(missing, d.ID) {
						continue
					}
					if err := do(d, ctx); err != nil {
						return fmt.Errorf("%d done: %w", done, err)
					}
					done++
					missing = slices.DeleteFunc(missing, func(id string) bool { return id == d.ID })
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
	cmd.Flags().BoolVar(&all, "all", false, "all of them")
	return cmd
}

func requeueCommand(c *client) *cobra.Command {
	return lettersCommand(c, "requeue", "put dead letters back into the queue",
		"requeue puts dead letters at the end of the queue at PATH, as if they had just\nbeen sent.",
		zsync.DeadLetter.Requeue)
}

func purgeCommand(c *client) *cobra.Command {
	return lettersCommand(c, "purge", "delete dead letters",
		"purge deletes dead letters of the queue at PATH.",
		zsync.DeadLetter.Remove)
}
