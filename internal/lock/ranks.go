package lock

// This file has the order of the contenders in one listing, and finds contenders of other kinds in
// the listing. It sends no requests.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// lookAmong is the largest number of contenders that an Ahead stores, and reads with one request.
// These are the first contenders of the line. No contender arrives ahead of them. So the first of
// them that still exists is the first of the line.
const lookAmong = 8

// The type `ranks` is the order of the contenders in one listing. The order is computed once for
// all waiters that share the listing.
type ranks struct {
	in    []Child // the contenders without an exhausted number (split), in the order of their numbers
	told  bool    // the order of `in` is the order of arrival, and no other contender is ahead of a contender in `in`
	sure  bool    // `told` is true, no number is exhausted, and no two numbers are equal
	mixed []Child // contenders of other kinds

	once  sync.Once
	heads []string // names of the first contenders of `in`; set by `once`
}

func ranksOf(r *session.Roll, bases []string) *ranks {
	return r.Make(strings.Join(bases, "/"), func(names []string) any {
		in, exhausted, told := split(ParseChildren(names, bases...))
		rk := &ranks{in: in, told: told, sure: told && len(exhausted) == 0}
		for i := 1; i < len(in); i++ {
			rk.sure = rk.sure && in[i-1].Seq != in[i].Seq
		}
		if len(in)+len(exhausted) < len(names) {
			rk.mixed = strangers(names, bases)
		}
		return rk
	}).(*ranks)
}

// The method `first` returns the names of the first contenders in `ahead`. All waiters that share
// the listing also share the result, so a waiter takes less memory.
func (rk *ranks) first(ahead []Child) []string {
	if len(ahead) > 0 && len(rk.in) > 0 && ahead[0].Name == rk.in[0].Name && rk.told {
		rk.once.Do(func() { rk.heads = namesOf(rk.in) })
		return rk.heads[:min(len(rk.heads), len(ahead))]
	}
	return namesOf(ahead)
}

// namesOf returns copies of the first names in `all`. The original of a name would keep the whole
// listing in memory.
func namesOf(all []Child) []string {
	names := make([]string, 0, lookAmong)
	for _, c := range all[:min(len(all), lookAmong)] {
		names = append(names, strings.Clone(c.Name))
	}
	return names
}

// The method `before` returns the contenders ahead of c, and reports whether c is in the line. The
// numbers in rk must show the order.
func (rk *ranks) before(c Child) ([]Child, bool) {
	i, _ := slices.BinarySearchFunc(rk.in, c, func(a, b Child) int {
		if a.Seq != b.Seq {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return strings.Compare(a.Name, b.Name)
	})
	if i < len(rk.in) && rk.in[i].Name == c.Name {
		return rk.in[:i], true
	}
	return nil, false
}

// The function `strangers` returns the contenders of other kinds among `names`.
func strangers(names []string, bases []string) (mixed []Child) {
	for _, name := range names {
		if _, ours := ParseChild(name, bases...); ours {
			continue
		}
		if c, other := ParseChild(name, contenderBases...); other {
			mixed = append(mixed, c)
		}
	}
	return mixed
}

// The function `unmixed` returns ErrMixed if a contender of another kind may be ahead of `me`,
// because these two would not exclude each other. The list `mixed` has the contenders of other
// kinds. If `me` is nil, any contender in `mixed` causes the error.
//
// All children of one parent share one sequence of numbers. So if two contenders of different kinds
// arrive at the same time, the contender with the greater number leaves, and the other may stay.
// After its first listing, a contender need not check again, because no contender arrives ahead of
// it.
func unmixed(bases []string, mixed []Child, me *Child) error {
	for _, c := range mixed {
		if me == nil || !c.certainlyAfter(*me) {
			return fmt.Errorf("%w: znode %q belongs to %s, and this is %s; give each primitive its own path", ErrMixed, strings.Clone(c.Name), kinds[c.Base], kinds[bases[0]])
		}
	}
	return nil
}
