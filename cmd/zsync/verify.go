package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync/internal/verify"
)

// This file has zsync verify, which checks traces. It also opens and writes the file of --trace.
// Package verify has the rules for a trace.

// verifyCommand returns the command that checks the traces of zsync.WithTrace and of --trace.
func verifyCommand() *cobra.Command {
	tolerance := verify.DefaultTolerance
	cmd := &cobra.Command{
		Use:   "verify TRACE...",
		Short: "check traces for overlapping holds, late losses and double removals",
		Long: `zsync verify reads the traces of one process or of many. They are written with --trace,
ZSYNC_TRACE or the library's WithTrace. It checks that

  - no two exclusive holds overlap, by ZooKeeper's transactions and by the clocks;
    readers may overlap, and permits up to the limit
  - each process noticed its loss before the next grant
  - fencing tokens grow from holder to holder
  - each release and each loss has its grant
  - each element of a queue had one owner at a time, and was removed once

Name the traces of all processes that used the paths. The name - means standard input. zsync verify
needs no server.

Exit status:
  0   no violation
  1   a violation was found
  2   no violation was found, but records are missing, or there are none
  78  a file cannot be read, or is no trace`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fail(exitUsage, "want at least one TRACE, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var inputs []verify.Input
			for _, name := range args {
				if name == "-" {
					inputs = append(inputs, verify.Input{Name: "standard input", Reader: cmd.InOrStdin()})
					continue
				}
				f, err := os.Open(name)
				if err != nil {
					return fail(exitConfig, "%w", err)
				}
				defer f.Close()
				inputs = append(inputs, verify.Input{Name: name, Reader: f})
			}
			r, err := verify.Inputs(inputs, tolerance)
			if err != nil {
				return fail(exitConfig, "%w", err)
			}
			if err := r.Print(cmd.OutOrStdout()); err != nil {
				return outputError(err)
			}
			switch {
			case len(r.Violations) > 0:
				return &statusError{1, nil}
			case len(r.Missing) > 0:
				return &statusError{2, nil}
			}
			return nil
		},
	}
	cmd.Flags().Var((*seconds)(&tolerance), "tolerance", "`TIME` by which the clocks of two machines differ at most")
	return cmd
}

// openTrace opens the file of --trace. Several processes may share the file, because each write
// appends whole lines. For a named pipe, openTrace waits for a reader until ctx ends.
func (h *host) openTrace(ctx context.Context, name string) (*traceFile, error) {
	for {
		// Without O_NONBLOCK, the kernel would wait for the reader and ignore signals.
		f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY|syscall.O_NONBLOCK, 0o644)
		switch {
		case err == nil:
			return &traceFile{host: h, f: f}, nil
		case !errors.Is(err, syscall.ENXIO):
			return nil, fmt.Errorf("--trace: %w", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// A traceFile prints a message for its first failed write, and ignores later failures, because a
// hold is more important than a trace.
type traceFile struct {
	*host
	f    *os.File
	once sync.Once
}

func (t *traceFile) Write(lines []byte) (int, error) {
	n, err := t.f.Write(lines)
	if err != nil {
		t.once.Do(func() { t.say(fmt.Errorf("--trace: lines are missing: %w", err)) })
	}
	return n, err
}
