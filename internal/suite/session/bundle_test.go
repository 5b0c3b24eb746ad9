package session

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/inside"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/internal/znodes"
	"github.com/zsync/zsync/zktest"
)

func TestGetAllReadsEveryZnodeWithFewRequests(t *testing.T) {
	suite.Anywhere(t, func(t *testing.T, connect func(opts ...zsync.Option) *zsync.Session) {
		s := connect()
		var paths []string
		want := make(map[string][]byte)
		for i := range 300 {
			path := inside.Manager(s).Full(fmt.Sprintf("/many/n-%d", i))
			paths = append(paths, path)
			if i%7 == 3 {
				continue // missing
			}
			want[path] = bytes.Repeat([]byte{byte(i)}, i%5*100) // some are empty
		}
		harness.Must(t, inside.Manager(s).During(t.Context(), func(inc *session.Incarnation) error {
			for path, data := range want {
				if _, err := znodes.Create(t.Context(), inc, path, data); err != nil {
					return err
				}
			}
			for round := range 2 {
				before := s.Stats().Requests
				nodes, err := znodes.GetAll(t.Context(), inc, paths)
				if err != nil {
					return err
				}
				// How large they are it does not know: so it asks for 16, for 64, and then for 128 at a time.
				if n := s.Stats().Requests - before; n > 4 {
					t.Errorf("round %d: %d requests", round, n)
				}
				for i, n := range nodes {
					data, ok := want[paths[i]]
					if ok != (n.Stat != nil) || !bytes.Equal(data, n.Data) {
						t.Fatalf("%s: %q %v, want %q %v", paths[i], n.Data, n.Stat, data, ok)
					}
					if !ok {
						continue
					}
					_, stat, err := inc.Get(t.Context(), paths[i])
					if err != nil || *stat != *n.Stat {
						t.Fatalf("%s: stat %+v, want %+v, %v", paths[i], n.Stat, stat, err)
					}
				}
			}
			return nil
		}))
	})
}

func TestGetAllDoesWithoutMultiReadWhereServersDoNotKnowIt(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := suite.Open(t, srv)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMultiRead {
				return zktest.Fail(zktest.CodeUnimplemented)
			}
			return zktest.Pass
		})
		harness.Must(t, inside.Manager(s).During(t.Context(), func(inc *session.Incarnation) error {
			_, err := znodes.Create(t.Context(), inc, "/a", []byte("x"))
			harness.Must(t, err)
			for range 2 {
				nodes, err := znodes.GetAll(t.Context(), inc, []string{"/a", "/b"})
				harness.Must(t, err)
				if string(nodes[0].Data) != "x" || nodes[1].Stat != nil {
					t.Errorf("got %v", nodes)
				}
			}
			return nil
		}))
		if n := srv.Counts().Requests["multiRead"]; n != 1 {
			t.Errorf("multiRead was tried %d times", n)
		}
	})
}
