package hammer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/suite"
)

// Processes come and go. No shard has two owners, and in the end those who stay have
// all of them, evenly. The hammer in virtual time is beside the public package.
func TestHammerPartitionOnServers(t *testing.T) {
	suite.OnServers(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session, stands func(int64) bool) {
		shards := []string{"a", "b/%", "c", "d", "e", "f"}
		rooms := make(map[string]*floor)
		for _, shard := range shards {
			rooms[shard] = &floor{stands: stands}
		}
		until := time.Now().Add(time.Minute)
		last, stop := context.WithCancel(t.Context())
		defer stop()
		var mu sync.Mutex
		owned := make(map[string]map[string]bool) // by process: its shards
		for i := range 3 {
			owned[fmt.Sprint(i)] = make(map[string]bool)
		}
		var coming, staying sync.WaitGroup
		for i := range 3 {
			s := connect()
			process := fmt.Sprint(i)
			run := func(ctx context.Context, id string) {
				err := zsync.NewPartition(s, "/p", zsync.WithMember(id)).Run(ctx, shards, func(ctx context.Context, shard string) error {
					v := &visit{write: true, session: s.ID(), lost: ctx.Done()}
					rooms[shard].enter(t, v)
					mu.Lock()
					owned[process][shard] = true
					mu.Unlock()
					<-ctx.Done()
					mu.Lock()
					delete(owned[process], shard)
					mu.Unlock()
					rooms[shard].leave(v)
					return nil
				})
				if !errors.Is(err, ctx.Err()) {
					t.Errorf("Run: %v", err)
				}
			}
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			coming.Go(func() {
				for n := 0; time.Now().Before(until) && !t.Failed(); n++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rnd.IntN(3000))*time.Millisecond)
					run(ctx, fmt.Sprint(i, ".", n))
					cancel()
				}
				staying.Go(func() { run(last, process) })
			})
		}
		coming.Wait()
		even := func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, mine := range owned {
				if len(mine) != 2 {
					return false
				}
			}
			return true
		}
		// Connections still break and sessions end, so it may become uneven again.
		// real time: members divide the shards of real servers meanwhile
		for start := time.Now(); !even(); time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Errorf("the shards are spread as %v", owned)
				break
			}
		}
		stop()
		staying.Wait()
	})
}
