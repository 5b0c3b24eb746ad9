// Pool limits the number of simultaneous users of something, here of two licences for all processes
// together. The example shows Semaphore.
//
//	go run ./examples/pool
package main

import (
	"context"
	"flag"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
)

func main() {
	limit := flag.Int64("limit", 2, "how many licences there are")
	turns := flag.Int("turns", 3, "how often each process uses one")
	takes := flag.Duration("takes", 4*time.Second, "for how long")
	demo.Processes = 5
	demo.Main("Several processes share a few licences. When one is killed, another gets its licence.", func(ctx context.Context, p *demo.Process) error {
		licences := zsync.NewSemaphore(p.Session, "/examples/licences", *limit)
		for turn := 1; turn <= *turns; turn++ {
			err := licences.Do(ctx, 1, func(ctx context.Context) error {
				p.KillMe("has a licence, turn %d of %d", turn, *turns)
				defer p.Say("gives its licence back")
				return demo.Sleep(ctx, *takes)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}
