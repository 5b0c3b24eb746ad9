package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
)

// The code moves on, and the patches with it.
func TestEachDefectCanBePutIntoThePresentCode(t *testing.T) {
	harness.InMemory(t)
	need.Command(t, "git")
	patches, err := filepath.Glob("testdata/defects/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no patches: %v", err)
	}
	for _, patch := range patches {
		patch, _ := filepath.Abs(patch)
		git := exec.Command("git", "apply", "--check", patch)
		git.Dir = filepath.Join("..", "..")
		if out, err := git.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(patch), err, out)
		}
	}
}

// A day of a fleet has each role, and its faults are apart from one another.
func TestADayHasAllRolesAndFaults(t *testing.T) {
	harness.InMemory(t)
	for seed := range uint64(100) {
		p := drawDay(seed)
		if p.processes != 50 || len(p.faults) < 20 {
			t.Errorf("seed %d: %d processes and %d faults", seed, p.processes, len(p.faults))
		}
		for _, name := range p.arenas {
			if arenas[name] == nil {
				t.Errorf("there is no %s", name)
			}
		}
	}
}
