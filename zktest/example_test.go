package zktest_test

import (
	"fmt"
	"log"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/zktest"
)

// This example loses the reply to a create. The client cannot know whether its
// znode was created; it was.
func ExampleServer_Intercept() {
	srv := zktest.NewServer()
	defer srv.Close()
	srv.Intercept(func(r zktest.Request) zktest.Action {
		if r.Op == zktest.OpCreate && r.Path == "/a" {
			return zktest.DropReply
		}
		return zktest.Pass
	})

	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Minute, zk.WithDialer(srv.Dial), zk.WithLogger(silent{}))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.Create("/a", nil, 0, zk.WorldACL(zk.PermAll))
	fmt.Println(err)
	exists, _, _ := conn.Exists("/a")
	fmt.Println(exists)

	// Output:
	// zk: connection closed
	// true
}

// This example counts what a piece of code asks of the server.
func ExampleCounts_Sub() {
	srv := zktest.NewServer()
	defer srv.Close()
	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Minute, zk.WithDialer(srv.Dial), zk.WithLogger(silent{}))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	_, _, _ = conn.Exists("/")

	before := srv.Counts()
	_, _, _, _ = conn.ExistsW("/missing")
	_, _, _ = conn.Get("/")
	cost := srv.Counts().Sub(before)
	fmt.Println(cost.Total(), cost.Requests["exists"], cost.Watches)

	// Output:
	// 2 1 1
}
