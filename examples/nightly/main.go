// Nightly runs a job at 03:00 each night, on one machine of a fleet in which all machines run this
// program. The example shows Schedule.
//
//	ZSYNC_SERVERS=zk1:2181,zk2:2181,zk3:2181 nightly
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/zsync/zsync"
)

func main() {
	every := flag.Duration("every", 0, "run at the multiples of this `time` instead of 03:00, to try it out")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *every); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("nightly", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, every time.Duration) error {
	s, err := zsync.Connect(ctx, os.Getenv("ZSYNC_SERVERS"), zsync.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer s.Close()

	when, err := zsync.Daily("03:00", time.UTC) // the same zone on all machines
	if err != nil {
		return err
	}
	if every > 0 {
		when = zsync.Every(every)
	}
	return zsync.NewSchedule(s, "/jobs/nightly").Run(ctx, when, report)
}

// report is the job. If it fails, it runs again after a minute, on this or another machine. ctx
// ends at SIGTERM and at the loss of the session. After a loss, another machine may run the job.
func report(ctx context.Context, at time.Time) error {
	slog.Info("the report begins", "at", at)
	select {
	case <-time.After(200 * time.Millisecond): // the work
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	slog.Info("the report is done", "at", at)
	return nil
}
