package line

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/session"
)

// Of every kind of contender there is a spot that tells its name.
func TestASpotTellsTheNamesThatZsyncCuratorAndKazooMake(t *testing.T) {
	for _, base := range contenderBases {
		for _, seq := range []int32{0, 7, 1234567890, 2147483647} {
			for _, head := range []string{session.ProtectedName(session.NewGUID(), ""), session.ProtectedName(session.NewMarkedGUID(), ""), KazooName(session.NewGUID(), "")} {
				name := fmt.Sprintf("%s%s%010d", head, base, seq)
				c, ok := ParseChild(name, base)
				if told, known := spotOf(c).name(); !ok || !known || told != name {
					t.Errorf("of %q the spot tells %q, %v", name, told, known)
				}
			}
		}
	}
}

// What differs in its name differs in its spot, and a spot that tells a name tells its own.
func FuzzASpotIsOfOneName(f *testing.F) {
	curator, kazoo := session.ProtectedName(session.NewGUID(), "lock-"), KazooName(session.NewGUID(), "__lock__")
	for _, head := range []string{curator, kazoo, "lock-", "_c_" + strings.ToUpper(curator[3:]), curator[1:], strings.Replace(curator, "-", "_", 1), strings.ReplaceAll(curator, "-", "")} {
		f.Add(head+"0000000001", head+"0000000002")
		f.Add(head+"-2147483648", head+"-000000001")
		f.Add(head+"0000000001", kazoo+"0000000001")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, base := range contenderBases {
			c, isC := ParseChild(a, base)
			d, isD := ParseChild(b, base)
			if !isC || !isD {
				continue
			}
			if (spotOf(c) == spotOf(d)) != (a == b) {
				t.Errorf("%q and %q: %v, %v", a, b, spotOf(c), spotOf(d))
			}
			if told, known := spotOf(c).name(); known && told != a {
				t.Errorf("of %q the spot tells %q", a, told)
			}
		}
	})
}

// A long line in which somebody has a name of his own making is listed, as before.
func TestWhoseNameCannotBeToldIsNotAskedAfter(t *testing.T) {
	var in []Child
	for i := range longLine {
		guid := session.NewGUID()
		name := fmt.Sprintf("%s%010d", session.ProtectedName(guid, "lock-"), i)
		if i == 3 {
			name = fmt.Sprintf("of my own lock-%010d", i)
		}
		c, _ := ParseChild(name, "lock-")
		in = append(in, c)
	}
	v := &view{sure: true, long: true, dir: 1}
	for _, c := range in {
		v.spots = append(v.spots, spotOf(c))
	}
	names := func(to int) (names []string) {
		for _, c := range in[:to] {
			names = append(names, c.Name)
		}
		return names
	}
	for _, i := range []int{1, 2, 3} {
		if got := v.aheadOf(1, in[i]); !slices.Equal(got, names(i)) {
			t.Errorf("ahead of number %d: %q", i, got)
		}
	}
	if got := v.aheadOf(1, in[4+rand.IntN(100)]); got != nil {
		t.Errorf("it asks after %q", got)
	}
}
