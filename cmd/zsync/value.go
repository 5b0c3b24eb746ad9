package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has the subcommands of zsync value, which use a Value. queuetext.go converts the
// values.

func valueCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "value",
		Short: "read, write and watch a shared value",
		Long: `A value is the data of a znode. It is a zsync.Value with the default codec, zsync.JSON.
zsync value set stores JSON unchanged. It stores other text as a JSON string. zsync
value get and zsync value watch print the text of a JSON string, and print other JSON
unchanged. So NewValue[string] and NewValue[int] share the path with the command. With
--raw, a value is bytes, as with zsync.Raw.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(getCommand(c), setCommand(c), watchCommand(c))
	return cmd
}

// withValue connects to the Value at path, and calls `do`.
func withValue(h *holding, cmd *cobra.Command, path string, do func(ctx context.Context, v *zsync.Value[[]byte]) error) error {
	t, err := h.begin(cmd.Context(), nil, path)
	if err != nil {
		return err
	}
	defer t.session.Close()
	err = do(t.waiting, zsync.NewValue[[]byte](t.session, path, zsync.WithCodec(zsync.Raw)))
	return verdict(err, exitBusy)
}

func getCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var f form
	cmd := &cobra.Command{
		Use:   "get PATH [flags]",
		Short: "print the value",
		Long: `zsync value get writes the value at PATH to standard output, and a newline. It prints
the text of a JSON string, unless --raw is given. Exit status 75 means that there is no
value.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			return withValue(h, cmd, args[0], func(ctx context.Context, v *zsync.Value[[]byte]) error {
				data, _, err := v.Load(ctx)
				return f.writeFound(cmd, data, err, "%s: there is no value", args[0])
			})
		},
	}
	h.addTimeout(cmd)
	f.addRaw(cmd, "values")
	return cmd
}

// writeFound writes a loaded value. If there is no value, it returns an error with the message in
// `missing`.
func (f *form) writeFound(cmd *cobra.Command, data []byte, err error, missing string, args ...any) error {
	if errors.Is(err, zsync.ErrNoValue) {
		return fail(exitBusy, missing, args...)
	}
	if err != nil {
		return err
	}
	return writeElement(cmd.OutOrStdout(), f.decode(data), '\n')
}

func setCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var e expectation
	cmd := &cobra.Command{
		Use:   "set PATH [VALUE] [flags]",
		Short: "write the value",
		Long: `zsync value set writes VALUE to PATH; without VALUE it reads its standard input. With
--if or --if-absent, it writes only if the value is as expected, and exits with status
75 otherwise. OLD is a value as "get" prints it.

A value that is JSON is stored unchanged, other text as a JSON string. Use --text if
every value is text, as for NewValue[string], and --raw for bytes.`,
		Example: `  zsync value set /config/limit 20 --if 10
  zsync value set /config/version --text 1.10
  zsync value set /config <config.json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if err := e.check(cmd); err != nil {
				return err
			}
			if err := checkPaths(args[:1], false); err != nil { // before a read of the input, which may not end
				return err
			}
			data, err := e.argumentOrInput(cmd, args[1:])
			if err != nil {
				return err
			}
			return withValue(h, cmd, args[0], func(ctx context.Context, v *zsync.Value[[]byte]) error {
				if !e.any {
					return v.Store(ctx, data)
				}
				return e.swap(ctx, args[0], data, v.Load, v.CompareAndSwap)
			})
		},
	}
	h.addTimeout(cmd)
	e.add(cmd, "there is no value")
	return cmd
}

// The function `unexpected` returns the error for a value that --if does not expect.
func unexpected(path string, old []byte, none bool) error {
	if none {
		return fail(exitBusy, "%s: there is no value", path)
	}
	return fail(exitBusy, "%s: the value is %s", path, printable(string(old)))
}

// argumentOrInput returns the stored form of the argument or, without one, of standard input.
func (f *form) argumentOrInput(cmd *cobra.Command, args []string) ([]byte, error) {
	if len(args) > 0 {
		return f.encode([]byte(args[0]))
	}
	data, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), mostInput+1))
	if err == nil && len(data) > mostInput {
		err = zsync.ErrTooLarge
	}
	if err != nil {
		return nil, inputError(err)
	}
	return f.encode(data)
}

// mostInput is the maximum length of the input for one value or element. The servers accept nothing
// longer, and the input may never end.
const mostInput = 1 << 20

// inputError adds an exit status to err, which is the error of a read.
func inputError(err error) error {
	var has *statusError
	if errors.As(err, &has) {
		return err
	}
	status := exitOutput
	if errors.Is(err, zsync.ErrTooLarge) {
		status = exitUsage
	}
	return fail(status, "standard input: %w", err)
}

func watchCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var f form
	n, null := 0, false
	cmd := &cobra.Command{
		Use:   "watch PATH [flags]",
		Short: "print the value, and again when it changes",
		Long: `zsync value watch writes the value at PATH to its standard output, now and after each
change. It prints the text of a JSON string, unless --raw is given. If the value changes
quickly, the command can skip values, but not the last. It ends with a signal, with
--timeout, or after --count values.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			end := byte('\n')
			if null {
				end = 0
			}
			return withValue(h, cmd, args[0], func(ctx context.Context, v *zsync.Value[[]byte]) error {
				if _, _, err := v.Load(ctx); err != nil && !errors.Is(err, zsync.ErrNoValue) {
					return err // such as no permission, or no such path
				}
				return follow(ctx, cmd, n, args[0], v.Watch(ctx), func(w io.Writer, data []byte) error { return writeElement(w, f.decode(data), end) })
			})
		},
	}
	h.addTimeout(cmd)
	addCount(cmd, &n, "values")
	f.addRaw(cmd, "values")
	cmd.Flags().BoolVarP(&null, "null", "0", false, "end each value with a zero byte, not with a newline")
	return cmd
}

// writeElement writes data unchanged, and then the byte `end`.
func writeElement(w io.Writer, data []byte, end byte) error {
	_, err := w.Write(append(data, end))
	return outputError(err)
}
