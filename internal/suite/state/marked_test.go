package state

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// A stringStore stores a string with a codec, and reads it again.
type stringStore struct {
	store func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error
	read  func(ctx context.Context, s *zsync.Session, codec zsync.CodecOption) (string, error)
}

func readValue(ctx context.Context, s *zsync.Session, codec zsync.CodecOption) (string, error) {
	text, _, err := zsync.NewValue[string](s, "/x", codec).Load(ctx)
	return text, err
}

func readKey(ctx context.Context, s *zsync.Session, codec zsync.CodecOption) (string, error) {
	text, _, err := zsync.NewMap[string](s, "/x", codec).Load(ctx, "k")
	return text, err
}

var stringStores = map[string]stringStore{
	"Value.Store": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		return zsync.NewValue[string](s, "/x", codec).Store(ctx, text)
	}, readValue},
	"Value.Update": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		_, err := zsync.NewValue[string](s, "/x", codec).Update(ctx, func(string) (string, error) { return text, nil })
		return err
	}, readValue},
	"Map.Store": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		return zsync.NewMap[string](s, "/x", codec).Store(ctx, "k", text)
	}, readKey},
	"Map.Swap": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		_, _, err := zsync.NewMap[string](s, "/x", codec).Swap(ctx, "k", text)
		return err
	}, readKey},
	"OnceValue": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		_, err := zsync.OnceValue(s, "/x", func(context.Context) (string, error) { return text, nil }, codec)(ctx)
		return err
	}, func(ctx context.Context, s *zsync.Session, codec zsync.CodecOption) (string, error) {
		return zsync.OnceValue(s, "/x", func(context.Context) (string, error) { return "", zsync.ErrNoValue }, codec)(ctx)
	}},
	"OnceValues": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		_, _, err := zsync.OnceValues(s, "/x", func(context.Context) (string, string, error) { return "first", text, nil }, codec)(ctx)
		return err
	}, func(ctx context.Context, s *zsync.Session, codec zsync.CodecOption) (string, error) {
		_, text, err := zsync.OnceValues(s, "/x", func(context.Context) (string, string, error) { return "", "", zsync.ErrNoValue }, codec)(ctx)
		return text, err
	}},
	"Flight.Do": {func(ctx context.Context, s *zsync.Session, text string, codec zsync.CodecOption) error {
		_, _, err := zsync.NewFlight[string](s, "/x", time.Minute, codec).Do(ctx, "k", func(context.Context) (string, error) { return text, nil })
		return err
	}, func(ctx context.Context, s *zsync.Session, codec zsync.CodecOption) (string, error) {
		text, _, err := zsync.NewFlight[string](s, "/x", time.Minute, codec).Do(ctx, "k", func(context.Context) (string, error) { return "", zsync.ErrNoValue })
		return text, err
	}},
}

// The znode that is the parent of a lock, or of the keys of a Map, has such data.
var likeAParent = []string{"zsync directory", "several lines\nzsync directory", "zsync map"}

// What is stored can be read by others, or it is refused.
func TestNoStoredValueIsTakenForTheParentOfAPrimitive(t *testing.T) {
	for name, x := range stringStores {
		for kind, codec := range map[string]zsync.CodecOption{"Raw": zsync.WithCodec(zsync.Raw), "Gob": zsync.WithCodec(zsync.Gob)} {
			t.Run(name+" with "+kind, func(t *testing.T) {
				for _, text := range likeAParent {
					harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
						err := x.store(t.Context(), suite.Open(t, srv), text, codec)
						got, e := x.read(t.Context(), suite.Open(t, srv), codec)
						stored, refused := got == text && e == nil, errors.Is(err, zsync.ErrInvalid) && errors.Is(e, zsync.ErrNoValue)
						if !(err == nil && stored || refused) {
							t.Errorf("%q is stored with the error %v, and read as %q, %v", text, err, got, e)
						}
					})
				}
			})
		}
	}
}

func TestABarrierIsClosedWhateverItsOwnerIsCalled(t *testing.T) {
	for _, owner := range likeAParent {
		harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
			b := zsync.NewBarrier(suite.Open(t, srv, zsync.WithOwner(owner)), "/x")
			harness.Must(t, b.Close(t.Context()))
			harness.Must(t, b.Close(t.Context()))
			waiting := harness.Async(func() error { return b.Wait(t.Context()) })
			harness.PendingStill(t, waiting)
			harness.Must(t, b.Open(t.Context()))
			harness.Must(t, <-waiting)
		})
	}
}
