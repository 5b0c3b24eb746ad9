package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/harness"
)

func TestEveryTestThatTheDocumentsNameExists(t *testing.T) {
	t.Parallel()
	var tests []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests = append(tests, fn.Name.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	// An ellipsis in a name stands for what is left out.
	named := regexp.MustCompile(`\b(Test|Fuzz|Benchmark|Example)[A-Z][\w…]*`)
	blocks := regexp.MustCompile("(?s)```.*?```") // of code, which the reader copies
	seen := 0
	for _, name := range documents {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range named.FindAllString(blocks.ReplaceAllString(string(text), ""), -1) {
			seen++
			want := regexp.MustCompile("^" + strings.ReplaceAll(test, "…", `\w*`) + "$")
			if !slices.ContainsFunc(tests, want.MatchString) {
				t.Errorf("%s names %s, which does not exist", name, test)
			}
		}
	}
	if seen == 0 {
		t.Error("no test is named in any document")
	}
}

// The models of the exhaustive tests rest on the assumptions in bold, and on no others.
func TestTheAssumptionsOfTheModelsAreThoseInBold(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/guarantees.md")
	harness.Must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Assumptions\n")
	listed := regexp.MustCompile(`(?m)^- (\*\*?)([a-z-]+)\*\*?: `).FindAllStringSubmatch(section, -1)
	if lines := strings.Count(section, "\n- "); lines == 0 || lines != len(listed) {
		t.Errorf("of %d assumptions, %d have a name", lines, len(listed))
	}
	models, err := filepath.Glob("internal/*/everyway_test.go")
	harness.Must(t, err)
	assumes := make(map[string]string) // a model, by the name of its assumption
	for _, model := range models {
		source, err := os.ReadFile(model)
		harness.Must(t, err)
		comment, _, _ := strings.Cut(string(source), "\nimport (")
		names := regexp.MustCompile(`(?m)^//   - ([a-z-]+): `).FindAllStringSubmatch(comment, -1)
		if lines := strings.Count(comment, "\n//   - "); lines == 0 || lines != len(names) {
			t.Errorf("%s has %d assumptions, and names %d", model, lines, len(names))
		}
		for _, m := range names {
			assumes[m[1]] = model
		}
	}
	for _, m := range listed {
		if bold := m[1] == "**"; bold != (assumes[m[2]] != "") {
			t.Errorf("docs/guarantees.md: %s is in bold: %v, and its model is %q", m[2], bold, assumes[m[2]])
		}
		delete(assumes, m[2])
	}
	for name, model := range assumes {
		t.Errorf("%s assumes %s, which docs/guarantees.md does not list", model, name)
	}
}

func TestTheTenQuestionsAreAnsweredByWhatExists(t *testing.T) {
	text, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "## Ten questions")
	if !ok {
		t.Fatal("docs/design.md has no ten questions")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	answers := regexp.MustCompile("`([\\w/]+\\.go)`, `([\\w.]+)`").FindAllStringSubmatch(section, -1)
	if len(answers) < 10 {
		t.Errorf("%d answers name a file and a function", len(answers))
	}
	for _, a := range answers {
		f, err := parser.ParseFile(token.NewFileSet(), a[1], nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.ContainsFunc(f.Decls, func(d ast.Decl) bool { fn, ok := d.(*ast.FuncDecl); return ok && nameOf(fn) == a[2] }) {
			t.Errorf("there is no %s in %s", a[2], a[1])
		}
	}
}

// nameOf returns the name of a function, or Type.Method.
func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	recv := fn.Recv.List[0].Type
	if p, ok := recv.(*ast.StarExpr); ok {
		recv = p.X
	}
	if id, ok := recv.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}
