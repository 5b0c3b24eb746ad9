package zsync_test

import (
	"context"
	"fmt"
	"log"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

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
