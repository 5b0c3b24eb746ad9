package double

import (
	"bytes"
	"errors"
	"testing"

	"github.com/zsync/zsync/internal/session"
)

// What the data of a room is read as, is what would be written; anybody may have
// written it.
func FuzzRoomState(f *testing.F) {
	for _, s := range []string{"3", "3 1:-1:2", "3 1:-1:2 2:2:7", "0", "x", "3 1:2", "3 1:2:3x", "2 2147483648:0:1", " 3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		state, err := parseRoomState([]byte(s))
		if err != nil {
			if !errors.Is(err, session.ErrInvalid) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		again, err := parseRoomState(state.bytes())
		if err != nil || !bytes.Equal(again.bytes(), state.bytes()) {
			t.Errorf("%q is read as %q, and that as %q, %v", s, state.bytes(), again.bytes(), err)
		}
	})
}
