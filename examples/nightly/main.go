// Nightly is a job that runs once a night, on one of all the machines that
// could run it. Here a night lasts some seconds.
//
//	go run ./examples/nightly
package main

import (
	"context"
	"flag"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
)

func main() {
	every := flag.Duration("every", 10*time.Second, "how long a night is")
	takes := flag.Duration("takes", 4*time.Second, "how long the job takes")
	demo.Main("Several processes could do the job of each night; one of them does it. When that one is killed, another does it instead.", func(ctx context.Context, p *demo.Process) error {
		nights := zsync.NewSchedule(p.Session, "/examples/nightly")
		return nights.Run(ctx, zsync.Every(*every), func(ctx context.Context, at time.Time) error {
			night := at.Local().Format("15:04:05")
			p.KillMe("does the job of %s", night)
			if err := demo.Sleep(ctx, *takes); err != nil {
				return err // the night is not done: somebody else does it
			}
			p.Say("the job of %s is done", night)
			return nil
		})
	})
}
