package zsync_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A Mutex becomes a sync.Locker, for code that takes one.
func ExampleSyncLocker() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	increment := func(l sync.Locker, n *int) { // does not know zsync
		l.Lock()
		defer l.Unlock()
		*n++
	}
	n := 0
	increment(zsync.SyncLocker(ctx, zsync.NewMutex(s, "/locks/n")), &n)
	fmt.Println(n)
	// Output: 1
}
