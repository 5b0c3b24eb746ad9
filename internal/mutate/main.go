// Command mutate measures whether the tests find small faults of the library. A mutant is a change of the library
// at one place. The command runs the tests with one mutant at a time:
//
//	go run ./internal/mutate -n 440 -seed 1 -results FILE
//
// # Mutants
//
// Each mutant changes the code of conn, lease, session, txn, lock or queue. The change has a kind from this list:
//
//   - negate: a condition, or one operand of && or ||, is negated.
//   - omit: a statement is left out (a call, an assignment, go, defer, send, break, continue, return).
//   - bound: a bound moves by one: < becomes <=, <= becomes <, > becomes >=, >= becomes >; a number that is added
//     or subtracted becomes smaller by one.
//   - return: a returned bool is negated; a returned error becomes nil, or a returned nil becomes an error.
//
// The seed chooses the mutants among all places of all six packages. So a larger package has more mutants. A
// mutant that does not compile does not count.
//
// An overlay of the go command compiles all chosen mutants into the tests, and each of them is switched off. The
// environment variable ZSYNC_MUTANT switches a single mutant on. So each test binary is built once, and the source
// tree does not change.
//
// # Judges
//
// The judges are tests. The cheapest judges come first: the package's own tests, then the random programs of
// internal/fleet, then the exhaustive tests. The first judge that fails kills the mutant. A panic or a timeout
// also kills the mutant. Further tests judge the surviving mutants, a few tests at a time: the models, the tests
// of the primitives and the suites. The shortest tests come first, and -budget limits the time for each mutant.
//
// Before all mutants, each judge runs without a mutant. The judge must pass, and this run shows the mutants that
// the judge reaches. The judge does not run for other mutants. After each 50 mutants, the first judges run again
// without a mutant. If a judge then fails, the results say so, because that judge may kill mutants by chance. The
// further tests are measured once for each state of their binary.
//
// # Results
//
// Each mutant has a line in the file of results. If the further tests judge the mutant, the mutant has a second
// line. A run of the command skips the mutants that already have a line. At the end, the command prints a table of
// the results. With -table, it only prints the table.
package main

import (
	"cmp"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var packages = []string{"internal/conn", "internal/lease", "internal/session", "internal/znodes", "internal/txn", "internal/lock", "internal/queue"}

var (
	n       = flag.Int("n", 420, "judge so many `mutants`, less those that do not compile")
	seed    = flag.Uint64("seed", 1, "the `seed` chooses the mutants")
	results = flag.String("results", "mutants.txt", "the `file` of results; a run skips the mutants in it")
	table   = flag.Bool("table", false, "only print the table of the results")
	only    = flag.Int("only", -1, "judge only the mutant of this `number`, and print what the judges print")
	budget  = flag.Duration("budget", time.Minute, "the `time` of the other tests for each mutant that survives the first judges")
	folder  = flag.String("work", filepath.Join(os.TempDir(), "mutate"), "the `folder` for binaries")
)

func main() {
	log.SetFlags(log.Ltime)
	flag.Parse()
	if !*table {
		if err := run(); err != nil {
			log.Fatal(err)
		}
	}
	if err := printTable(os.Stdout, *results); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	possible, err := find(packages)
	if err != nil {
		return err
	}
	if *folder, err = filepath.Abs(*folder); err != nil {
		return err
	}
	if err := os.MkdirAll(*folder, 0o755); err != nil {
		return err
	}
	chosen := choose(possible, *n, *seed)
	log.Printf("%d of %d possible mutants, seed %d", len(chosen), len(possible), *seed)
	mutants, overlay, err := compilable(packages, chosen, len(possible), *folder)
	if err != nil {
		return err
	}
	log.Printf("%d do not compile", len(chosen)-len(mutants))
	r, err := openResults(*results, fmt.Sprintf("# seed %d, %d possible, sources %s", *seed, len(possible), fingerprint()))
	if err != nil {
		return err
	}
	r.overlay, r.total = overlay, len(possible)
	for batch := range slices.Chunk(mutants, 50) {
		if err := r.judgeFirst(batch); err != nil {
			return err
		}
		if err := r.judgeSurvivors(batch); err != nil {
			return err
		}
	}
	return nil
}

// The function `choose` returns n random mutants in a random order. So even a run that is stopped has judged a
// random sample.
func choose(possible []*mutant, n int, seed uint64) []*mutant {
	chosen := slices.Clone(possible)
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	return chosen[:min(n, len(chosen))]
}

// The function `fingerprint` returns a hash of the sources. Results are valid only for sources with
// this hash.
func fingerprint() string {
	h := sha256.New()
	for _, dir := range packages {
		names, _ := sources(dir)
		for _, name := range names {
			text, _ := os.ReadFile(name)
			h.Write(text)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// judgeFirst runs the first judges on the mutants that have no result yet.
func (r *record) judgeFirst(mutants []*mutant) error {
	mutants = slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool {
		return r.verdict[m.String()] != "" && m.number != *only || *only >= 0 && m.number != *only
	})
	if len(mutants) == 0 {
		return nil
	}
	if r.first == nil {
		r.first = first(packages)
		if err := build(r.first, r.overlay); err != nil {
			return err
		}
		for _, j := range r.first {
			if err := j.record(r.total); err != nil {
				return err
			}
			log.Printf("%-20s %-24s %6.1f s", j.name, j.dir, j.took.Seconds())
		}
	}
	for _, m := range mutants {
		if err := r.judge(m, r.first, "not reached first", "survived first", 0); err != nil {
			return err
		}
	}
	return r.control()
}

// The method `control` runs the first judges without a mutant.
func (r *record) control() error {
	red := 0
	for _, j := range r.first {
		if v := j.run(-1, j.limit()); v.killed {
			red++
			fmt.Fprintf(r.file, "# without a mutant, %s of %s failed: %s\n", j.name, j.dir, v.by)
		}
	}
	_, err := fmt.Fprintf(r.file, "# without a mutant, %d of %d judges failed\n", red, len(r.first))
	return err
}

// judgeSurvivors runs the other tests on the mutants that survived the first judges.
func (r *record) judgeSurvivors(mutants []*mutant) error {
	for _, m := range mutants {
		unreached := "not reached"
		switch r.verdict[m.String()] {
		case "survived first":
			unreached = "survived"
		case "not reached first":
		default:
			continue
		}
		if *only >= 0 && m.number != *only {
			continue
		}
		if err := r.measureOthers(); err != nil {
			return err
		}
		if err := r.judge(m, r.others, unreached, "survived", *budget); err != nil {
			return err
		}
	}
	return nil
}

// measureOthers builds the other tests, and runs them once without a mutant.
func (r *record) measureOthers() error {
	if r.others != nil {
		return nil
	}
	var packages []*judge
	for _, dir := range others {
		packages = append(packages, &judge{dir: dir})
	}
	if err := build(packages, r.overlay); err != nil {
		return err
	}
	for _, dir := range others {
		tests, err := each(dir, r.total)
		if err != nil {
			return err
		}
		r.others = append(r.others, tests...)
		log.Printf("other tests of %s: %d runs", dir, len(tests))
	}
	slices.SortStableFunc(r.others, func(a, b *judge) int { return cmp.Compare(a.took, b.took) })
	return nil
}

// The method `judge` runs judges on a mutant, and appends the line of the mutant to the results. The verdict is
// "killed" if a judge fails. It is the text `unreached` if no judge reaches the mutant, and otherwise the text
// `survived`. The budget limits the total time of the judges, as measured without a mutant.
func (r *record) judge(m *mutant, all []*judge, unreached, survived string, budget time.Duration) error {
	began, verdict, by, which := time.Now(), unreached, "", ""
	var used time.Duration
	for _, j := range all {
		if j.only != "" && j.only != m.dir || j.reached[m.number] == 0 {
			continue
		}
		if used += j.took; budget > 0 && used > budget {
			break
		}
		verdict = survived
		v := j.run(m.number, j.limit())
		if *only >= 0 {
			fmt.Printf("%s: %s of %s %v\n%s\n", m, j.name, j.dir, j.args, v.output)
		}
		if v.killed {
			verdict, which, by = "killed", j.name, j.dir+" "+v.by
			break
		}
	}
	r.verdict[m.String()] = verdict
	_, err := fmt.Fprintln(r.file, strings.Join([]string{m.String(), verdict, which, by, fmt.Sprintf("%.1f s", time.Since(began).Seconds()), m.where, m.text}, "\t"))
	return err
}

// The type `record` has the file of results, and the last verdict of each mutant in the file.
type record struct {
	file    *os.File
	verdict map[string]string

	overlay       string
	total         int      // of possible mutants
	first, others []*judge // nil until they are needed
}

// openResults opens the file of results for appending.
func openResults(name, head string) (*record, error) {
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	head += "\n"
	if len(text) > 0 && !strings.HasPrefix(string(text), head) {
		return nil, fmt.Errorf("%s has the results of another run: %.80s", name, text)
	}
	r := &record{verdict: map[string]string{}}
	for line := range strings.Lines(string(text)) {
		if field := strings.Split(line, "\t"); len(field) > 1 {
			r.verdict[field[0]] = field[1]
		}
	}
	if r.file, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err == nil && len(text) == 0 {
		_, err = r.file.WriteString(head)
	}
	return r, err
}

// printTable prints a table: for each package and each judge, the number of mutants that the judge was the first
// to kill.
func printTable(out io.Writer, name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	last := map[string][]string{} // by mutant: the fields of its last line
	for line := range strings.Lines(string(text)) {
		if field := strings.Split(line, "\t"); len(field) > 2 {
			last[field[0]] = field
		}
	}
	columns := []string{"own tests", "random programs", "exhaustive tests", "models", "other tests", "survived", "survived first", "not reached", "not reached first"}
	rows := append(slices.Clone(packages), "together")
	count := map[[2]string]int{} // by row and column
	for id, field := range last {
		column := field[1]
		if column == "killed" {
			column = field[2]
		}
		row := packages[slices.IndexFunc(packages, func(dir string) bool { return strings.Contains(id, " "+dir+"/") })]
		count[[2]string{row, column}]++
		count[[2]string{"together", column}]++
	}
	fmt.Fprintf(out, "| package | mutants | %s |\n|---%s|\n", strings.Join(columns, " | "), strings.Repeat("|---", len(columns)+1))
	for _, row := range rows {
		total, cells := 0, ""
		for _, c := range columns {
			total += count[[2]string{row, c}]
			cells += fmt.Sprintf(" | %d", count[[2]string{row, c}])
		}
		fmt.Fprintf(out, "| %s | %d%s |\n", strings.TrimPrefix(row, "internal/"), total, cells)
	}
	return nil
}
