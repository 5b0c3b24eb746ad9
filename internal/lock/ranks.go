package lock

// This file has the order of the contenders in one listing, and finds contenders of other kinds in
// it. It sends no request.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// lookAmong is the largest number of contenders ahead that an Ahead keeps, and reads with one
// request. The first of them that still exists is the first in the line, because no contender
// arrives ahead of them.
const lookAmong = 8

// ranks is the order of the contenders in one listing. It is computed once for all waiters that
// share the listing.
type ranks struct {
	in    []Child // the contenders whose numbers are not exhausted (split), in the order of their numbers
	told  bool    // the contenders of in are in the order of arrival, and all other contenders are behind them
	sure  bool    // told is true, no number is exhausted, and all numbers differ
	mixed []Child // contenders of other kinds

	once  sync.Once
	heads []string // the first names of in; set by once
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

// first returns the names of the first contenders of ahead. All waiters that share the listing
// share the result.
func (rk *ranks) first(ahead []Child) []string {
	if len(ahead) > 0 && len(rk.in) > 0 && ahead[0].Name == rk.in[0].Name && rk.told {
		rk.once.Do(func() { rk.heads = namesOf(rk.in) })
		return rk.heads[:min(len(rk.heads), len(ahead))]
	}
	return namesOf(ahead)
}

// namesOf returns copies of the first names: each name of a listing keeps the whole listing in
// memory.
func namesOf(all []Child) []string {
	names := make([]string, 0, lookAmong)
	for _, c := range all[:min(len(all), lookAmong)] {
		names = append(names, strings.Clone(c.Name))
	}
	return names
}

// before returns the contenders ahead of c, and reports whether c is in the line. The numbers in rk
// must show the order.
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

// strangers returns the contenders of other kinds among names.
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

// unmixed returns ErrMixed if a contender in mixed, which has the contenders of other kinds, may be
// ahead of me: the two would not exclude each other. If me is nil, every contender in mixed is an
// error.
//
// All children of one parent share one sequence of numbers. So if two contenders of different kinds
// arrive at the same time, only the contender with the greater number leaves. A contender that has
// listed the line need not check again, because no contender arrives ahead of it.
func unmixed(bases []string, mixed []Child, me *Child) error {
	for _, c := range mixed {
		if me == nil || !c.certainlyAfter(*me) {
			return fmt.Errorf("%w: znode %q belongs to %s, and this is %s; give each primitive its own path", ErrMixed, strings.Clone(c.Name), kindOf(c.Base), kindOf(bases[0]))
		}
	}
	return nil
}
