package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has the subcommands of zsync map, which use the keys of a Map. queuetext.go converts
// the values.

func mapCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "map",
		Short: "read, write and watch a shared map",
		Long: `A map has a value for each key. A key is any text; its value is in a znode below PATH.
It is a zsync.Map with the default codec, zsync.JSON. zsync map set stores
JSON unchanged. It stores other text as a JSON string. zsync map get, zsync map list and
zsync map watch print the text of a JSON string, and print other JSON unchanged. So
NewMap[string] shares the path with the command. With --raw, values are bytes, as with
zsync.Raw.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(
		mapGetCommand(c),
		mapSetCommand(c),
		mapDeleteCommand(c),
		mapListCommand(c),
		mapWatchCommand(c),
		mapClearCommand(c),
	)
	return cmd
}

type sharedMap = zsync.Map[[]byte]

// withMap is the common part of the subcommands. It checks that the number of arguments is between
// `least` and `most`, connects, and calls `do` with the Map at the path in the first argument.
func withMap(h *holding, cmd *cobra.Command, args []string, least, most int, do func(ctx context.Context, m *sharedMap) error) error {
	if len(args) < least || len(args) > most {
		return fail(exitUsage, "want: %s", cmd.UseLine())
	}
	return h.connected(cmd, args[0], func(ctx context.Context, s *zsync.Session) error {
		return do(ctx, zsync.NewMap[[]byte](s, args[0], zsync.WithCodec(zsync.Raw)))
	})
}

// The method `connected` opens a session and calls `do`. It adds an exit status to the error of
// `do`.
func (h *holding) connected(cmd *cobra.Command, path string, do func(ctx context.Context, s *zsync.Session) error) error {
	t, err := h.begin(cmd.Context(), nil, path)
	if err != nil {
		return err
	}
	defer t.session.Close()
	return verdict(do(t.waiting, t.session), exitBusy)
}

func mapGetCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var f form
	cmd := &cobra.Command{
		Use:   "get PATH KEY [flags]",
		Short: "print the value of a key",
		Long: `zsync map get writes the value of KEY to standard output, and a newline. It prints the
text of a JSON string, unless --raw is given. Exit status 75 means that there is no such
key.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withMap(h, cmd, args, 2, 2, func(ctx context.Context, m *sharedMap) error {
				data, _, err := m.Load(ctx, args[1])
				return f.writeFound(cmd, data, err, "%s: there is no key %q", args[0], args[1])
			})
		},
	}
	h.addTimeout(cmd)
	f.addRaw(cmd, "values")
	return cmd
}

func mapSetCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var e expectation
	cmd := &cobra.Command{
		Use:   "set PATH KEY [VALUE] [flags]",
		Short: "write the value of a key",
		Long: `zsync map set writes VALUE as the value of KEY; without VALUE it reads its standard
input. With --if or --if-absent, it writes only if the value is as expected, and exits
with status 75 otherwise. OLD is a value as "get" prints it.

A value that is JSON is stored unchanged, other text as a JSON string. Use --text if
every value is text, as for NewMap[string], and --raw for bytes.`,
		Example: `  zsync map set /services billing 10.0.0.7:8080
  zsync map set /owners shard-7 me --if-absent`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := e.check(cmd); err != nil {
				return err
			}
			if len(args) < 2 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if err := checkPaths(args[:1], false); err != nil { // before a read of the input, which may not end
				return err
			}
			data, err := e.argumentOrInput(cmd, args[2:])
			if err != nil {
				return err
			}
			return withMap(h, cmd, args, 2, 3, func(ctx context.Context, m *sharedMap) error {
				if !e.any {
					return m.Store(ctx, args[1], data)
				}
				return e.swap(ctx, args[0]+" "+args[1], data,
					func(ctx context.Context) ([]byte, zsync.Version, error) { return m.Load(ctx, args[1]) },
					func(ctx context.Context, v zsync.Version, data []byte) (bool, error) {
						return m.CompareAndSwap(ctx, args[1], v, data)
					})
			})
		},
	}
	h.addTimeout(cmd)
	e.add(cmd, "the key is not there")
	return cmd
}

// The type `expectation` has the flags for the form of a value, and the flags for a write that
// depends on the current value.
type expectation struct {
	form
	value       string
	absent, any bool
}

func (e *expectation) add(cmd *cobra.Command, absence string) {
	e.addRaw(cmd, "values")
	e.addText(cmd, "the value")
	cmd.Flags().StringVar(&e.value, "if", "", "write only if the value is `OLD`")
	cmd.Flags().BoolVar(&e.absent, "if-absent", false, "write only if "+absence)
}

func (e *expectation) check(cmd *cobra.Command) error {
	value := cmd.Flags().Changed("if")
	if value && e.absent {
		return fail(exitUsage, "--if and --if-absent do not go together")
	}
	e.any = value || e.absent
	return nil
}

// The method `swap` writes data if the value is as expected.
func (e *expectation) swap(ctx context.Context, what string, data []byte,
	load func(context.Context) ([]byte, zsync.Version, error), swap func(context.Context, zsync.Version, []byte) (bool, error),
) error {
	old, version, err := load(ctx)
	if err != nil && !errors.Is(err, zsync.ErrNoValue) {
		return err
	}
	shown := e.decode(old)
	if none := version == (zsync.Version{}); none != e.absent || !none && string(shown) != e.value {
		return unexpected(what, shown, none)
	}
	if ok, err := swap(ctx, version, data); ok || err != nil {
		return err
	}
	return fail(exitBusy, "%s: another client has changed it since the read", what)
}

func mapDeleteCommand(c *client) *cobra.Command {
	h := newHolding(c)
	cmd := &cobra.Command{
		Use:   "delete PATH KEY... [flags]",
		Short: "delete keys",
		Long:  `zsync map delete deletes each KEY. A missing key is no error.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withMap(h, cmd, args, 2, len(args), func(ctx context.Context, m *sharedMap) error {
				for _, key := range args[1:] {
					if err := m.Delete(ctx, key); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	h.addTimeout(cmd)
	return cmd
}

func mapListCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var f form
	asJSON, keys := false, false
	cmd := &cobra.Command{
		Use:   "list PATH [flags]",
		Short: "print all keys and values",
		Long: `zsync map list prints the map at one moment: a line for each key, in order, with a tab
before the value. It escapes characters that do not print. With --json it prints one
object, whose values are strings, as "get" prints them.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withMap(h, cmd, args, 1, 1, func(ctx context.Context, m *sharedMap) error {
				all, out := map[string]string{}, new(bytes.Buffer)
				for e, err := range m.All(ctx) {
					if err != nil {
						return err
					}
					all[e.Key] = string(f.decode(e.Value))
					if out.WriteString(plain(e.Key)); !keys {
						out.WriteString("\t" + plain(all[e.Key]))
					}
					out.WriteByte('\n')
				}
				if asJSON {
					return outputError(writeJSON(cmd.OutOrStdout(), all))
				}
				_, err := out.WriteTo(cmd.OutOrStdout())
				return outputError(err)
			})
		},
	}
	h.addTimeout(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&keys, "keys", false, "print only the keys")
	f.addRaw(cmd, "values")
	cmd.MarkFlagsMutuallyExclusive("json", "keys")
	return cmd
}

func mapWatchCommand(c *client) *cobra.Command {
	h := newHolding(c)
	var f form
	n := 0
	cmd := &cobra.Command{
		Use:   "watch PATH [flags]",
		Short: "print the map after each change",
		Long: `zsync map watch prints the whole map, now and after each change. It prints one line of
JSON: an object whose values are strings, as "get" prints them. If the map changes
quickly, the command can skip states, but not the last. After a lost connection, it
prints the map again when it has caught up. It ends with a signal, with --timeout, or
after --count lines.`,
		Example: `  zsync map watch /services | while read -r all; do echo "$all" | jq -r '.billing'; done`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withMap(h, cmd, args, 1, 1, func(ctx context.Context, m *sharedMap) error {
				if _, err := m.Len(ctx); err != nil {
					return err // such as no permission, or no such path
				}
				return follow(ctx, cmd, n, args[0], m.Watch(ctx), func(w io.Writer, all map[string][]byte) error {
					texts := make(map[string]string, len(all))
					for k, v := range all {
						texts[k] = string(f.decode(v))
					}
					return writeLine(w, texts)
				})
			})
		},
	}
	h.addTimeout(cmd)
	addCount(cmd, &n, "lines")
	f.addRaw(cmd, "values")
	return cmd
}

func addCount(cmd *cobra.Command, n *int, what string) {
	cmd.Flags().IntVarP(n, "count", "n", 0, "end after `N` "+what+" (default: no limit)")
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if *n < 1 && cmd.Flags().Changed("count") {
			return fail(exitUsage, "--count %d: must be at least 1", *n)
		}
		return nil
	}
}

// The function `follow` writes n values from the channel `watch`. If n is 0, it writes all values
// until ctx ends.
func follow[T any](ctx context.Context, cmd *cobra.Command, n int, path string, watch <-chan T, write func(io.Writer, T) error) error {
	got := 0
	for v := range watch {
		if err := write(cmd.OutOrStdout(), v); err != nil {
			return err
		}
		if got++; got == n {
			return nil
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: the permission to read it is gone", path)
}

// writeLine writes v as a line of JSON.
func writeLine(w io.Writer, v any) error {
	var b, line bytes.Buffer
	if err := writeJSON(&b, v); err != nil {
		return err
	}
	if err := json.Compact(&line, b.Bytes()); err != nil {
		return err
	}
	return writeElement(w, line.Bytes(), '\n')
}

func mapClearCommand(c *client) *cobra.Command {
	h := newHolding(c)
	cmd := &cobra.Command{
		Use:   "clear PATH [flags]",
		Short: "delete all keys",
		Long: `zsync map clear deletes every key that exists when it begins. It is not one step: other
programs can see some keys deleted and others not.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return withMap(h, cmd, args, 1, 1, func(ctx context.Context, m *sharedMap) error { return m.Clear(ctx) })
		},
	}
	h.addTimeout(cmd)
	return cmd
}
