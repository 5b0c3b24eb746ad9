package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has the subcommands of zsync int, which use an Int64. It also makes negative numbers
// possible as arguments. queuetext.go converts other values.

func intCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "int",
		Short: "read, change and watch a shared number",
		Long: `An int is a whole number that programs on different machines share. It is a
zsync.Int64, and can share its path with kazoo's Counter or, with --curator, with
Curator's DistributedAtomicLong. A new int is 0.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(
		intGetCommand(c),
		intSetCommand(c),
		intAddCommand(c),
		intWatchCommand(c),
	)
	return cmd
}

// The type `number` has the flags of the subcommands of zsync int.
type number struct {
	*holding
	curator bool
}

func newNumber(c *client) *number { return &number{holding: newHolding(c)} }

func (n *number) addFlags(cmd *cobra.Command) {
	n.addTimeout(cmd)
	cmd.Flags().BoolVar(&n.curator, "curator", false, "share the path with Curator's DistributedAtomicLong, not kazoo's Counter")
}

func (n *number) codec() zsync.Codec {
	if n.curator {
		return numberCodec{zsync.BigEndian}
	}
	return numberCodec{zsync.JSON}
}

// A numberCodec returns a noNumberError for data that are no number. So the command can distinguish
// this error from errors of the servers.
type numberCodec struct{ zsync.Codec }

func (c numberCodec) Unmarshal(data []byte, v any) error {
	if err := c.Codec.Unmarshal(data, v); err != nil {
		return &noNumberError{err}
	}
	return nil
}

// A noNumberError means that the data at a path are no number.
type noNumberError struct{ error }

// The method `with` is the common part of the subcommands. It checks that the number of arguments
// is between `least` and `most`, connects, and calls `do` with the Int64 at the path in the first
// argument.
func (n *number) with(cmd *cobra.Command, args []string, least, most int, do func(ctx context.Context, i *zsync.Int64) error) error {
	if len(args) < least || len(args) > most {
		return fail(exitUsage, "want: %s", cmd.UseLine())
	}
	return n.connected(cmd, args[0], func(ctx context.Context, s *zsync.Session) error {
		return do(ctx, zsync.NewInt64(s, args[0], zsync.WithCodec(n.codec())))
	})
}

// The function `argument` parses a number of the command line.
func argument(text string) (int64, error) {
	x, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fail(exitUsage, "NUMBER %q: want a whole number from -2^63 to 2^63-1", text)
	}
	return x, nil
}

func printNumber(cmd *cobra.Command, x int64) error {
	_, err := fmt.Fprintln(cmd.OutOrStdout(), x)
	return outputError(err)
}

func intGetCommand(c *client) *cobra.Command {
	n := newNumber(c)
	cmd := &cobra.Command{
		Use:   "get PATH [flags]",
		Short: "print the number",
		RunE: func(cmd *cobra.Command, args []string) error {
			return n.with(cmd, args, 1, 1, func(ctx context.Context, i *zsync.Int64) error {
				x, err := i.Load(ctx)
				if err != nil {
					return err
				}
				return printNumber(cmd, x)
			})
		},
	}
	n.addFlags(cmd)
	return cmd
}

func intSetCommand(c *client) *cobra.Command {
	n := newNumber(c)
	expect := int64(0)
	cmd := &cobra.Command{
		Use:   "set PATH NUMBER [flags]",
		Short: "set the number",
		Long: `zsync int set stores NUMBER. With --if, it does so only if the number was OLD; otherwise
it exits with status 75.`,
		Annotations: negatives,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			x, err := argument(args[1])
			if err != nil {
				return err
			}
			return n.with(cmd, args, 2, 2, func(ctx context.Context, i *zsync.Int64) error {
				if !cmd.Flags().Changed("if") {
					return i.Store(ctx, x)
				}
				if ok, err := i.CompareAndSwap(ctx, expect, x); ok || err != nil {
					return err
				}
				return fail(exitBusy, "%s: the number is not %d", args[0], expect)
			})
		},
	}
	n.addFlags(cmd)
	cmd.Flags().Int64Var(&expect, "if", 0, "set the number only if it is `OLD`")
	return cmd
}

func intAddCommand(c *client) *cobra.Command {
	n := newNumber(c)
	cmd := &cobra.Command{
		Use:   "add PATH [NUMBER] [flags]",
		Short: "add to the number, and print the sum",
		Long: `zsync int add adds NUMBER, which may be negative (default: 1), and prints the sum. No
two calls that add 1 print the same sum. After 2^63-1 comes -2^63, as in Go.`,
		Example:     "  id=$(zsync int add /ids/order)\n  zsync int add /stock/apples -12",
		Annotations: negatives,
		RunE: func(cmd *cobra.Command, args []string) error {
			by := int64(1)
			if len(args) == 2 {
				var err error
				if by, err = argument(args[1]); err != nil {
					return err
				}
			}
			return n.with(cmd, args, 1, 2, func(ctx context.Context, i *zsync.Int64) error {
				sum, err := i.Add(ctx, by)
				if err != nil {
					return err
				}
				return printNumber(cmd, sum)
			})
		},
	}
	n.addFlags(cmd)
	return cmd
}

func intWatchCommand(c *client) *cobra.Command {
	n, count := newNumber(c), 0
	cmd := &cobra.Command{
		Use:   "watch PATH [flags]",
		Short: "print the number after each change",
		Long: `zsync int watch prints the number, now and after each change. If the number changes
quickly, the command can skip numbers, but not the last. It ends with a signal, with
--timeout, or after --count numbers.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return n.connected(cmd, args[0], func(ctx context.Context, s *zsync.Session) error {
				v := zsync.NewValue[int64](s, args[0], zsync.WithCodec(n.codec()))
				switch _, _, err := v.Load(ctx); {
				case errors.Is(err, zsync.ErrNoValue): // the int is new: Watch receives nothing yet
					if err := printNumber(cmd, 0); err != nil || count == 1 {
						return err
					}
					count = max(count-1, 0)
				case err != nil:
					return err // such as no permission, or no number
				}
				return follow(ctx, cmd, count, args[0], v.Watch(ctx), func(w io.Writer, x int64) error { return printNumber(cmd, x) })
			})
		},
	}
	n.addFlags(cmd)
	addCount(cmd, &count, "numbers")
	return cmd
}

// negatives is the annotation of commands that accept negative numbers as arguments.
var negatives = map[string]string{"negatives": ""}

var negative = regexp.MustCompile(`^-[0-9]+$`)

// behindDashes moves negative numbers in the arguments behind a --, so that cobra does not parse
// them as flags.
func behindDashes(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if _, ok := cmd.Annotations["negatives"]; err != nil || !ok || slices.Contains(args, "--") {
		return args
	}
	var others, numbers []string
	for i, a := range args {
		// After a flag such as --if or --timeout, the number is the value of the flag.
		if negative.MatchString(a) && (i == 0 || !takesNext(cmd, args[i-1])) {
			numbers = append(numbers, a)
		} else {
			others = append(others, a)
		}
	}
	if numbers == nil {
		return args
	}
	return append(append(others, "--"), numbers...)
}

// takesNext reports whether arg is a flag of cmd whose value is the next argument.
func takesNext(cmd *cobra.Command, arg string) bool {
	long, isLong := strings.CutPrefix(arg, "--")
	flag := cmd.Flag(long)
	if !isLong {
		if len(arg) < 2 || arg[0] != '-' || negative.MatchString(arg) {
			return false
		}
		// If one word has several short flags, only the last flag can take the value.
		flag = cmd.Flags().ShorthandLookup(arg[len(arg)-1:])
		if flag == nil {
			flag = cmd.InheritedFlags().ShorthandLookup(arg[len(arg)-1:])
		}
	}
	return flag != nil && flag.NoOptDefVal == ""
}
