package zsync

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

func TestGetAllReadsEveryZnodeWithFewRequests(t *testing.T) {
	anywhere(t, func(t *testing.T, connect func(opts ...Option) *Session) {
		s := connect()
		var paths []string
		want := make(map[string][]byte)
		for i := range 300 {
			path := s.full(fmt.Sprintf("/many/n-%d", i))
			paths = append(paths, path)
			if i%7 == 3 {
				continue // missing
			}
			want[path] = bytes.Repeat([]byte{byte(i)}, i%5*100) // some are empty
		}
		must(t, s.during(t.Context(), func(inc *incarnation) error {
			for path, data := range want {
				if _, err := inc.create(t.Context(), path, data); err != nil {
					return err
				}
			}
			for round := range 2 {
				before := s.Stats().Requests
				nodes, err := inc.getAll(t.Context(), paths)
				if err != nil {
					return err
				}
				// At first it does not know how large they are.
				if n := s.Stats().Requests - before; round == 0 && n > 19 || round == 1 && n > 3 {
					t.Errorf("round %d: %d requests", round, n)
				}
				for i, n := range nodes {
					data, ok := want[paths[i]]
					if ok != (n.stat != nil) || !bytes.Equal(data, n.data) {
						t.Fatalf("%s: %q %v, want %q %v", paths[i], n.data, n.stat, data, ok)
					}
					if !ok {
						continue
					}
					_, stat, err := inc.get(t.Context(), paths[i])
					if err != nil || *stat != *n.stat {
						t.Fatalf("%s: stat %+v, want %+v, %v", paths[i], n.stat, stat, err)
					}
				}
			}
			return nil
		}))
	})
}

func TestGetAllSurvivesLostRequestsAndRepliesAndSmallPieces(t *testing.T) {
	for name, action := range map[string]zktest.Action{
		"lost request": zktest.DropRequest, "lost reply": zktest.DropReply,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := open(t, srv)
				var seen int
				srv.Intercept(func(r zktest.Request) zktest.Action {
					if r.Op == zktest.OpMultiRead {
						if seen++; seen <= 2 {
							return action
						}
					}
					return zktest.Pass
				})
				must(t, s.during(t.Context(), func(inc *incarnation) error {
					_, err := inc.create(t.Context(), "/a", []byte("x"))
					must(t, err)
					nodes, err := inc.getAll(t.Context(), []string{"/a", "/b", "/a"})
					must(t, err)
					if seen != 3 || string(nodes[0].data) != "x" || nodes[1].stat != nil || string(nodes[2].data) != "x" {
						t.Errorf("got %v after %d attempts", nodes, seen)
					}
					if len(inc.bundles) != 0 {
						t.Errorf("tokens %v are left", inc.bundles)
					}
					return nil
				}))
			})
		})
	}
}

func TestGetAllDoesWithoutMultiReadWhereServersDoNotKnowIt(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		srv.Intercept(func(r zktest.Request) zktest.Action {
			if r.Op == zktest.OpMultiRead {
				return zktest.Fail(zktest.CodeUnimplemented)
			}
			return zktest.Pass
		})
		must(t, s.during(t.Context(), func(inc *incarnation) error {
			_, err := inc.create(t.Context(), "/a", []byte("x"))
			must(t, err)
			for range 2 {
				nodes, err := inc.getAll(t.Context(), []string{"/a", "/b"})
				must(t, err)
				if string(nodes[0].data) != "x" || nodes[1].stat != nil {
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

func FuzzParseBundleNeverPanics(f *testing.F) {
	one := append([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x'}, make([]byte, wire.StatSize)...)
	end := []byte{0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff}
	missing := []byte{0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0x9b, 0xff, 0xff, 0xff, 0x9b}
	if nodes, refused, err := parseBundle(bytes.Join([][]byte{one, missing, end}, nil), 2); err != nil ||
		len(nodes) != 2 || len(refused) != 0 || string(nodes[0].data) != "x" || nodes[1].stat != nil {
		f.Fatal(nodes, refused, err)
	}
	f.Add(append(one, end...), 1)
	f.Add(append(missing, end...), 1)
	f.Add(end, 0)
	f.Fuzz(func(t *testing.T, p []byte, n int) {
		nodes, refused, err := parseBundle(p, n)
		if err == nil && len(nodes) != n || len(refused) > len(nodes) {
			t.Errorf("%d nodes, %d refused, %v; asked for %d", len(nodes), len(refused), err, n)
		}
	})
}
