package state

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

type job struct{ Name string }

// What is stored is what was given, or it is refused.
func TestAStringThatIsNoUTF8IsRefusedByEachPrimitiveThatStoresJSON(t *testing.T) {
	bad := job{Name: "a\xff"}
	for name, store := range map[string]func(ctx context.Context, s *zsync.Session) error{
		"Value.Store": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewValue[job](s, "/x").Store(ctx, bad)
		},
		"Value.Update": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewValue[job](s, "/x").Update(ctx, func(job) (job, error) { return bad, nil })
			return err
		},
		"Map.Store": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewMap[job](s, "/x").Store(ctx, "k", bad)
		},
		"Queue.Send": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[job](s, "/x").Send(ctx, job{"fine"}, bad)
		},
		"OnceValue": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.OnceValue(s, "/x", func(context.Context) (job, error) { return bad, nil })(ctx)
			return err
		},
		"OnceValues": func(ctx context.Context, s *zsync.Session) error {
			_, _, err := zsync.OnceValues(s, "/x", func(context.Context) (int, job, error) { return 1, bad, nil })(ctx)
			return err
		},
		"Group.Join": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewGroup[job](s, "/x").Join(ctx, "me", bad)
			return err
		},
		"Flight.Do": func(ctx context.Context, s *zsync.Session) error {
			_, _, err := zsync.NewFlight[job](s, "/x", time.Minute).Do(ctx, "k", func(context.Context) (job, error) { return bad, nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				s := suite.Open(t, srv)
				err := store(t.Context(), s)
				harness.WantErr(t, err, zsync.ErrInvalid)
				if !strings.Contains(err.Error(), ".Name") {
					t.Errorf("%v; want the name of the field", err)
				}
			})
		})
	}
}

// A json.RawMessage, as any json.Marshaler, may have bytes that JSON cannot hold.
func TestAJSONTextThatIsNoUTF8IsRefusedBeforeItIsStored(t *testing.T) {
	bad := json.RawMessage("\"a\xff\"")
	for name, store := range map[string]func(ctx context.Context, s *zsync.Session) error{
		"Value.Store": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewValue[json.RawMessage](s, "/x").Store(ctx, bad)
		},
		"Map.Store, within another value": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewMap[map[string]any](s, "/x").Store(ctx, "k", map[string]any{"raw": bad})
		},
		"Queue.Send": func(ctx context.Context, s *zsync.Session) error {
			return zsync.NewQueue[json.RawMessage](s, "/x").Send(ctx, json.RawMessage("1"), bad)
		},
		"Group.Join": func(ctx context.Context, s *zsync.Session) error {
			_, err := zsync.NewGroup[json.RawMessage](s, "/x").Join(ctx, "me", bad)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
				harness.WantErr(t, store(t.Context(), suite.Open(t, srv)), zsync.ErrInvalid)
			})
		})
	}
}
