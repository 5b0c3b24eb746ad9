package zsync_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

func TestInt64DoesWhatAtomicInt64Does(t *testing.T) {
	for name, opts := range map[string][]zsync.ValueOption{"decimal": nil, "Curator's": {zsync.WithCodec(zsync.BigEndian)}} {
		t.Run(name, func(t *testing.T) {
			anywhere(t, func(t *testing.T, connect func(...zsync.Option) *zsync.Session) {
				ctx := within(t, 2*time.Minute)
				a, b := zsync.NewInt64(connect(), "/deep/n", opts...), zsync.NewInt64(connect(), "/deep/n", opts...)
				want := func(got int64, err error, want int64) {
					t.Helper()
					if got != want || err != nil {
						t.Fatalf("got %d, %v; want %d", got, err, want)
					}
				}
				is := func(got bool, err error, want bool) {
					t.Helper()
					if got != want || err != nil {
						t.Fatalf("got %v, %v; want %v", got, err, want)
					}
				}
				x, err := a.Load(ctx)
				want(x, err, 0)
				ok, err := a.CompareAndSwap(ctx, 1, 2)
				is(ok, err, false)
				ok, err = a.CompareAndSwap(ctx, 0, 2)
				is(ok, err, true)
				x, err = b.Add(ctx, -5)
				want(x, err, -3)
				x, err = a.Swap(ctx, math.MaxInt64)
				want(x, err, -3)
				x, err = b.Add(ctx, 1)
				want(x, err, math.MinInt64)
				must(t, a.Store(ctx, 7))
				x, err = b.Load(ctx)
				want(x, err, 7)
				ok, err = b.CompareAndSwap(ctx, 7, 8)
				is(ok, err, true)
				ok, err = a.CompareAndSwap(ctx, 7, 9)
				is(ok, err, false)
			})
		})
	}
}

func TestAnEmptyZnodeIsZeroToAnInt64(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		for path, opts := range map[string][]zsync.ValueOption{"/decimal": nil, "/big": {zsync.WithCodec(zsync.BigEndian)}} {
			must(t, zsync.NewValue[[]byte](s, path, zsync.WithCodec(zsync.Raw)).Store(t.Context(), nil))
			n := zsync.NewInt64(s, path, opts...)
			if x, err := n.Add(t.Context(), 3); x != 3 || err != nil {
				t.Errorf("Add = %d, %v; want 3", x, err)
			}
		}
	})
}

func TestInt64RefusesWhatIsNoNumber(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewValue[string](s, "/n").Store(t.Context(), "text"))
		for _, n := range []*zsync.Int64{zsync.NewInt64(s, "/n"), zsync.NewInt64(s, "/n", zsync.WithCodec(zsync.BigEndian)), zsync.NewInt64(s, "n"), zsync.NewInt64(nil, "/n"), {}} {
			if _, err := n.Load(t.Context()); err == nil {
				t.Error("Load of no number succeeds")
			}
			if _, err := n.Add(t.Context(), 1); err == nil {
				t.Error("Add to no number succeeds")
			}
			if _, err := n.Swap(t.Context(), 1); err == nil {
				t.Error("Swap of no number succeeds")
			}
			if ok, err := n.CompareAndSwap(t.Context(), 0, 1); ok || err == nil {
				t.Error("CompareAndSwap of no number succeeds")
			}
		}
		n := zsync.NewInt64(s, "/n")
		must(t, n.Store(t.Context(), 1))
		if x, err := n.Load(t.Context()); x != 1 || err != nil {
			t.Errorf("Load after Store = %d, %v", x, err)
		}
	})
}

func TestCompareAndSwapDoesNotAnswerByANumberOfBeforeTheCall(t *testing.T) {
	// The first look is at a server that lags: there the number is still 0. The
	// look that is to tell whether that was so at the time of the call fails.
	fails := map[string]func(cancel func()) zktest.Action{
		"ctx ends":    func(cancel func()) zktest.Action { cancel(); return zktest.DropReply },
		"refused":     func(func()) zktest.Action { return zktest.Fail(zktest.CodeNoAuth) },
		"is answered": func(func()) zktest.Action { return zktest.Pass },
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, srv *zktest.Server) {
				quick, slow := openAt(t, srv, 0), openAt(t, srv, 1)
				srv.SetLag(srv.Addrs()[1], 5*time.Second)
				must(t, zsync.NewInt64(quick, "/n").Store(t.Context(), 1))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				looks := 0
				read := oneByOne(srv, func(r zktest.Request) zktest.Action {
					if r.Session != slow.ID() || r.Op != zktest.OpGetData {
						return zktest.Pass
					}
					if looks++; looks == 2 {
						return fail(cancel)
					}
					return zktest.Pass
				})
				ok, err := zsync.NewInt64(slow, "/n").CompareAndSwap(ctx, 1, 2)
				switch name {
				case "ctx ends":
					wantErr(t, err, context.Canceled)
				case "refused":
					wantErr(t, err, zk.ErrNoAuth)
				default:
					if !ok || err != nil {
						t.Errorf("CompareAndSwap = %v, %v of a number that is as it expects", ok, err)
					}
				}
				read(func() {
					if looks < 2 {
						t.Error("the case did not come about")
					}
				})
			}, zktest.WithAddrs("127.0.0.1:1", "127.0.0.1:2"))
		})
	}
}

func TestInt64DoesNotTakeNullForANumber(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		s := open(t, srv)
		must(t, zsync.NewValue[string](s, "/n", zsync.WithCodec(zsync.Raw)).Store(t.Context(), "null"))
		n := zsync.NewInt64(s, "/n")
		if x, err := n.Load(t.Context()); err == nil {
			t.Errorf("Load of null = %v, nil", x)
		}
		if x, err := n.Add(t.Context(), 1); err == nil {
			t.Errorf("Add to null = %v, nil", x)
		}
	})
}
