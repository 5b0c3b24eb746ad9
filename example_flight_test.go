package zsync_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// One of several callers fetches the price, and all get it.
func ExampleFlight() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	prices := zsync.NewFlight[string](s, "/cache/prices", time.Minute)
	fetch := func(ctx context.Context) (string, error) {
		fmt.Println("fetching")
		return "1.08", nil
	}
	var callers sync.WaitGroup
	for range 3 { // goroutines here; usually in many processes
		callers.Go(func() {
			price, _, err := prices.Do(ctx, "EUR", fetch)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(price)
		})
	}
	callers.Wait()
	// Output:
	// fetching
	// 1.08
	// 1.08
	// 1.08
}
