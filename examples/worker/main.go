// Worker takes jobs from a queue and does them, four at a time.
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
	// A job that fails comes back after a second, two, four and so on. After five attempts, it is
	// a dead letter: zsync queue dead /queues/mail.
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
	return mails.Work(ctx, 4, deliver) // at SIGTERM, Work takes no new jobs, and waits for its four
}

// deliver does a job. It may run twice for one job, if its process dies before the job is
// acknowledged. So the work must bear that.
func deliver(ctx context.Context, m Mail) error {
	slog.Info("delivers", "to", m.To)
	time.Sleep(100 * time.Millisecond) // the work
	slog.Info("has delivered", "to", m.To)
	return nil
}
