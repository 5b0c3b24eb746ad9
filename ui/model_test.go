package ui

import (
	"errors"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/look"
)

// A look may see that a holder has gone when the next does not hold yet.
func TestWhoCameInAHandOverIsLearntFromTheNextLookAndNotFromLaterOnes(t *testing.T) {
	start := time.Unix(1e9, 0)
	look := func(second int, owners ...string) *model {
		m := &model{At: start.Add(time.Duration(second) * time.Second), holds: map[string]held{}}
		for _, o := range owners {
			m.holds["/m "+o] = held{path: "/m", kind: "lock", node: o, owner: o, since: start}
		}
		return m
	}
	for name, c := range map[string]struct {
		looks []*model
		want  string
	}{
		"in the same look": {[]*model{look(0, "a"), look(1, "b"), look(2, "b")}, "b"},
		"in the next":      {[]*model{look(0, "a"), look(1), look(2, "b")}, "b"},
		"much later":       {[]*model{look(0, "a"), look(1), look(2), look(3, "b")}, ""},
	} {
		before := c.looks[0]
		for _, m := range c.looks[1:] {
			m.remember(before, nil, func(string, string) bool { return false })
			before = m
		}
		if len(before.Timeline) != 1 || before.Timeline[0].Owner != "a" || before.Timeline[0].Next != c.want {
			t.Errorf("%s: %+v; want a, and then %q", name, before.Timeline, c.want)
		}
	}
}

// A look at a large tree, or at a path that the client may no longer read, finds only some holds.
func TestAHoldThatALookCannotSeeHasNotEnded(t *testing.T) {
	before := func() *model {
		return &model{At: time.Now(), holds: map[string]held{
			"/a/n": {path: "/a", kind: "mutex", node: "n", owner: "a"},
			"/b/n": {path: "/b", kind: "mutex", node: "n", owner: "b"},
		}}
	}
	for name, c := range map[string]struct {
		tree  *look.Tree
		err   error
		ended string
	}{
		"whole":               {&look.Tree{}, nil, "ab"},
		"cut":                 {&look.Tree{Cut: true, Places: []look.Place{{Path: "/a"}}}, nil, "a"},
		"refused":             {&look.Tree{Refused: []string{"/a"}}, nil, "b"},
		"refused as a place":  {&look.Tree{Refused: []string{"/b"}, Places: []look.Place{{Path: "/a"}, {Path: "/b"}}}, nil, "a"},
		"without any answers": {nil, errors.New("no server answers"), ""},
	} {
		m := newModel(t.Context(), nil, Options{}, before(), c.tree, c.err, func(string, string) bool { return false })
		ended := ""
		for _, e := range m.Timeline {
			ended += e.Owner
		}
		if ended != c.ended {
			t.Errorf("%s: the holds of %q have ended; want %q", name, ended, c.ended)
		}
	}
}
