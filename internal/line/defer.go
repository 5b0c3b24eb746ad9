package line

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/session"
)

// This file has what decides, besides the order of arrival, who of the candidates of
// an election leads next: priorities, and a leader's wish.

// priorityMark is what a priority follows in the name of a candidate.
const priorityMark = "p"

// The priority stands right before the base: behind the dash of a Curator name, or
// behind the hexadecimal digits of a kazoo name.
var (
	curatorPriority = regexp.MustCompile(`-p(-?\d+)-$`)
	kazooPriority   = regexp.MustCompile(`^[0-9a-f]{32}p(-?\d+)$`)
)

// WithPriority returns base as it stands in the names of those who have this priority.
func WithPriority(base string, priority int, kazoo bool) string {
	if !kazoo {
		base = "-" + base
	}
	return priorityMark + strconv.Itoa(priority) + base
}

// priorityOf returns the priority that a candidate's name says, or 0.
func priorityOf(c Child) int {
	before := beforeBase(c)
	m := curatorPriority.FindStringSubmatch(before)
	if m == nil {
		m = kazooPriority.FindStringSubmatch(before)
	}
	if m == nil {
		return 0
	}
	p, _ := strconv.Atoi(m[1])
	return p
}

func beforeBase(c Child) string { return c.Name[:strings.LastIndex(c.Name, c.Base)] }

// wishMark is what the name of a leader's wish begins with. Curator's and
// kazoo's candidates do not take it for one of them, or for the last.
const wishMark = "transfer-"

// guidSize is how long the text of a GUID is.
const guidSize = 36

// WishFor returns a name for a wish that c should lead. It ends with the name of c up
// to the number, in which a base would make Curator sort it among the candidates.
func WishFor(c Child) string { return wishMark + session.NewGUID() + "-" + beforeBase(c) }

// wishesFor returns those of names that are wishes for c.
func wishesFor(c Child, names []string) (wishes []string) {
	for _, name := range names {
		// Behind the mark is a GUID, and a dash. What follows must be all that stands
		// before the base: for one who has no prefix of his own, that is nothing.
		if id, ok := strings.CutPrefix(name, wishMark); ok && len(id) > guidSize && id[guidSize+1:] == beforeBase(c) {
			wishes = append(wishes, strings.Clone(name))
		}
	}
	return wishes
}

// Defers reports whether me, whose turn has come and who has this priority, if any,
// lets others go before: one whom the last leader wished for, or those of a higher
// priority. Whoever defers goes behind them all, so each does so once for each of them.
// It returns the wishes for me, too.
//
// A wish is heard by everyone whose turn comes after the leader who wished: it was
// made before that one's znode was deleted, and is read after. It stays until its
// heir leads, or is gone, however late anybody reads it. And it keeps nobody from
// leading for long: only who finds the heir in the line lets it go before, and is
// behind it then, so that what is waited for is a contender like any other, which
// leads or goes with its session.
func Defers(me Child, names, bases []string, priority *int) (defers bool, wishes []string) {
	others := slices.DeleteFunc(ParseChildren(names, bases...), func(c Child) bool { return c.Name == me.Name })
	wishes = wishesFor(me, names)
	switch {
	case len(wishes) > 0:
		return false, wishes
	case slices.ContainsFunc(others, func(c Child) bool { return len(wishesFor(c, names)) > 0 }):
		return true, nil
	case priority == nil:
		return false, nil
	}
	return slices.ContainsFunc(others, func(c Child) bool { return priorityOf(c) > *priority }), nil
}
