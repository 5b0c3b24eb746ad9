package zsync_test

import (
	"context"
	"fmt"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// connect connects to a server of its own, as the examples do that need no more
// than one process.
func connect(ctx context.Context) (s *zsync.Session, end func(), err error) {
	srv := zktest.NewServer()
	s, err = zsync.Connect(ctx, srv.Addr())
	if err != nil {
		srv.Close()
		return nil, nil, err
	}
	return s, func() { s.Close(); srv.Close() }, nil
}

// This example has one process at a time work on the accounts. It brings its own
// server; yours is named to Connect as "zk1:2181,zk2:2181,zk3:2181".
func Example() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()

	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	accounts := zsync.NewMutex(s, "/locks/accounts")
	err = accounts.Do(ctx, func(ctx context.Context) error {
		// ctx ends, with cause zsync.ErrLost, if the lock is lost.
		fmt.Println("one process at a time")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// one process at a time
	// <nil>
}
