// Config shares settings between processes: each process follows all changes, and each may change a
// setting. The example shows Map, with Watch and CompareAndSwap.
//
//	go run ./examples/config
//	go run ./examples/config --servers ADDRESS --set rate=7
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
)

func main() {
	set := flag.String("set", "", "change a setting, `name=number`, and end")
	every := flag.Duration("every", 2*time.Second, "how often the tuner changes a setting")
	demo.Main("Several processes follow the same settings. One of them, the tuner, changes a setting; when it is killed, another does.", func(ctx context.Context, p *demo.Process) error {
		settings := zsync.NewMap[int](p.Session, "/examples/settings")
		if *set != "" {
			return change(ctx, settings, *set)
		}
		go tune(ctx, p, *every)
		for now := range settings.Watch(ctx) { // the current settings, and then each change
			p.Say("the settings are %v", now)
		}
		return ctx.Err()
	})
}

// change sets one setting.
func change(ctx context.Context, settings *zsync.Map[int], text string) error {
	name, number, _ := strings.Cut(text, "=")
	n, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("--set %s: want name=number", text)
	}
	return settings.Store(ctx, name, n)
}

// tune increases a setting regularly, in one process at a time.
func tune(ctx context.Context, p *demo.Process, every time.Duration) error {
	rate := zsync.NewMap[int](p.Session, "/examples/settings")
	return zsync.NewElection(p.Session, "/examples/settings-tuner").Run(ctx, func(ctx context.Context) error {
		p.KillMe("is the tuner")
		for {
			old, version, err := rate.Load(ctx, "rate")
			if errors.Is(err, zsync.ErrNoValue) {
				_, _, err = rate.LoadOrStore(ctx, "rate", 1)
			} else if err == nil {
				// If another process has changed the setting since the read, that change remains.
				_, err = rate.CompareAndSwap(ctx, "rate", version, old+1)
			}
			if err != nil && ctx.Err() == nil {
				p.Say("cannot tune: %v", err)
			}
			if err := demo.Sleep(ctx, every); err != nil {
				return nil
			}
		}
	})
}
