package zsync_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/zsync/zsync"
)

func FuzzEnvelopes(f *testing.F) {
	f.Add([]byte(`{"A":1}`), []byte("x"))
	f.Add([]byte{0, 0, 0, 1, '1', '2'}, []byte{0xff, 0xff, 0xff, 0xff})
	type record struct {
		A int
		B []string
		C map[string]time.Time
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		data, err := zsync.EncodePair(zsync.Raw, first, string(second))
		if err != nil {
			t.Fatal(err)
		}
		a, b, err := zsync.DecodePair[[]byte, string](zsync.Raw, data)
		if err != nil || !bytes.Equal(a, first) || b != string(second) {
			t.Errorf("%q and %q come back as %q and %q, %v", first, second, a, b, err)
		}
		for _, c := range []zsync.Codec{zsync.JSON, zsync.Gob, zsync.Raw} {
			_, _, _ = zsync.DecodePair[record, string](c, first)
			_, _, _ = zsync.DecodePair[string, record](c, first)
		}
	})
}
