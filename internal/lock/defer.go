package lock

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/zsync/zsync/internal/znodes"
)

// This file decides whether a candidate of an election lets a later candidate lead first. There are
// two reasons: the later candidate has a higher priority, or the last leader has made a wish for
// it. A wish is a znode that names the next leader (Election.Transfer). The wait of a candidate is
// in acquire.go.

// In a name, the priority is right before the base, and behind the letter p. Before that letter, a
// Curator name has a dash, and a kazoo name has hexadecimal digits.
var priorities = regexp.MustCompile(`-p(-?\d+)-$|^[0-9a-f]{32}p(-?\d+)$`)

// WithPriority returns `base` with the priority before it, for the name of a candidate.
func WithPriority(base string, priority int, kazoo bool) string {
	if !kazoo {
		base = "-" + base
	}
	return "p" + strconv.Itoa(priority) + base
}

// priorityOf returns the priority in a candidate's name, or 0 if there is none.
func priorityOf(c Child) int {
	m := priorities.FindStringSubmatch(beforeBase(c))
	if m == nil {
		return 0
	}
	p, _ := strconv.Atoi(m[1] + m[2])
	return p
}

func beforeBase(c Child) string { return c.Name[:strings.LastIndex(c.Name, c.Base)] }

// wishMark is the prefix in the name of a wish. Curator and kazoo do not mistake such a znode for a
// candidate.
const wishMark = "transfer-"

// guidSize is the length of a GUID in a name.
const guidSize = 36

// WishFor returns a name for the znode of a new wish. The wish is that c becomes the next leader.
// The name ends with the part of c's name before the base. If the name contained the base, Curator
// would treat the wish as a candidate.
func WishFor(c Child) string { return wishMark + znodes.NewGUID() + "-" + beforeBase(c) }

// wishesFor returns the wishes for c among `names`.
func wishesFor(c Child, names []string) (wishes []string) {
	for _, name := range names {
		// A GUID and a dash follow the mark. The rest must be the part of c's name before the base. If
		// c's name begins with the base, this part is empty.
		if id, ok := strings.CutPrefix(name, wishMark); ok && len(id) > guidSize && id[guidSize+1:] == beforeBase(c) {
			wishes = append(wishes, strings.Clone(name))
		}
	}
	return wishes
}

// Defers reports whether the candidate `me`, whose turn has come, must let another candidate lead
// first: the candidate that a wish names or, if `me` has a priority, a candidate of higher
// priority. A candidate that defers enters the line again, at the end, so it defers only once to
// any other candidate. Defers also returns the wishes for `me`.
//
// After a leader with a wish has left, every candidate whose turn comes finds the wish: the leader
// creates the wish before its own znode is deleted, and a candidate lists the line after that
// deletion. The candidate that a wish names is the heir. The wish exists until the heir leads or is
// deleted, so a late listing also shows the wish. A candidate defers to the heir only if the heir is
// in the line. Then it waits behind the heir, which leads or ends with its session, so a wish blocks
// the election no longer than a candidate can.
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
