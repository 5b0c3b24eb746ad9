package zsync_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// This example holds workers back until a migration is over.
func ExampleBarrier() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	gate := zsync.NewBarrier(s, "/migration")
	if err := gate.Close(ctx); err != nil {
		fmt.Println(err)
		return
	}
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			if err := gate.Wait(ctx); err != nil {
				fmt.Println(err)
				return
			}
			fmt.Println("working")
		})
	}
	fmt.Println("migrating")
	if err := gate.Open(ctx); err != nil {
		fmt.Println(err)
		return
	}
	workers.Wait()
	// Output:
	// migrating
	// working
	// working
	// working
}

// In this example one process waits until another has opened the shop.
func ExampleCond() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	connect := func() (*zsync.Cond, *zsync.Session) {
		s, err := zsync.Connect(ctx, srv.Addr())
		if err != nil {
			panic(err)
		}
		return zsync.NewCond(s, "/shop/changed", zsync.NewMutex(s, "/shop/lock")), s
	}
	customer, s1 := connect()
	defer s1.Close()
	owner, s2 := connect()
	defer s2.Close()

	open := false // in life, something that both processes can see
	admitted := make(chan error)
	go func() {
		if err := customer.L.Lock(ctx); err != nil {
			admitted <- err
			return
		}
		for !open {
			if err := customer.Wait(ctx); err != nil {
				admitted <- err // the lock is not held
				return
			}
		}
		admitted <- customer.L.Unlock()
	}()

	if err := owner.L.Lock(ctx); err != nil {
		fmt.Println(err)
		return
	}
	open = true
	fmt.Println("the shop opens:", owner.Broadcast(ctx), owner.L.Unlock())
	fmt.Println("the customer is in:", <-admitted)
	// Output:
	// the shop opens: <nil> <nil>
	// the customer is in: <nil>
}

// This example waits in one process for tasks that another has begun.
func ExampleWaitGroup() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	worker, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer worker.Close()
	boss, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer boss.Close()

	tasks := zsync.NewWaitGroup(worker, "/jobs/nightly")
	for range 3 {
		if err := tasks.Go(ctx, func() { fmt.Println("done") }); err != nil {
			fmt.Println(err)
		}
	}
	if err := zsync.NewWaitGroup(boss, "/jobs/nightly").Wait(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("all done")
	// Output:
	// done
	// done
	// done
	// all done
}

// This example lets three parties begin and end each round of work together.
func ExampleWaitGroup_Enter() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	const parties, rounds = 3, 2

	var all sync.WaitGroup
	for range parties {
		s, err := zsync.Connect(ctx, srv.Addr()) // as in a process of its own
		if err != nil {
			fmt.Println(err)
			return
		}
		defer s.Close()
		all.Go(func() {
			wg := zsync.NewWaitGroup(s, "/render")
			for round := range rounds {
				if err := wg.Enter(ctx, parties); err != nil {
					fmt.Println(err)
					return
				}
				fmt.Println("round", round)
				if err := wg.Leave(ctx); err != nil {
					fmt.Println(err)
					return
				}
			}
		})
	}
	all.Wait()
	// Output:
	// round 0
	// round 0
	// round 0
	// round 1
	// round 1
	// round 1
}

// This example elects one of two candidates, and then the other.
func ExampleElection() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	a := zsync.NewElection(s, "/election", zsync.WithID("a"))
	b := zsync.NewElection(s, "/election", zsync.WithID("b"))
	leaders := a.Observe(ctx)
	for _, e := range []*zsync.Election{a, b} {
		if err := e.Campaign(ctx); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println((<-leaders).Owner, "leads")
		if err := e.Resign(); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// a leads
	// b leads
}

// This example leads until there is nothing left to do. A function that is
// interrupted by the loss of its leadership is called again in the next.
func ExampleElection_Run() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	finished := errors.New("finished")
	e := zsync.NewElection(s, "/election")
	err = e.Run(ctx, func(ctx context.Context) error {
		for i := range 3 {
			if ctx.Err() != nil {
				return context.Cause(ctx) // the leadership is lost
			}
			fmt.Println("step", i)
		}
		return finished
	})
	fmt.Println(errors.Is(err, finished))
	// Output:
	// step 0
	// step 1
	// step 2
	// true
}

// The leader hands the leadership to another candidate.
func ExampleElection_Transfer() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	old, heir := zsync.NewElection(s, "/leader", zsync.WithID("old")), zsync.NewElection(s, "/leader", zsync.WithID("heir"))
	if err := old.Campaign(ctx); err != nil {
		log.Fatal(err)
	}
	leads := make(chan error)
	go func() { leads <- heir.Campaign(ctx) }()
	for {
		candidates, err := old.Contenders(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if len(candidates) == 2 { // the heir is in the line
			fmt.Println(old.Transfer(ctx, candidates[1]))
			break
		}
	}
	fmt.Println(<-leads)
	leader, err := heir.Leader(ctx)
	fmt.Println(leader.Owner, err)
	// Output:
	// <nil>
	// <nil>
	// heir <nil>
}

// The only process of a fleet owns all shards.
func ExamplePartition() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	owned := make(chan string)
	ended := make(chan error)
	go func() {
		ended <- zsync.NewPartition(s, "/ingest").Run(ctx, []string{"eu", "us"}, func(ctx context.Context, shard string) error {
			owned <- shard
			<-ctx.Done() // work on the shard until it moves
			return nil
		})
	}()
	shards := []string{<-owned, <-owned}
	slices.Sort(shards)
	fmt.Println(shards)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// [eu us]
	// zsync: run /ingest: context canceled
}

// This example shows who is there, with what each says of itself.
func ExampleGroup() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	type worker struct{ Addr string }
	workers := zsync.NewGroup[worker](s, "/workers")
	one, err := workers.Join(ctx, "one", worker{"10.0.0.1:80"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := workers.Join(ctx, "two", worker{"10.0.0.2:80"}); err != nil {
		fmt.Println(err)
		return
	}
	show := func() {
		members, err := workers.Members(ctx)
		for _, m := range members {
			fmt.Println(m.ID, m.Info.Addr)
		}
		fmt.Println(len(members), "members", err)
	}
	show()
	fmt.Println(one.Leave())
	show()
	// Output:
	// one 10.0.0.1:80
	// two 10.0.0.2:80
	// 2 members <nil>
	// <nil>
	// two 10.0.0.2:80
	// 1 members <nil>
}

// This example runs a job for each instant once, however many processes run it.
func ExampleSchedule() {
	ctx := context.Background()
	s, end, err := connect(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	midnight := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 3 { // as three processes would
		nightly := zsync.NewSchedule(s, "/jobs/nightly")
		ran, err := nightly.Do(ctx, midnight, func(ctx context.Context) error {
			fmt.Println("the job")
			return nil
		})
		fmt.Println(ran, err)
	}
	// Output:
	// the job
	// true <nil>
	// false <nil>
	// false <nil>
}
