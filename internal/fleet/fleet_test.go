package main

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestRandomProgramsOfAllPrimitivesHoldWhatIsPromised(t *testing.T) {
	harness.InMemory(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // what Go's scheduler decides is then mostly the same
	began, n := time.Now(), 0
	for seed := range harness.Seeds(t, 80, 20, 10000) {
		n++
		failures, story := run(t, uint64(seed))
		if len(failures) == 0 {
			continue
		}
		t.Log("what happened:\n" + strings.Join(story, "\n"))
		for _, line := range failures {
			t.Error(line)
		}
	}
	t.Logf("%d programs, %v each", n, time.Since(began)/time.Duration(max(n, 1)))
}

// run runs the program of a seed.
func run(t *testing.T, seed uint64) (failures, story []string) {
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Sprintf("ZSYNC_TEST_SEED=%d: %v", seed, r))
		}
	}()
	var verdict func() (failures, story []string)
	harness.VirtualTime(t, func(*testing.T) { verdict = Run(seed, draw(seed), newTally()) })
	return verdict()
}

// The same seed does the same, but for a few decisions of Go and of the library: see the
// package's doc comment. A story is the same only if every line is. A seed that has found a defect finds it
// again far more often: see testdata/defects/README.md.
func TestASeedTellsTheSameStoryEachTime(t *testing.T) {
	harness.InMemory(t)
	if harness.UnderRace {
		t.Skip("the race detector has the scheduler choose at random, so this is not shown: a seed tells the same story each time")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	seeds, same := 20, 0
	for seed := range seeds {
		_, one := run(t, uint64(seed))
		_, two := run(t, uint64(seed))
		if strings.Join(one, "\n") == strings.Join(two, "\n") {
			same++
			continue
		}
		for i := range min(len(one), len(two)) {
			if one[i] != two[i] {
				t.Logf("seed %d: line %d of %d:\n%s\n%s", seed, i, len(one), one[i], two[i])
				break
			}
		}
	}
	if t.Logf("%d of %d stories are the same", same, seeds); same < seeds/4 {
		t.Errorf("%d of %d stories are the same, want %d", same, seeds, seeds/4)
	}
}
