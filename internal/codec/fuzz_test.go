package codec

import (
	"bytes"
	"testing"
	"time"
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
		data, err := EncodePair(Raw, first, string(second))
		if err != nil {
			t.Fatal(err)
		}
		f, s, err := DecodePair[[]byte, string](Raw, data)
		if err != nil || !bytes.Equal(f, first) || s != string(second) {
			t.Errorf("%q and %q come back as %q and %q, %v", first, second, f, s, err)
		}
		for _, c := range []Encoding{JSON, Gob, Raw} {
			_, _, _ = DecodePair[record, string](c, first)
			_, _, _ = DecodePair[string, record](c, first)
		}
	})
}
