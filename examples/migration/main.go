// Migration changes the schema of a database once, and lets several processes continue only after
// the change. The example shows Once.
//
//	go run ./examples/migration
package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
)

func main() {
	steps := flag.Int("steps", 5, "how many steps the migration has")
	takes := flag.Duration("takes", 2*time.Second, "how long a step takes")
	demo.Main("One process migrates the schema, and the others wait for it. When it is killed, another does it.", func(ctx context.Context, p *demo.Process) error {
		migrated := zsync.NewOnce(p.Session, "/examples/migration-0042")
		p.Say("starts")
		err := migrated.Do(ctx, func(ctx context.Context) error {
			for i := 1; i <= *steps; i++ {
				p.KillMe("migrates, step %d of %d", i, *steps)
				if err := demo.Sleep(ctx, *takes); err != nil {
					return fmt.Errorf("step %d: %w", i, err)
				}
			}
			p.Say("has migrated the schema")
			return nil
		})
		if err == nil {
			p.Say("goes on: the schema is migrated")
		}
		return err
	})
}
