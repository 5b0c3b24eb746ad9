package session

import (
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/zktest"
)

// Whoever may only read and write what others have made does so as before. But the
// version −1, which means any, is taken further, or that is an error.
func TestADirectoryIsKeptByWhoMay(t *testing.T) {
	mark := []byte("the mark")
	for name, c := range map[string]struct {
		data   []byte
		stat   *zk.Stat // what it is told; nil: it asks
		refuse zktest.Op
		marked bool
		then   string // its data in the end
		kept   bool   // there is a child
		err    error
	}{
		"made by others":               {nil, nil, 0, true, "the mark", true, nil},
		"its own":                      {mark, nil, 0, false, "the mark", false, nil},
		"nothing may be made in it":    {nil, nil, zktest.OpCreate, false, "", false, nil},
		"it may not be written":        {nil, nil, zktest.OpSetData, false, "", true, nil},
		"its version means any":        {mark, &zk.Stat{DataLength: int32(len(mark)), Version: -1}, 0, true, "the mark", false, nil},
		"that may not be written":      {mark, &zk.Stat{DataLength: int32(len(mark)), Version: -1}, zktest.OpSetData, false, "the mark", false, zk.ErrNoAuth},
		"that, and nothing may change": {nil, &zk.Stat{Version: -1}, zktest.OpCreate, false, "", false, zk.ErrNoAuth},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				inc := live(t, s)
				if marked, err := inc.KeepDir(t.Context(), "/d", mark, nil); marked || err != nil {
					t.Fatalf("what is not there: %v, %v", marked, err)
				}
				_, err := inc.Create(t.Context(), "/d", c.data)
				must(t, err)
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == c.refuse {
						return zktest.Fail(zktest.CodeNoAuth)
					}
					return zktest.Pass
				})
				marked, err := inc.KeepDir(t.Context(), "/d", mark, c.stat)
				if c.err != nil {
					wantErr(t, err, c.err)
				} else {
					must(t, err)
				}
				data, _, err := inc.Get(t.Context(), "/d")
				must(t, err)
				if kept := len(childrenOf(t, s, "/d")) > 0; marked != c.marked || string(data) != c.then || kept != c.kept {
					t.Errorf("marked %v, data %q, kept %v; want %v, %q, %v", marked, data, kept, c.marked, c.then, c.kept)
				}
			})
		})
	}
}
