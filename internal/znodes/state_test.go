package znodes

import (
	"cmp"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

// What another program may have made as a container is kept by a child before anything is stored
// there; what has been written is as it is; and where the servers would remove it nothing is
// stored.
func TestWhatIsStoredInLasts(t *testing.T) {
	for name, c := range map[string]struct {
		data   []byte
		flags  int32
		write  bool
		refuse zktest.Op
		code   int32 // of the refusal; 0 is for NoAuth
		there  bool
		kept   bool
		err    error
	}{
		"made by others, and empty":   {there: true, kept: true},
		"nothing may be made in it":   {refuse: zktest.OpCreate, there: true},
		"no child can keep it":        {refuse: zktest.OpCreate, code: zktest.CodeQuotaExceeded, err: wire.Code(zktest.CodeQuotaExceeded)},
		"made with data":              {data: []byte("5"), there: true},
		"written, and empty":          {write: true, there: true},
		"a directory":                 {data: []byte(marks.Dir), err: ErrMixed},
		"a directory that holds data": {data: marks.Mark([]byte("5")), err: ErrMixed},
		"ephemeral":                   {data: []byte("5"), flags: zk.FlagEphemeral, err: ErrMixed},
		"it may not be read":          {data: []byte("5"), refuse: zktest.OpGetData, err: zk.ErrNoAuth},
		"not there":                   {flags: -1},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				inc := live(t, s)
				if c.flags >= 0 {
					_, err := session.Retry(t.Context(), inc, createCall(inc, "/d", c.data, c.flags))
					harness.Must(t, err)
				}
				if c.write {
					_, err := inc.Set(t.Context(), "/d", nil, 0)
					harness.Must(t, err)
				}
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == c.refuse {
						return zktest.Fail(cmp.Or(c.code, zktest.CodeNoAuth))
					}
					return zktest.Pass
				})
				for range 2 { // the second time it is remembered
					czxid, err := Storable(t.Context(), inc, Stored{Path: "/d"}, false)
					if c.err != nil {
						harness.WantErr(t, err, c.err)
					} else {
						harness.Must(t, err)
					}
					if there := czxid != 0; there != c.there {
						t.Errorf("there: %v", there)
					}
				}
				srv.Intercept(nil)
				if kept := c.flags >= 0 && c.flags != zk.FlagEphemeral && len(childrenOf(t, s, "/d")) > 0; kept != c.kept {
					t.Errorf("kept: %v", kept)
				}
			})
		})
	}
}
