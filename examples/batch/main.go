// Batch works in phases: no process begins a phase before all processes have ended the previous
// one. If a process is killed during a phase, all processes repeat it. The example shows the double
// barrier of a WaitGroup.
//
//	go run ./examples/batch
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
)

// A step is a phase and the number of its current try.
type step struct{ Phase, Try int }

func main() {
	parties := flag.Int("parties", 3, "how many processes work together")
	phases := flag.Int("phases", 4, "how many phases there are")
	takes := flag.Duration("takes", 4*time.Second, "how long one takes")
	demo.Main("Several processes begin each phase together and end it together. When one is killed, its phase is done again.", func(ctx context.Context, p *demo.Process) error {
		b := &batch{
			Process: p, parties: *parties, takes: *takes,
			barrier: zsync.NewWaitGroup(p.Session, "/examples/batch"),
			step:    zsync.NewValue[step](p.Session, "/examples/batch-step"),
			done:    zsync.NewMap[int](p.Session, "/examples/batch-done"),
		}
		for {
			if now, err := b.phase(ctx); err != nil || now.Phase > *phases {
				return err
			}
		}
	})
}

type batch struct {
	*demo.Process
	parties int
	takes   time.Duration
	barrier *zsync.WaitGroup
	step    *zsync.Value[step]
	done    *zsync.Map[int] // the parts that are done, by step and process id
}

// phase takes part in one phase, and returns the next step.
func (b *batch) phase(ctx context.Context) (next step, err error) {
	b.Say("waits until %d are there", b.parties)
	if err := b.barrier.Enter(ctx, b.parties); err != nil {
		return next, err
	}
	// Between Enter and Leave, all processes see the same step, because it changes only after all
	// have left.
	now, version, err := b.step.Load(ctx)
	if errors.Is(err, zsync.ErrNoValue) {
		now, err = step{1, 1}, nil
	}
	if err != nil {
		return next, err
	}
	name := fmt.Sprintf("phase %d, try %d", now.Phase, now.Try)
	b.KillMe("begins %s", name)
	if err := demo.Sleep(ctx, b.takes); err != nil {
		return next, err
	}
	if err := b.done.Store(ctx, fmt.Sprintf("%s, %d", name, os.Getpid()), now.Phase); err != nil {
		return next, err
	}
	if err := b.barrier.Leave(ctx); err != nil && !errors.Is(err, zsync.ErrLost) {
		return next, err
	}
	// All processes have left, so all of them count the same parts.
	parts := 0
	err = b.done.Range(ctx, func(key string, _ int) bool {
		if strings.HasPrefix(key, name+",") {
			parts++
		}
		return true
	})
	if err != nil {
		return next, err
	}
	if parts == b.parties {
		next = step{now.Phase + 1, 1}
		b.Say("all have ended phase %d", now.Phase)
	} else {
		next = step{now.Phase, now.Try + 1}
		b.Say("%d of %d have ended phase %d: it is done again", parts, b.parties, now.Phase)
	}
	_, err = b.step.CompareAndSwap(ctx, version, next) // one process succeeds
	return next, err
}
