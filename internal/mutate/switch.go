package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The text `helpers` is a file that is added to each changed package. The function mutantAt in this file reports
// whether the environment switches a mutant on. In a recording run, mutantAt also makes a note in the
// recording's file: the run has reached the mutant's place.
const helpers = `package %s

import (
	"cmp"
	"errors"
	"os"
	"strconv"
	"sync/atomic"
)

var mutantOn = func() int {
	n, err := strconv.Atoi(os.Getenv("ZSYNC_MUTANT"))
	if err != nil {
		return -1
	}
	return n
}()

var mutantRecord = func() *os.File {
	f, _ := os.OpenFile(os.Getenv("ZSYNC_MUTANT_RECORD"), os.O_WRONLY, 0)
	return f
}()

var mutantSeen [%d]atomic.Bool

func mutantAt(n int) bool {
	if mutantRecord != nil && !mutantSeen[n].Swap(true) {
		mutantRecord.WriteAt([]byte{1}, int64(n))
	}
	return n == mutantOn
}

func mutantNot(n int, is bool) bool { return is != mutantAt(n) }

var errMutant = errors.New("an error of a mutant")

func mutantError(n int, err error) error {
	switch {
	case !mutantAt(n):
		return err
	case err == nil:
		return errMutant
	}
	return nil
}

func mutantLess[T cmp.Ordered](n int, a, b T) bool           { return a < b || mutantAt(n) && a == b }
func mutantLessOrEqual[T cmp.Ordered](n int, a, b T) bool    { return a < b || !mutantAt(n) && a == b }
func mutantGreater[T cmp.Ordered](n int, a, b T) bool        { return a > b || mutantAt(n) && a == b }
func mutantGreaterOrEqual[T cmp.Ordered](n int, a, b T) bool { return a > b || !mutantAt(n) && a == b }

type mutantInteger interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

func mutantAdd[T mutantInteger](n int, a, b T) T {
	if mutantAt(n) {
		b--
	}
	return a + b
}

func mutantSubtract[T mutantInteger](n int, a, b T) T {
	if mutantAt(n) {
		b--
	}
	return a - b
}
`

// The function `switchable` writes copies of the packages into a folder. The copies have all chosen mutants, and
// each mutant is switched off. The function also writes an overlay, which names the copies to the go command. The
// argument `total` is the number of all possible mutants.
func switchable(dirs []string, chosen []*mutant, total int, folder string) (overlay string, err error) {
	chosen = slices.SortedFunc(slices.Values(chosen), func(a, b *mutant) int { return cmp.Compare(a.number, b.number) }) // see `apply`
	replace := map[string]string{}
	write := func(name, text string) error {
		to := filepath.Join(folder, strings.ReplaceAll(name, "/", "+")) // `compilable` parses this name
		replace[name] = to
		return os.WriteFile(to, []byte(text), 0o644)
	}
	for _, dir := range dirs {
		names, err := sources(dir)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			var edits []edit
			for _, m := range chosen {
				if m.dir == dir && m.file == filepath.Base(name) {
					edits = append(edits, m.edits...)
				}
			}
			if err := write(name, apply(string(text), edits)); err != nil {
				return "", err
			}
		}
		if err := write(filepath.Join(dir, "mutants.go"), fmt.Sprintf(helpers, filepath.Base(dir), total)); err != nil {
			return "", err
		}
	}
	overlay = filepath.Join(folder, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, text, 0o644)
}

// The function `apply` returns the text after all edits. In the list `edits`, an outer mutant must come before an
// inner mutant. If both mutants begin at one offset, the text of the outer mutant comes first. If both end at one
// offset, the text of the inner mutant comes first.
func apply(text string, edits []edit) string {
	order := make([]int, len(edits))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := edits[i], edits[j]
		switch {
		case a.offset != b.offset:
			return cmp.Compare(a.offset, b.offset)
		case a.ends != b.ends:
			if a.ends {
				return -1
			}
			return 1
		case a.ends:
			return cmp.Compare(j, i)
		}
		return cmp.Compare(i, j)
	})
	var out strings.Builder
	done := 0
	for _, i := range order {
		e := edits[i]
		out.WriteString(text[done:e.offset])
		out.WriteString(e.text)
		done = e.offset + e.cut
	}
	out.WriteString(text[done:])
	return out.String()
}
