package lock

// This file compares the order of a line with the order of arrival, in every way that a model of
// the servers' numbers allows: contenders arrive, leave or are deleted, and numbers are used up.
//
// The model has these assumptions of docs/guarantees.md:
//
//   - zookeeper: A parent numbers its children one by one. After 2^31-1, a server of version 3.6 or
//     later gives that number again, and wrapped numbers while earlier creates are under way. An
//     earlier server continues from -2^31 through -1 to 0.
//   - arrivals: No contender stays for 2^30 creates.
//
// A listing from a server that lags shows the line at an earlier time. The test has compared that
// line, too.

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/zsync/zsync/internal/explore"
	"github.com/zsync/zsync/internal/harness"
)

// numbers is how a server numbers the children of one parent.
type numbers struct {
	old      bool  // before 3.6
	tree     int32 // the next number, as the tree has it
	underWay int32 // the next number while creates are under way
	busy     bool
}

func (n *numbers) give() int32 {
	seq := n.tree
	if n.busy {
		seq = n.underWay
	}
	n.underWay = seq + 1 // wraps
	n.busy = true
	if n.old || n.underWay > n.tree {
		n.tree = n.underWay
	}
	return seq
}

func ordersOf(r *explore.Run, left int) {
	starts := []int32{0, numberWindow - 2, math.MaxInt32 - 3, math.MaxInt32 - 1, math.MinInt32, -numberWindow - 2, -3, -1}
	n := numbers{old: r.Pick(2) == 1}
	if !n.old {
		starts = starts[:4]
	}
	n.tree = starts[r.Pick(len(starts))]
	jumps := 1
	var line []Child // in the order of arrival
	for left > 0 {
		r.At(func() string { return fmt.Sprint(n, left, jumps, line) })
		switch i := r.Pick(3 + len(line)); i {
		case 0:
			left--
			seq := n.give()
			name := fmt.Sprintf("_c_%d-lock-%010d", r.Pick(2), seq) // GUIDs in either order
			c, ok := ParseChild(name, "lock-")
			if !ok || c.Seq != seq {
				r.Fail("%q is read as number %d, %v", name, c.Seq, ok)
			}
			if slices.Contains(line, c) {
				r.End() // no two names are equal
			}
			line = append(line, c)
		case 1: // the creates under way are over
			n.busy = false
		case 2: // others have come and left
			if jumps == 0 || !n.old && n.tree > 0 {
				r.End()
			}
			jumps--
			n.tree += numberWindow - 8
			n.busy = false
		default: // a contender leaves, or is deleted
			line = slices.Delete(slices.Clone(line), i-3, i-2)
		}
		compare(r, line)
	}
}

// compare fails if a listing of line shows another order than that of arrival.
func compare(r *explore.Run, line []Child) {
	var names []string
	for _, c := range slices.Backward(line) { // servers list in any order
		names = append(names, c.Name)
	}
	in, exhausted, tell := split(ParseChildren(names, "lock-"))
	if !tell { // then the servers' zxids decide
		return
	}
	if len(in)+len(exhausted) != len(line) || !slices.Equal(in, line[:len(in)]) {
		r.Fail("arrived %v, in order of numbers %v, then %v", line, in, exhausted)
	}
	for i, c := range in {
		blocker, alone := (&Line{Bases: []string{"lock-"}}).Blocker(Exclusive, in[:i])
		switch {
		case i == 0 && blocker != nil, i > 0 && (blocker == nil || blocker.Name != line[i-1].Name), alone != (i == 1):
			r.Fail("%v is blocked by %v, alone %v, in %v", c, blocker, alone, line)
		}
	}
	for i := range line[:max(len(line)-1, 0)] {
		if line[i+1].certainlyAfter(line[i]) != (i+1 < len(in)) {
			r.Fail("%v certainly after %v: %v", line[i+1], line[i], i+1 >= len(in))
		}
		if line[i].certainlyAfter(line[i+1]) {
			r.Fail("%v certainly after %v, which came later", line[i], line[i+1])
		}
	}
}

func TestEveryWayOfALineIsInTheOrderOfArrival(t *testing.T) {
	arrivals := 5
	if harness.Long() {
		arrivals = 7
	}
	found := explore.All(5_000_000, func(r *explore.Run) { ordersOf(r, arrivals) })
	t.Log(found)
	if found.Fault != "" || found.Cut {
		t.Error(found.Fault)
	}
}
