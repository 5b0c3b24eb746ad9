package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync/internal/trace"
)

// verifyCommand judges what zsync.WithTrace, or --trace, has written.
func verifyCommand() *cobra.Command {
	tolerance := trace.DefaultTolerance
	cmd := &cobra.Command{
		Use:   "verify TRACE...",
		Short: "judge traces: never two holders, tokens in order, losses told in time, elements removed once",
		Long: `verify reads what --trace, ZSYNC_TRACE or the library's WithTrace has written, of
one process or of many, and says whether

  - there were never two holders, by the order of ZooKeeper's transactions and by
    the clocks; of readers there may be many, and of permits as many as the limit
  - a loss was told before the next was granted
  - fencing tokens grow from holder to holder
  - what was released or lost had been granted, and ended once
  - an element of a queue had one owner at a time, and was removed once

Give it the traces of everybody who used the paths; - is standard input. It needs
no server.

Exit status:
  0   nothing is wrong
  1   a violation was found
  2   none was found, but lines are missing, so there may have been one
  78  a file cannot be read, or is no trace`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fail(exitUsage, "want at least one TRACE, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var files []*trace.File
			for _, name := range args {
				f, err := readTrace(cmd.InOrStdin(), name)
				if err != nil {
					return fail(exitConfig, "%w", err)
				}
				files = append(files, f)
			}
			r := trace.Verify(files, tolerance)
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
	cmd.Flags().Var((*seconds)(&tolerance), "tolerance", "how far the clocks of two machines may be apart, a `TIME`")
	return cmd
}

func readTrace(stdin io.Reader, name string) (*trace.File, error) {
	if name == "-" {
		return trace.Parse(stdin, "standard input")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return trace.Parse(f, name)
}

// openTrace opens the file of --trace. Processes may share it: each write is of
// whole lines, at its end. A named pipe is opened when it has a reader, unless ctx ends.
func (h *host) openTrace(ctx context.Context, name string) (*traceFile, error) {
	for {
		// Without O_NONBLOCK the kernel would wait for the reader, whatever signals come.
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

// A traceFile says once that it cannot be written. That ends nothing: a trace is
// not worth a hold.
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
