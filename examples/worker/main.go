// Worker takes jobs from a queue and does them, four at a time. The example shows Queue.Work, with
// attempts and dead letters.
//
//	ZSYNC_SERVERS=zk1:2181,zk2:2181,zk3:2181 worker
//	ZSYNC_SERVERS=zk1:2181,zk2:2181,zk3:2181 worker --send 100
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/zsync/zsync"
)

// A Mail is a job.
type Mail struct{ To string }

func main() {
	send := flag.Int("send", 0, "send this many `jobs`, and do none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *send); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("worker", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, send int) error {
	s, err := zsync.Connect(ctx, os.Getenv("ZSYNC_SERVERS"), zsync.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer s.Close()
	// A failed job returns to the queue after one second, then after two, four and so on. After
	// five attempts, it is a dead letter: zsync queue dead /queues/mail.
	mails := zsync.NewQueue[Mail](s, "/queues/mail", zsync.WithMaxAttempts(5),
		zsync.WithRetryBackoff(zsync.Backoff{Min: time.Second, Max: time.Minute}))
	for i := range send {
		if err := mails.Send(ctx, Mail{To: fmt.Sprintf("user-%d", i+1)}); err != nil {
			return err
		}
	}
	if send > 0 {
		return nil
	}
	return mails.Work(ctx, 4, deliver) // after SIGTERM, Work takes no new jobs, and waits for the jobs that run
}

// deliver does a job. If the process dies before it has acknowledged the job, another process does
// the job again. So the work must allow a repetition.
func deliver(ctx context.Context, m Mail) error {
	slog.Info("delivers", "to", m.To)
	time.Sleep(100 * time.Millisecond) // the work
	slog.Info("has delivered", "to", m.To)
	return nil
}
