package session

import (
	"bytes"
	"testing"

	"github.com/zsync/zsync/internal/wire"
	"github.com/zsync/zsync/zktest"
)

func FuzzParseBundleNeverPanics(f *testing.F) {
	one := append([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x'}, make([]byte, wire.StatSize)...)
	end := []byte{0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff}
	missing := []byte{0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0x9b, 0xff, 0xff, 0xff, 0x9b}
	if nodes, refused, err := parseBundle(bytes.Join([][]byte{one, missing, end}, nil), 2); err != nil ||
		len(nodes) != 2 || len(refused) != 0 || string(nodes[0].Data) != "x" || nodes[1].Stat != nil {
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
				must(t, s.m.During(t.Context(), func(inc *Incarnation) error {
					_, err := inc.Create(t.Context(), "/a", []byte("x"))
					must(t, err)
					nodes, err := inc.GetAll(t.Context(), []string{"/a", "/b", "/a"})
					must(t, err)
					if seen != 3 || string(nodes[0].Data) != "x" || nodes[1].Stat != nil || string(nodes[2].Data) != "x" {
						t.Errorf("got %v after %d attempts", nodes, seen)
					}
					return nil
				}))
			})
		})
	}
}
