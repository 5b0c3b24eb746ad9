package look_test

import (
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/zktest"
)

func TestAPlaceThatMayOnlyBeKeptIsShownAsSuch(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	s, eyes := connect(t, srv), connect(t, srv)
	for path, opts := range map[string][]zsync.LockOption{
		"/kept":   {zsync.WithRetention(time.Minute)},
		"/common": nil,
	} {
		m := zsync.NewMutex(s, path, opts...)
		if err := m.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		lines, err := look.At(t.Context(), eyes, path)
		if err != nil || len(lines) != 1 {
			t.Fatal(lines, err)
		}
		want := "holds"
		if opts != nil {
			want = "holds, or only keeps its place"
		}
		if l := lines[0]; !l.Holding || l.Retained != (opts != nil) || l.State != want {
			t.Errorf("%s: %+v", path, l)
		}
	}
}
