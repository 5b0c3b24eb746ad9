package line

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// ranks is what a listing says of a line, worked out once for all who share it.
type ranks struct {
	in    []Child // in the order of their numbers, those that have one to go by
	told  bool    // that is the order of arrival, and all others are behind
	sure  bool    // so it is, there are no others, and no two numbers are the same
	mixed []Child // contenders of other kinds, if the line is strict

	once  sync.Once
	heads []string // the first names of in; set by once
}

// ranksKey is what ranks depend on besides the listing.
type ranksKey struct {
	bases  string
	strict bool
}

func ranksOf(r *session.Roll, strict bool, bases []string) *ranks {
	key := ranksKey{strings.Join(bases, "/"), strict}
	return r.Make(key, func(names []string) any {
		in, exhausted, told := split(ParseChildren(names, bases...))
		rk := &ranks{in: in, told: told, sure: told && len(exhausted) == 0}
		for i := 1; i < len(in); i++ {
			rk.sure = rk.sure && in[i-1].Seq != in[i].Seq
		}
		if strict && len(in)+len(exhausted) < len(names) {
			rk.mixed = strangers(names, bases)
		}
		return rk
	}).(*ranks)
}

// first returns the names of the first contenders of ahead. All waiters that share the listing
// share them.
func (rk *ranks) first(ahead []Child) []string {
	if len(ahead) > 0 && len(rk.in) > 0 && ahead[0].Name == rk.in[0].Name && rk.told {
		rk.once.Do(func() { rk.heads = namesOf(rk.in) })
		return rk.heads[:min(len(rk.heads), len(ahead))]
	}
	return namesOf(ahead)
}

// namesOf returns copies of the first names, as each name of a listing keeps the whole listing
// in memory.
func namesOf(all []Child) []string {
	names := make([]string, 0, lookAmong)
	for _, c := range all[:min(len(all), lookAmong)] {
		names = append(names, strings.Clone(c.Name))
	}
	return names
}

// before returns those ahead of c, and whether c is there, where numbers tell the order.
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

// unmixed is ErrMixed if there is a contender of another kind, before me if there
// is one: they would not keep each other out.
//
// All children of one parent are numbered together, so of two that come at the
// same time the later one sees the earlier, and alone goes; and nobody who has
// listed the line needs to look again, since nobody comes before him any more.
func unmixed(bases []string, mixed []Child, me *Child) error {
	for _, c := range mixed {
		if me == nil || !c.certainlyAfter(*me) {
			return fmt.Errorf("%w: %q stands there; this line is of those with %q before their number", ErrMixed, strings.Clone(c.Name), bases)
		}
	}
	return nil
}
