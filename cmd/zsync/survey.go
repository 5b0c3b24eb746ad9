package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
)

// A place is a path at which a primitive may be.
type place struct {
	path  string
	kinds []kinds.Kind // by the names of its children
	names []string     // of its children
	made  int64        // how many children it has had, about
	data  bool         // it holds data
}

// A survey is what was found below a path.
type survey struct {
	places  []place
	strays  []string // belong to a neighbour that is not there
	refused []string // may not be read
	znodes  int      // how many were looked at
}

// tooMany is how many znodes a survey looks at.
const tooMany = 20_000

// explore looks at everything below root, with one request for each znode that
// is not known to be part of a primitive.
func explore(ctx context.Context, s *zsync.Session, root string) (*survey, error) {
	v := new(survey)
	for next := []string{root}; len(next) > 0; next = next[1:] {
		if v.znodes++; v.znodes > tooMany {
			say(fmt.Errorf("%s: there are more than %d znodes; the rest is left out", root, tooMany))
			break
		}
		names, stat, err := s.Children(ctx, next[0])
		switch {
		case errors.Is(err, zk.ErrNoNode):
			continue
		case errors.Is(err, zk.ErrNoAuth):
			v.refused = append(v.refused, next[0])
			continue
		case err != nil:
			return nil, err
		}
		if below := v.add(next[0], names, stat); len(below) > 0 {
			next = append(next, below...)
		}
	}
	slices.SortFunc(v.places, func(a, b place) int { return compare(a.path, b.path) })
	return v, nil
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// add takes note of a znode, and returns the children to look at.
func (v *survey) add(at string, names []string, stat *zk.Stat) (below []string) {
	p := place{path: at, kinds: kinds.Of(names), names: names, made: int64(stat.Cversion), data: stat.DataLength > 0}
	for _, name := range names {
		child := path.Join(at, name)
		of, beside := kinds.Beside(name)
		switch {
		case child == "/zookeeper" || kinds.Part(name, names):
		case beside && slices.Contains(names, of):
		case beside && name != of+"-dead": // dead letters may well outlive their queue
			v.strays = append(v.strays, child)
		default:
			below = append(below, child)
		}
	}
	if at != "/" && (len(p.kinds) > 0 || len(names) == 0 || p.data) {
		v.places = append(v.places, p)
	}
	return below
}
