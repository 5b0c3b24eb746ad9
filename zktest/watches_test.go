package zktest_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/zktest"
)

func TestWatchesAreThoseThatAConnectionHasLeftAndThatHaveNotFired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := zktest.Start(t)
		a, b := dial(t, s, 10*time.Second), dial(t, s, 10*time.Second)
		create(t, b, "/n", "", 0)
		want := func(when string, want ...zktest.Watch) {
			t.Helper()
			synctest.Wait()
			if got := s.Watches(a.SessionID()); !slices.Equal(got, want) {
				t.Errorf("%s: got %v, want %v", when, got, want)
			}
		}
		want("before")
		for _, watch := range []func() error{
			func() error { _, _, _, err := a.ChildrenW("/n"); return err },
			func() error { _, _, _, err := a.GetW("/n"); return err },
			func() error { _, _, _, err := a.ExistsW("/m"); return err },
		} {
			if err := watch(); err != nil {
				t.Fatal(err)
			}
		}
		want("all", zktest.Watch{Path: "/m"}, zktest.Watch{Path: "/n"}, zktest.Watch{Path: "/n", Children: true})
		create(t, b, "/m", "", 0)
		create(t, b, "/n/c", "", 0)
		want("two have fired", zktest.Watch{Path: "/n"})
		if got := s.Watches(b.SessionID()); len(got) > 0 {
			t.Errorf("another's: %v", got)
		}
	})
}
