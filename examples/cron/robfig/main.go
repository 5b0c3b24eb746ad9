// Robfig runs a job once for each scheduled time, on one machine of a fleet. A schedule of the
// package robfig/cron is the timetable of a zsync.Schedule.
//
//	ZSYNC_SERVERS=zk1:2181,zk2:2181,zk3:2181 robfig
//
// A cron.Cron works for a single process. Even with a lock around its job, a short job runs once on
// each machine. A zsync.Schedule runs no scheduled time again after a success. Do not use @every of
// robfig/cron, whose times depend on the time of the call. Use zsync.Every.
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

	"github.com/robfig/cron/v3"

	"github.com/zsync/zsync"
)

func main() {
	spec := flag.String("cron", "* * * * * *", "the `fields` of the schedule, with seconds first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *spec); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("robfig", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, spec string) error {
	parser := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	when, err := parser.Parse("CRON_TZ=UTC " + spec) // the same zone on all machines
	if err != nil {
		return err
	}
	s, err := zsync.Connect(ctx, os.Getenv("ZSYNC_SERVERS"), zsync.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer s.Close()
	return zsync.NewSchedule(s, "/cron/robfig").Run(ctx, when, report)
}

// report is the job. It takes less time than the difference between the clocks of two machines.
func report(_ context.Context, at time.Time) error {
	slog.Info("ran", "at", at.UTC().Format(time.TimeOnly))
	return nil
}
