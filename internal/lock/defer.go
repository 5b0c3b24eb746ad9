package lock

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/session"
)

// This file has the two reasons for which a candidate of an election lets a later candidate go
// first: a higher priority, and a wish of the last leader. A wish is a znode that names the next
// leader (Election.Transfer). The wait of a candidate is in acquire.go.

// priorityMark comes before a priority in the name of a candidate.
const priorityMark = "p"

// The priority is right before the base: after the dash of a Curator name, or after the
// hexadecimal digits of a kazoo name.
var (
	curatorPriority = regexp.MustCompile(`-p(-?\d+)-$`)
	kazooPriority   = regexp.MustCompile(`^[0-9a-f]{32}p(-?\d+)$`)
)

// WithPriority returns base with this priority, for the name of a candidate.
func WithPriority(base string, priority int, kazoo bool) string {
	if !kazoo {
		base = "-" + base
	}
	return priorityMark + strconv.Itoa(priority) + base
}

// priorityOf returns the priority in a candidate's name, or 0.
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

// wishMark begins the name of a leader's wish. Curator and kazoo do not mistake such a znode for a
// candidate.
const wishMark = "transfer-"

// guidSize is the length of a GUID as text.
const guidSize = 36

// WishFor returns a name for a wish that c should lead next. It ends with the part of c's name
// before the base. If it had the base, too, Curator would sort the wish among the candidates.
func WishFor(c Child) string { return wishMark + session.NewGUID() + "-" + beforeBase(c) }

// wishesFor returns the wishes for c among names.
func wishesFor(c Child, names []string) (wishes []string) {
	for _, name := range names {
		// The mark is followed by a GUID and a dash. The rest must be the part of c's name before
		// the base. That part is empty for a candidate without a prefix.
		if id, ok := strings.CutPrefix(name, wishMark); ok && len(id) > guidSize && id[guidSize+1:] == beforeBase(c) {
			wishes = append(wishes, strings.Clone(name))
		}
	}
	return wishes
}

// Defers reports whether me, whose turn has come, defers to others: to a candidate for which there
// is a wish, or to candidates of a higher priority, if me has a priority. A candidate that defers
// enters the line again, behind all of them, so it defers to each of them once. Defers also returns
// the wishes for me.
//
// When a leader with a wish has left, every other candidate whose turn comes finds the wish. The
// leader created the wish before its own znode was deleted, and a candidate lists the line after
// that deletion. The wish exists until the heir, the candidate that it names, leads or is deleted.
// So a late listing shows it, too. A wish blocks the election no longer than any candidate: another
// candidate defers only if the heir is in the line, and then waits behind the heir, which leads or
// ends with its session.
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
