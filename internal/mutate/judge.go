package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The type `judge` is a test binary with arguments. The binary contains all chosen mutants, and the environment
// switches a single mutant on.
type judge struct {
	name    string
	dir     string // the package of the tests
	only    string // the one package whose mutants it judges, or ""
	args    []string
	reached []byte // by number of mutant: 1 if the judge reaches that mutant
	took    time.Duration
}

// The function `first` returns the judges of all mutants. The cheapest judge comes first.
func first(dirs []string) (all []*judge) {
	for _, dir := range dirs {
		all = append(all, &judge{name: "own tests", dir: dir, only: dir, args: []string{"-test.skip=EveryWay"}})
	}
	all = append(all, &judge{name: "random programs", dir: "internal/fleet", args: []string{"-test.run=RandomPrograms"}})
	for _, dir := range []string{"internal/lock", "internal/txn", "internal/lease"} {
		all = append(all, &judge{name: "exhaustive tests", dir: dir, args: []string{"-test.run=EveryWay"}})
	}
	return all
}

// The list `others` has the packages whose tests judge the surviving mutants. The function `each` makes judges of
// these tests.
var others = []string{
	"internal/suite/model", "internal/session", "internal/znodes", ".", "internal/suite/cancel", "internal/suite/cases", "internal/suite/closing", "internal/suite/doublebarrier", "internal/suite/lag",
	"internal/suite/linear", "internal/suite/locks", "internal/suite/loss", "internal/suite/observe", "internal/suite/queue",
	"internal/suite/semaphore", "internal/suite/session", "internal/suite/state", "internal/suite/strangers", "internal/suite/txn",
}

// The function `build` builds the test binary of each judge's package.
func build(all []*judge, overlay string) error {
	built := map[string]bool{}
	for _, j := range all {
		if built[j.dir] {
			continue
		}
		built[j.dir] = true
		out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary(j.dir, *folder), "./"+j.dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", j.dir, err, out)
		}
	}
	return nil
}

func binary(dir, folder string) string {
	return filepath.Join(folder, strings.ReplaceAll(dir, "/", "+")+".test")
}

var errorAt = regexp.MustCompile(`(?m)^(\S+?\.go):(\d+):(\d+): `)

// The function `compilable` drops the chosen mutants that do not compile, and returns the other mutants. If a line
// with an error has several mutants, the function drops them all.
func compilable(dirs []string, chosen []*mutant, total int, folder string) (rest []*mutant, overlay string, err error) {
	for range 50 {
		if overlay, err = switchable(dirs, chosen, total, folder); err != nil {
			return nil, "", err
		}
		args := []string{"build", "-o", os.DevNull, "-gcflags=-e", "-overlay", overlay}
		for _, dir := range dirs {
			args = append(args, "./"+dir)
		}
		out, err := exec.Command("go", args...).CombinedOutput()
		if err == nil {
			return chosen, overlay, nil
		}
		rest = slices.Clone(chosen)
		for _, at := range errorAt.FindAllStringSubmatch(string(out), -1) {
			line, _ := strconv.Atoi(at[2])
			rest = slices.DeleteFunc(rest, func(m *mutant) bool {
				return filepath.Base(at[1]) == strings.ReplaceAll(m.dir+"/"+m.file, "/", "+") && (m.line <= line && line <= m.last || line == m.end)
			})
		}
		if len(rest) == len(chosen) {
			return nil, "", fmt.Errorf("not because of a mutant: %s", out)
		}
		chosen = rest
	}
	return nil, "", errors.New("still does not compile")
}

// The method `record` runs the judge without a mutant, and the judge must pass. The method stores the mutants that
// the judge reaches, and the time that the judge takes.
func (j *judge) record(total int) error {
	name := filepath.Join(*folder, "record")
	if err := os.WriteFile(name, make([]byte, total), 0o644); err != nil {
		return err
	}
	began := time.Now()
	if v := j.run(-1, 10*time.Minute, "ZSYNC_MUTANT_RECORD="+name); v.killed {
		return fmt.Errorf("%s of %s fails without a mutant: %s", j.name, j.dir, v.by)
	}
	j.took = time.Since(began)
	var err error
	j.reached, err = os.ReadFile(name)
	return err
}

// The function `each` returns judges for all tests of a package. A test of half a second or more is a separate
// judge, and shorter tests share a judge. A test that fails without a mutant is left out.
func each(dir string, total int) (all []*judge, err error) {
	measured, err := measuredOf(dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary(dir, *folder), "-test.list=^Test")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the tests of %s: %w", dir, err)
	}
	for test := range strings.FieldsSeq(string(out)) {
		j := &judge{name: "other tests", dir: dir, args: []string{"-test.run=^" + test + "$"}}
		if strings.HasPrefix(test, "TestModelOf") {
			j.name = "models"
		}
		if known, ok := measured.Tests[test]; ok {
			j.took, j.reached = known.Took, known.Reached
		} else if err := j.record(total); err != nil {
			log.Print(test, ": ", err)
			continue
		}
		measured.Tests[test] = measurement{j.took, slices.Clone(j.reached)}
		all = append(all, j)
	}
	slices.SortStableFunc(all, func(a, b *judge) int { return cmp.Compare(a.took, b.took) })
	return together(all), measured.save()
}

// The type `measurements` is for the tests of one binary. With all mutants switched off, it has the time of each
// test, and the places of mutants that the test reaches. A file stores these values for the next run.
type measurements struct {
	file   string
	Binary string // a hash
	Tests  map[string]measurement
}

type measurement struct {
	Took    time.Duration
	Reached []byte
}

func measuredOf(dir string) (*measurements, error) {
	file := binary(dir, *folder)
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(code))
	m := &measurements{}
	if text, err := os.ReadFile(file + ".json"); err == nil {
		json.Unmarshal(text, m) // after an error, all tests are measured again
	}
	if m.Binary != hash {
		m = &measurements{Binary: hash, Tests: map[string]measurement{}}
	}
	m.file = file + ".json"
	return m, nil
}

func (m *measurements) save() error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return os.WriteFile(m.file, text, 0o644)
}

// The function `together` makes one judge from several consecutive short tests.
func together(tests []*judge) (all []*judge) {
	for _, j := range tests {
		if len(all) == 0 || all[len(all)-1].took+j.took > time.Second/2 || all[len(all)-1].name != j.name {
			all = append(all, j)
			continue
		}
		last := all[len(all)-1]
		last.took += j.took
		last.args[0] += "|" + strings.TrimPrefix(j.args[0], "-test.run=")
		for i, reached := range j.reached {
			last.reached[i] |= reached
		}
	}
	return all
}

// The type `verdict` is a judge's answer about a mutant.
type verdict struct {
	killed bool
	by     string // the test that failed, or how the tests ended
	output []byte
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
var panicked = regexp.MustCompile(`(?m)^(?:panic|fatal error): (.*)`)

// The method `run` runs the judge on a mutant.
func (j *judge) run(number int, limit time.Duration, env ...string) verdict {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// A mutant may allocate memory without end, so there is a limit. The tests need 1 GB, and Go reserves more than
	// it uses.
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 8000000; exec "$@"`, "sh", binary(j.dir, *folder), "-test.failfast"}, j.args...)...)
	cmd.Dir = j.dir
	cmd.Env = append(append(os.Environ(), fmt.Sprintf("ZSYNC_MUTANT=%d", number)), env...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	v := verdict{killed: err != nil, output: out}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		v.by = "timeout"
	default:
		v.by = err.Error()
		if at := panicked.FindSubmatch(out); at != nil {
			v.by = "panic: " + string(at[1])
		}
		if at := failed.FindSubmatch(out); at != nil {
			v.by = string(at[1])
		}
	}
	return v
}

// The method `limit` returns the maximum time of the judge for a mutant. A test that hangs takes longer. A test
// that is slow only because of other work on the machine does not take longer.
func (j *judge) limit() time.Duration {
	return 10*time.Second + 6*j.took
}
