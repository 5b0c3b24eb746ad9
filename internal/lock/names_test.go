package lock

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/znodes"
)

func TestNumbersTellTheOrderWhereTheServerCannotHaveBegunAgainBetweenThem(t *testing.T) {
	for _, tt := range []struct {
		numbers   []int32
		exhausted int
		tell      bool
	}{
		{nil, 0, true}, {[]int32{7}, 0, true}, {[]int32{9, 0, 5, 5}, 0, true}, {[]int32{math.MaxInt32 - 1, math.MaxInt32 - 9}, 0, true},
		{[]int32{5, math.MaxInt32}, 1, true}, {[]int32{7, math.MinInt32, math.MinInt32 + 1, 8}, 2, true}, // behind, in no order
		{[]int32{0, -1}, 1, false}, {[]int32{-numberWindow, math.MaxInt32, 3}, 2, false}, // it has begun again
		{[]int32{0, math.MaxInt32 - 1}, 0, false}, // and this one may have stood there since
		{[]int32{0, numberWindow}, 0, false}, {[]int32{numberWindow, math.MaxInt32 - 1, 5}, 0, false},
		{[]int32{5, numberWindow + 4}, 0, true},
	} {
		var names []string
		for _, n := range tt.numbers {
			names = append(names, fmt.Sprintf("_c_a-lock-%010d", n))
		}
		line := ParseChildren(names, "lock-")
		in, exhausted, tell := split(line)
		if len(exhausted) != tt.exhausted || len(in)+len(exhausted) != len(line) || tell != tt.tell {
			t.Errorf("of %d, %v are exhausted, and the numbers tell the order: %v; want %d and %v", tt.numbers, exhausted, tell, tt.exhausted, tt.tell)
		}
	}
}

func TestALineIsInOneOrderWhicheverChildTheServerNamesFirst(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	names := []string{"_c_b-lock--2147483648", "_c_a-lock-2147483647", "_c_c-lock--2147483640", "_c_d-lock-0000000007", "_c_e-lock-0000000008", "_c_f-lock--000000001"}
	want := ParseChildren(names, "lock-")
	for range 50 {
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if got := ParseChildren(names, "lock-"); !slices.Equal(got, want) {
			t.Fatalf("listed as %q they are in the order %v, and otherwise %v", names, got, want)
		}
	}
	if want[0].Seq != 7 || want[1].Seq != 8 {
		t.Errorf("those whose numbers are used up are not behind the others: %v", want)
	}
}

func TestTheMarkOfAKeptPlaceIsReadInNamesThatZsyncMakesAlone(t *testing.T) {
	marked, random := znodes.NewMarkedGUID(), znodes.NewGUID()
	for _, c := range []struct {
		name       string
		kept, read bool
	}{
		{znodes.ProtectedName(marked, "lock-0000000001"), true, false},
		{znodes.ProtectedName(random, "lock-0000000001"), false, false},
		{KazooName(marked, "__lock__0000000001"), true, false},
		{KazooName(random, "__lock__0000000001"), false, false},
		{znodes.ProtectedName(marked, "__WRIT__0000000001"), true, false},
		{znodes.ProtectedName(marked, "__READ__0000000001"), false, true},
		{KazooName(marked, "__rlock__0000000001"), false, true},
		{znodes.ProtectedName(random, "__READ__0000000001"), false, false},
		{"_c_" + strings.Repeat("8", 32) + "-lock-0000000001", false, false}, // go-zookeeper's zk.Lock
		{"888888888888888888888888-lock-0000000001", false, false},
		{"lock-0000000001", false, false},
	} {
		child, ok := ParseChild(c.name, contenderBases...)
		if kept := MayBeKept(c.name); !ok || kept != c.kept || child.beside() != c.read {
			t.Errorf("%q may be kept: %v, was put in the place of another: %v", c.name, kept, child.beside())
		}
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
	for _, first := range []int32{0, 12345, math.MaxInt32 - 500, math.MinInt32, -1000} {
		var names []string
		var want []Child
		for i := range int32(1000) {
			for range 1 + r.IntN(2)*r.IntN(3) {
				c := Child{Name: fmt.Sprintf("_c_%s-lock-%010d", znodes.NewGUID(), first+i), Base: "lock-", Seq: first + i}
				names, want = append(names, c.Name), append(want, c)
			}
		}
		slices.SortFunc(want, func(a, b Child) int {
			if a.Seq == b.Seq {
				return strings.Compare(a.Name, b.Name)
			}
			return int(a.Seq - b.Seq) // also across the wrap
		})
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if got := ParseChildren(names, "lock-"); !slices.Equal(got, want) {
			t.Errorf("from %d on they are not in order", first)
		}
	}
}

func TestParseChildTakesTheNumberFromTheEndAndIgnoresForeignNames(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bases []string
		want  Child
		ok    bool
	}{
		{"_c_48e50edc-09ec-4785-b44e-13769185aea0-lock-0000000001", []string{"lock-"}, Child{Base: "lock-", Seq: 1}, true},
		{"_c_0123456789abcdef0123456789abcdef-lock-0000000007", []string{"lock-"}, Child{Base: "lock-", Seq: 7}, true},
		{"lock-0000000001", []string{"lock-"}, Child{Base: "lock-", Seq: 1}, true},
		{"lock-0000000001-lock-0000000002", []string{"lock-"}, Child{Base: "lock-", Seq: 2}, true},
		{"_c_x-__WRIT__0000000003", []string{"__READ__", "__WRIT__"}, Child{Base: "__WRIT__", Seq: 3}, true},
		{"0123__lock__0000000004", []string{"__lock__"}, Child{Base: "__lock__", Seq: 4}, true},
		{"_c_x-lock-", []string{"lock-"}, Child{}, false},
		{"_c_x-lock-12", []string{"lock-"}, Child{}, false},
		{"_c_x-lock-00000000-1", []string{"lock-"}, Child{}, false},
		{"_c_x-lock-99999999999", []string{"lock-"}, Child{}, false},
		{"_c_x-lock-00000000001", []string{"lock-"}, Child{}, false},
		{"_c_x-latch-0000000001", []string{"lock-"}, Child{}, false},
		{"_c_", []string{"lock-"}, Child{}, false},
		{"ready", []string{"lock-"}, Child{}, false},
		{"", []string{"lock-"}, Child{}, false},
	} {
		got, ok := ParseChild(tt.name, tt.bases...)
		tt.want.Name = ""
		if ok {
			tt.want.Name = tt.name
		}
		if ok != tt.ok || got != tt.want {
			t.Errorf("parseChild(%q, %q) = %+v, %v; want %+v, %v", tt.name, tt.bases, got, ok, tt.want, tt.ok)
		}
	}
}

func FuzzParseChildNeverPanicsAndKeepsTheName(f *testing.F) {
	f.Add("_c_48e50edc-09ec-4785-b44e-13769185aea0-lock-0000000001", "lock-")
	f.Add("_c_", "lock-")
	f.Add("lock--2147483648", "lock-")
	f.Fuzz(func(t *testing.T, name, base string) {
		c, ok := ParseChild(name, base)
		if ok && (c.Name != name || c.Base != base || !strings.Contains(name, base)) {
			t.Errorf("parseChild(%q, %q) = %+v", name, base, c)
		}
	})
}
