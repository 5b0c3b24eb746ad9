// Leader is a service of which one process leads. One that is asked to end
// (SIGTERM, Ctrl-C) finishes what it is at, and hands over at once. One that is
// killed is replaced when its session has ended.
//
//	go run ./examples/leader
package main

import (
	"context"
	"os"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
)

func main() {
	demo.Main("One of several processes leads. When it ends or is killed, another leads.", func(ctx context.Context, p *demo.Process) error {
		leader := zsync.NewElection(p.Session, "/examples/leader")
		p.Say("is a candidate")
		return leader.Run(ctx, func(ctx context.Context) error { return lead(ctx, p, leader) })
	})
}

// lead serves until ctx ends: with the process, or with the leadership. The next
// leader begins when it has returned.
func lead(ctx context.Context, p *demo.Process, leader *zsync.Election) error {
	term, err := leader.Token(ctx)
	if err != nil {
		return err
	}
	p.KillMe("leads, in term %d; to have it hand over at once: kill %d", term, os.Getpid())
	for n := 1; ctx.Err() == nil; n++ {
		demo.Sleep(ctx, 300*time.Millisecond) // until there is something to do
	}
	p.Say("finishes what it is at")
	time.Sleep(200 * time.Millisecond)
	p.Say("hands over")
	return nil
}
