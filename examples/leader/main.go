// Leader is a service in which one process leads and the others are on standby. The example shows
// Election.Run, and the end of a leadership.
//
//	ZSYNC_SERVERS=zk1:2181,zk2:2181,zk3:2181 leader
//
// This main is for a program with one function. docs/operations.md, SIGTERM, has a main for several
// functions, and for a function that can hang.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/zsync/zsync"
)

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds) // to order the lines of several processes
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		slog.Error("leader", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	s, err := zsync.Connect(ctx, os.Getenv("ZSYNC_SERVERS"), zsync.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer s.Close() // after Close, a standby leads a round trip later; without it, a session timeout later
	slog.Info("stands by")
	return zsync.NewElection(s, "/services/scheduler").Run(ctx, lead)
}

// lead works as the leader until ctx ends, at SIGTERM or at the loss of the leadership. At SIGTERM,
// the next leader begins after lead has returned. After a loss, another process may lead at once,
// so lead must stop.
func lead(ctx context.Context) error {
	slog.Info("leads")
	for {
		select {
		case <-time.After(100 * time.Millisecond): // the work of a leader, repeatedly
		case <-ctx.Done():
			slog.Info("stops", "cause", context.Cause(ctx))
			time.Sleep(200 * time.Millisecond) // finish the current piece of work
			slog.Info("has stopped")
			return nil
		}
	}
}
