package strangers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// An emptyMaker adds to a counter as kazoo's Counter does: it makes the znode and its
// parents, with nothing in them; reads it; and writes the sum if the znode is still
// as it was, or else reads it again. Steps are made one by one.
type emptyMaker struct {
	t    *testing.T
	conn *zk.Conn
	path string
	add  int64

	made, read, done bool
	sum              int64
	version          int32
}

func (c *emptyMaker) step() {
	switch {
	case c.done:
	case !c.made:
		for i := 1; i <= len(c.path); i++ {
			if i == len(c.path) || c.path[i] == '/' {
				if _, err := c.conn.Create(c.path[:i], nil, 0, zk.WorldACL(zk.PermAll)); !errors.Is(err, zk.ErrNodeExists) {
					harness.Must(c.t, err)
				}
			}
		}
		c.made = true
	case !c.read:
		data, stat, err := c.conn.Get(c.path)
		harness.Must(c.t, err)
		if c.sum = c.add; len(data) > 0 {
			x, err := strconv.ParseInt(string(data), 10, 64)
			harness.Must(c.t, err)
			c.sum += x
		}
		c.version, c.read = stat.Version, true
	default:
		switch _, err := c.conn.Set(c.path, strconv.AppendInt(nil, c.sum, 10), c.version); {
		case errors.Is(err, zk.ErrBadVersion):
			c.read = false
		default:
			harness.Must(c.t, err)
			c.done = true
		}
	}
}

// Another makes the znode empty, reads it and adds to it before any of our requests:
// each addition counts once, also if the connection breaks under one of ours.
func TestEachAdditionCountsOnceThoughAnotherMakesTheZnodeEmptyInBetween(t *testing.T) {
	t.Parallel()
	const ours, theirs = 2, 3
	ways := map[string]func(t *testing.T, s *zsync.Session, path string) error{
		"Update": func(t *testing.T, s *zsync.Session, path string) error {
			_, err := zsync.NewValue[int64](s, path).Update(t.Context(), func(x int64) (int64, error) { return x + ours, nil })
			return err
		},
		"Add": func(t *testing.T, s *zsync.Session, path string) error {
			_, err := zsync.NewInt64(s, path).Add(t.Context(), ours)
			return err
		},
	}
	faults := map[string]zktest.Action{"none": zktest.Pass, "a request is lost": zktest.DropRequest, "a reply is lost": zktest.DropReply}
	for way, add := range ways {
		for fault, action := range faults {
			if way == "Update" && fault != "none" {
				continue // Add is Update
			}
			t.Run(way+", "+fault, func(t *testing.T) {
				harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
					s, conn := suite.Open(t, srv), harness.Plain(t, srv)
					// try has the other's three steps made before our requests of these
					// numbers, and the fault at one of ours; it reports how many we made.
					try := func(at [3]int, broken int) (n int) {
						path := fmt.Sprintf("/%s/%d-%d-%d-%d", strings.ToLower(way), at[0], at[1], at[2], broken)
						other := &emptyMaker{t: t, conn: conn, path: path, add: theirs}
						var mu sync.Mutex
						ended := false // guarded by mu, as n is
						suite.RequestsOf(srv, s, func(i int, r zktest.Request) zktest.Action {
							mu.Lock()
							defer mu.Unlock()
							if ended {
								return zktest.Pass
							}
							n = i
							for _, step := range at {
								if step == i {
									other.step()
								}
							}
							if i == broken {
								return action
							}
							return zktest.Pass
						})
						harness.Must(t, add(t, s, path))
						mu.Lock()
						ended = true
						mu.Unlock()
						for range 9 {
							other.step()
						}
						data, _, err := conn.Get(path)
						harness.Must(t, err)
						if string(data) != fmt.Sprint(ours+theirs) {
							t.Errorf("the other's steps before requests %v, the fault at %d: %q, want %d", at, broken, data, ours+theirs)
						}
						time.Sleep(time.Second) // receipts are deleted, and the next connection is there
						synctest.Wait()
						return n
					}
					alone := try([3]int{}, 0) // the other comes behind us
					most := alone
					for i := 1; i <= most; i++ {
						for j := i; j <= most; j++ {
							for k := j; k <= most; k++ {
								breaks := []int{0}
								if fault != "none" {
									if j != k {
										continue
									}
									breaks = slices.Compact([]int{i, k})
								}
								for _, broken := range breaks {
									most = max(most, min(try([3]int{i, j, k}, broken), 2*alone))
								}
							}
						}
					}
					if t.Logf("%d requests alone, up to %d", alone, most); most <= alone {
						t.Error("the other was never in the way")
					}
				})
			})
		}
	}
}
