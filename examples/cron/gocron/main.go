// Gocron runs a job of the package gocron each second, on one machine of a fleet. It gives gocron a
// Locker or an Elector of zsync.
//
//	ZSYNC_SERVERS=zk1:2181,zk2:2181,zk3:2181 gocron [-elector]
//
// The Locker guarantees that no two machines run the job at the same time. With the Elector, only
// the leader begins runs. zsync.Schedule promises more: for each scheduled time, it runs the job
// until the first success and never after it, even if the clocks of the machines differ.
package main

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/zsync/zsync"
)

// A locker is a gocron.Locker with a Mutex for each job.
type locker struct{ s *zsync.Session }

func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	m := zsync.NewMutex(l.s, "/cron/"+url.PathEscape(key))
	ok, err := m.TryLock(ctx)
	if err == nil && !ok {
		err = errors.New("another process runs the job")
	}
	if err != nil {
		return nil, err
	}
	return lock{m}, nil
}

type lock struct{ m *zsync.Mutex }

func (l lock) Unlock(context.Context) error { return l.m.Unlock() }

// An elector is a gocron.Elector.
type elector struct{ leads atomic.Bool }

func (e *elector) IsLeader(context.Context) error {
	if !e.leads.Load() {
		return errors.New("another process leads")
	}
	return nil
}

// campaign leads whenever it is elected, until ctx ends.
func (e *elector) campaign(ctx context.Context, s *zsync.Session) error {
	return zsync.NewElection(s, "/cron/leader").Run(ctx, func(ctx context.Context) error {
		e.leads.Store(true)
		defer e.leads.Store(false)
		<-ctx.Done()
		return nil
	})
}

func main() {
	elect := flag.Bool("elector", false, "use an Elector, not a Locker")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *elect); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("gocron", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, elect bool) error {
	s, err := zsync.Connect(ctx, os.Getenv("ZSYNC_SERVERS"), zsync.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer s.Close()

	option, campaign := gocron.WithDistributedLocker(locker{s}), func(ctx context.Context) error { <-ctx.Done(); return nil }
	if elect {
		e := &elector{}
		option, campaign = gocron.WithDistributedElector(e), func(ctx context.Context) error { return e.campaign(ctx, s) }
	}
	scheduler, err := gocron.NewScheduler(option)
	if err != nil {
		return err
	}
	if _, err := scheduler.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(report), gocron.WithName("report")); err != nil {
		return err
	}
	scheduler.Start()
	err = campaign(ctx)
	return errors.Join(err, scheduler.Shutdown()) // Shutdown waits for the job
}

// report is the job.
func report() {
	slog.Info("begin", "at", time.Now())
	time.Sleep(200 * time.Millisecond) // the work
	slog.Info("end")
}
