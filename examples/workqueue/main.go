// Workqueue shares jobs among processes. A job is done when it is acknowledged;
// one whose worker is killed goes back to its place, for another.
//
//	go run ./examples/workqueue
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
	jobs := flag.Int("jobs", 20, "how many jobs there are")
	takes := flag.Duration("takes", 4*time.Second, "how long a job takes")
	demo.Main("Several processes do the jobs of one queue. When one is killed, another does its job.", func(ctx context.Context, p *demo.Process) error {
		return work(ctx, p, *jobs, *takes)
	})
}

func work(ctx context.Context, p *demo.Process, jobs int, takes time.Duration) error {
	queue := zsync.NewQueue[int](p.Session, "/examples/jobs", zsync.WithPrefetch(1), zsync.WithMaxAttempts(5)) // one at a time: they take long
	done := zsync.NewMap[string](p.Session, "/examples/jobs-done")

	// The first of all the processes sends the jobs.
	err := zsync.NewOnce(p.Session, "/examples/jobs-sent").Do(ctx, func(ctx context.Context) error {
		all := make([]int, jobs)
		for i := range all {
			all[i] = i + 1
		}
		p.Say("sends %d jobs", jobs)
		return queue.Send(ctx, all...)
	})
	if err != nil {
		return err
	}

	working, end := context.WithCancel(ctx)
	defer end()
	go func() {
		for results := range done.Watch(working) {
			if len(results) == jobs {
				end() // nothing is left to do
			}
		}
	}()
	for delivery := range queue.Deliveries(working) {
		p.KillMe("works on job %d, attempt %d", delivery.Value, delivery.Attempt)
		time.Sleep(takes)
		key := fmt.Sprintf("job-%d", delivery.Value)
		if _, _, err := done.LoadOrStore(ctx, key, "done"); err != nil {
			delivery.Nack()
			break
		}
		if err := delivery.Ack(ctx); err != nil {
			p.Say("job %d went to somebody else: %v", delivery.Value, err)
			continue
		}
		p.Say("job %d is done", delivery.Value)
	}
	n, err := done.Len(context.WithoutCancel(ctx))
	if err == nil {
		p.Say("%d of %d jobs are done", n, jobs)
	}
	return err
}
