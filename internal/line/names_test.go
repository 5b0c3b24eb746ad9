package line

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/session"
)

func TestSequenceOrderSurvivesWrap(t *testing.T) {
	for _, tt := range []struct {
		a, b   int32
		before bool
	}{
		{0, 1, true}, {1, 0, false}, {5, 5, false},
		{math.MaxInt32, math.MinInt32, true}, // the wrap itself
		{math.MinInt32, math.MaxInt32, false},
		{math.MaxInt32 - 10, math.MinInt32 + 10, true},
		{-1, 0, true},
	} {
		if got := (Child{Seq: tt.a}).before(Child{Seq: tt.b}); got != tt.before {
			t.Errorf("child %d before %d: got %v, want %v", tt.a, tt.b, got, tt.before)
		}
	}
	got := ParseChildren([]string{
		"_c_b-lock--2147483648", "_c_a-lock-2147483647", "_c_c-lock--2147483647",
	}, "lock-")
	var order []string
	for _, c := range got {
		order = append(order, c.Name)
	}
	want := []string{"_c_a-lock-2147483647", "_c_b-lock--2147483648", "_c_c-lock--2147483647"}
	if !slices.Equal(order, want) {
		t.Errorf("order across the wrap: got %v, want %v", order, want)
	}
}

// Who carries no unique prefix, as a plain client's candidate, is not the one of every
// wish.
func TestAWishIsForTheOneWhomItNamesAlone(t *testing.T) {
	bases := []string{"latch-"}
	me, _ := ParseChild("_c_aaaa-latch-0000000002", bases...)
	heir, _ := ParseChild("_c_bbbb-latch-0000000003", bases...)
	plain, _ := ParseChild("latch-0000000004", bases...)
	for _, c := range []struct {
		wish Child
		rest []Child
		want bool
	}{
		{heir, []Child{heir, plain}, true},
		{heir, []Child{plain}, false}, // the heir has gone
		{plain, []Child{heir}, false},
		{plain, []Child{heir, plain}, true},
		{me, []Child{heir, plain}, false},
	} {
		names := []string{me.Name, WishFor(c.wish)}
		for _, other := range c.rest {
			names = append(names, other.Name)
		}
		if defers, wishes := Defers(me, names, bases, nil); defers != c.want || (len(wishes) == 1) != (c.wish == me) {
			t.Errorf("of %q %q defers: %v, with the wishes %q; want %v", names, me.Name, defers, wishes, c.want)
		}
	}
}

func TestALongLineIsInTheOrderOfItsNumbersAndThoseOfOneNumberInThatOfTheirNames(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 11))
	for _, first := range []int32{0, 12345, math.MaxInt32 - 500, math.MinInt32, -500} {
		var names []string
		var want []Child
		for i := range int32(1000) {
			for range 1 + r.IntN(2)*r.IntN(3) {
				c := Child{Name: fmt.Sprintf("_c_%s-lock-%010d", session.NewGUID(), first+i), Base: "lock-", Seq: first + i}
				names, want = append(names, c.Name), append(want, c)
			}
		}
		slices.SortFunc(want, func(a, b Child) int {
			if a.Seq == b.Seq {
				return strings.Compare(a.Name, b.Name)
			}
			return int(a.Seq - b.Seq)
		})
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if got := ParseChildren(names, "lock-"); !slices.Equal(got, want) {
			t.Errorf("from %d on they are not in order", first)
		}
	}
}
