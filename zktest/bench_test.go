package zktest_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/zsync/zsync/zktest"
)

// The benchmarks run on zktest over TCP, and on the real server that
// ZSYNC_TEST_STANDALONE names as well if it is set.
func benchServers(b *testing.B, f func(b *testing.B, addr string)) {
	b.Run("zktest", func(b *testing.B) { f(b, zktest.Start(b).Addr()) })
	if addr := os.Getenv("ZSYNC_TEST_STANDALONE"); addr != "" {
		b.Run("java", func(b *testing.B) { f(b, addr) })
	}
}

func benchDial(b *testing.B, addr string) *zk.Conn {
	conn, events, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	return conn
}

// pipelined runs f b.N times on n goroutines.
func pipelined(b *testing.B, n int, f func() error) {
	work := make(chan struct{}, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for range work {
				if err := f(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			benchServers(b, func(b *testing.B, addr string) {
				conn := benchDial(b, addr)
				b.ResetTimer()
				pipelined(b, n, func() error { _, _, err := conn.Get("/"); return err })
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		})
	}
}

func BenchmarkCreateDelete(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			benchServers(b, func(b *testing.B, addr string) {
				conn := benchDial(b, addr)
				b.ResetTimer()
				pipelined(b, n, func() error {
					path, err := conn.Create("/b-", nil, zk.FlagEphemeral|zk.FlagSequence, open)
					if err != nil {
						return err
					}
					return conn.Delete(path, -1)
				})
				b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			})
		})
	}
}
