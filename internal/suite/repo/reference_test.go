package repo

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/harness"
)

// headings are those of a primitive's comment, in their order; Cost may also come before
// Znodes.
var headings = []string{"Loss", "Errors", "Limits", "Znodes", "Cost", "Algorithm"}

// commonErrors are told of once, in the package comment: every primitive has them.
var commonErrors = []string{"ErrLost", "ErrClosed", "ErrNotLocked", "ErrInvalid"}

// The reference is at most this long. A primitive's comment begins with a definition, and code.
const (
	maxReferenceLines  = 2200
	maxTypeWords       = 250
	maxDefinitionWords = 20
	minCodeLines       = 3
	maxCodeLines       = 8
)

func TestTheReferenceIsShort(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "doc", "-all", ".").Output()
	harness.Must(t, err)
	if n := strings.Count(string(out), "\n"); n > maxReferenceLines {
		t.Errorf("go doc -all . has %d lines; want at most %d: shorten, merge what is said twice, or link to a document", n, maxReferenceLines)
	}
	seen := 0
	for _, typ := range packageOf(t, ".", sourcesOf(t, ".")).Types {
		if !isPrimitive(typ) {
			continue
		}
		seen++
		definition := regexp.MustCompile(`[.:]\s`).Split(typ.Doc, 2)[0]
		if n := len(strings.Fields(definition)); n > maxDefinitionWords {
			t.Errorf("%s: the definition has %d words; want at most %d", typ.Name, n, maxDefinitionWords)
		}
		if n := len(strings.Fields(typ.Doc)); n > maxTypeWords {
			t.Errorf("%s: the comment has %d words; want at most %d", typ.Name, n, maxTypeWords)
		}
		if n := strings.Count("\n"+typ.Doc, "\n\t"); n < minCodeLines || n > maxCodeLines {
			t.Errorf("%s: the comment has %d lines of code; want from %d to %d", typ.Name, n, minCodeLines, maxCodeLines)
		}
	}
	if seen < 15 {
		t.Errorf("only %d primitives were found", seen)
	}
}

// sourcesOf names the files of a package, without its tests.
func sourcesOf(t *testing.T, dir string) map[string]any {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	harness.Must(t, err)
	sources := make(map[string]any)
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			sources[name] = nil // it is read
		}
	}
	return sources
}

// isPrimitive reports whether a type has a Path.
func isPrimitive(typ *doc.Type) bool {
	return slices.ContainsFunc(typ.Methods, func(m *doc.Func) bool { return m.Name == "Path" })
}

func TestTheReferenceIsCompleteAndItsHeadingsAreThere(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, dir := range []string{".", "zktest", "fence", "kerberos", "otel", "ui"} {
		missing, primitives := missingInReference(t, dir, sourcesOf(t, dir))
		for _, what := range missing {
			t.Errorf("%s: %s", dir, what)
		}
		seen += primitives
	}
	if seen < 15 {
		t.Errorf("only %d primitives were found", seen)
	}
}

func TestWhatIsMissingInAReferenceIsFound(t *testing.T) {
	source := `// Package p is complete.
package p

// A Good is complete.
//
// # Loss
//
// # Errors
//
// ErrOdd.
//
// # Znodes
//
// # Cost
type Good struct{}

// Path is told.
func (Good) Path() string { return "" }

// Do returns [ErrOdd] or [ErrLost].
func (Good) Do() {}

// A Bad has its headings in the wrong order, and one too few.
//
// # Cost
//
// # Loss
//
// # Errors
//
// None.
type Bad struct{}

// Path is told.
func (Bad) Path() string { return "" }

// Do returns [ErrOdd].
func (Bad) Do() {}

func (Bad) Bare() {}

type Untold int

// These are told together.
const A, B = 1, 2

const C = 3

// A Plain has no path, and needs no headings.
type Plain struct{}
`
	got, primitives := missingInReference(t, "p", map[string]any{"p.go": source})
	want := []string{
		"Bad has no # Znodes", "Bad has # Cost and # Loss in the wrong order", "Bad does not tell of ErrOdd under # Errors",
		"Bad.Bare has no comment", "C has no comment", "Untold has no comment",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) || primitives != 2 {
		t.Errorf("%d primitives, and\n%q, want\n%q", primitives, got, want)
	}
}

// packageOf parses a package. A source is the text of a file, or nil.
func packageOf(t *testing.T, dir string, sources map[string]any) *doc.Package {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for name, source := range sources {
		f, err := parser.ParseFile(fset, name, source, parser.ParseComments)
		harness.Must(t, err)
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, dir)
	harness.Must(t, err)
	return p
}

// missingInReference says in sorted order what the comments of a package lack,
// and how many primitives it has.
func missingInReference(t *testing.T, dir string, sources map[string]any) (missing []string, primitives int) {
	t.Helper()
	p := packageOf(t, dir, sources)
	want := func(name, text string) {
		if strings.TrimSpace(text) == "" {
			missing = append(missing, name+" has no comment")
		}
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			for _, s := range v.Decl.Specs {
				s := s.(*ast.ValueSpec)
				want(s.Names[0].Name, v.Doc+s.Doc.Text()+s.Comment.Text())
			}
		}
	}
	functions := func(of string, all []*doc.Func) (text string) {
		for _, f := range all {
			want(of+f.Name, f.Doc)
			text += f.Doc + "\n"
		}
		return text
	}
	want("the package", p.Doc)
	values(p.Consts)
	values(p.Vars)
	functions("", p.Funcs)
	for _, typ := range p.Types {
		want(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		told := functions("", typ.Funcs) + functions(typ.Name+".", typ.Methods)
		if isPrimitive(typ) {
			primitives++
			missing = append(missing, missingHeadings(typ.Name, typ.Doc, told)...)
		}
	}
	slices.Sort(missing)
	return missing, primitives
}

// missingHeadings says what a primitive's comment lacks. told is what its
// functions and methods tell: an error that only some primitives have, and that
// one of them names, must stand under # Errors as well.
func missingHeadings(name, text, told string) (missing []string) {
	sections := regexp.MustCompile(`(?m)^# `).Split(text, -1)
	under, last := make(map[string]string), ""
	for _, section := range sections[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		if at := slices.Index(headings, heading); at < 0 {
			missing = append(missing, name+" has an odd heading, # "+heading)
		} else if at < slices.Index(headings, last) && !(heading == "Znodes" && last == "Cost") {
			missing = append(missing, name+" has # "+last+" and # "+heading+" in the wrong order")
		}
		under[heading], last = body, heading
	}
	for _, heading := range []string{"Loss", "Znodes", "Cost"} {
		if _, ok := under[heading]; !ok {
			missing = append(missing, name+" has no # "+heading)
		}
	}
	errs := regexp.MustCompile(`\bErr[A-Z]\w+`).FindAllString(sections[0]+told, -1)
	slices.Sort(errs)
	for _, err := range slices.Compact(errs) {
		if !slices.Contains(commonErrors, err) && !strings.Contains(under["Errors"], err) {
			missing = append(missing, name+" does not tell of "+err+" under # Errors")
		}
	}
	return missing
}
