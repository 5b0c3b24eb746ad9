package gosync_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A borrowed file is a test file of another package, in which parts are
// overwritten. Lines keep their numbers, so that a failure names the line of
// the original.
type borrowed struct {
	name string
	fset *token.FileSet
	file *ast.File // without the declarations that are dropped
	text []byte
	over []patch
}

// A patch replaces the text between two positions.
type patch struct {
	from, to token.Pos
	text     string
}

func borrow(t *testing.T, name string) *borrowed {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b := &borrowed{name: filepath.Base(name), fset: token.NewFileSet(), text: text}
	if b.file, err = parser.ParseFile(b.fset, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *borrowed) replace(n ast.Node, text string) {
	b.over = append(b.over, patch{n.Pos(), n.End(), text})
}

// drop drops the functions that unwanted names, and then every function that
// only these have called.
func (b *borrowed) drop(unwanted func(name string) bool) {
	for again := true; again; {
		again = false
		b.file.Decls = slices.DeleteFunc(b.file.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !unwanted(f.Name.Name) {
				return false
			}
			from := f.Pos()
			if f.Doc != nil {
				from = f.Doc.Pos() // in which there may be a directive
			}
			b.over = append(b.over, patch{from, f.End(), strings.Repeat("\n", b.line(f.End())-b.line(from))})
			again = true
			return true
		})
		called := b.mentioned()
		unwanted = func(name string) bool { return !called[name] && !isRun(name) && name != "init" }
	}
}

func (b *borrowed) line(p token.Pos) int { return b.fset.Position(p).Line }

// mentioned returns the names that are used anywhere, as opposed to declared.
func (b *borrowed) mentioned() map[string]bool {
	names := make(map[string]bool)
	for _, d := range b.file.Decls {
		ast.Inspect(d, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if f, ok := d.(*ast.FuncDecl); !ok || id != f.Name {
					names[id.Name] = true
				}
			}
			return true
		})
	}
	return names
}

// redirect imports other packages than the file says.
func (b *borrowed) redirect(imports map[string]string) {
	used := b.mentioned()
	for _, spec := range b.file.Imports {
		is, _ := strconv.Unquote(spec.Path.Value)
		to, name := is, ""
		if other, ok := imports[is]; ok {
			to = other
		}
		if spec.Name == nil && !used[path.Base(is)] {
			name = "_ "
		}
		b.replace(spec.Path, name+strconv.Quote(to))
	}
}

// divert calls the function that to names wherever from does, in a package
// that the file imports.
func (b *borrowed) divert(from, to string) {
	ast.Inspect(b.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && b.source(sel) == from {
			b.replace(sel, to)
		}
		return true
	})
}

// change makes a change, and reports whether what it is of is there.
func (b *borrowed) change(c change) bool {
	for _, d := range b.file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == c.test {
			if i := strings.Index(b.source(f), c.from); i >= 0 {
				at := f.Pos() + token.Pos(i)
				b.over = append(b.over, patch{at, at + token.Pos(len(c.from)), c.to})
				return true
			}
		}
	}
	return false
}

func (b *borrowed) source(n ast.Node) string {
	return string(b.text[b.fset.Position(n.Pos()).Offset:b.fset.Position(n.End()).Offset])
}

// result returns the text with the patches.
func (b *borrowed) result() []byte {
	slices.SortStableFunc(b.over, func(x, y patch) int { return int(x.from - y.from) })
	var out bytes.Buffer
	rest := b.file.FileStart
	for _, p := range b.over {
		out.Write(b.text[rest-b.file.FileStart : p.from-b.file.FileStart])
		out.WriteString(p.text)
		rest = p.to
	}
	out.Write(b.text[rest-b.file.FileStart:])
	return out.Bytes()
}

// isRun reports whether the name of a function is that of a test or an example.
func isRun(name string) bool {
	return strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Example")
}

// build compiles files as tests of the package in the directory adapter, in
// which nothing is put, and returns the name of the test binary.
func build(t *testing.T, files []*borrowed, adapter string, flags ...string) string {
	t.Helper()
	dir, err := filepath.Abs(adapter)
	if err != nil {
		t.Fatal(err)
	}
	temp := t.TempDir()
	overlay := make(map[string]string)
	for _, b := range files {
		file := filepath.Join(temp, b.name)
		overlay[filepath.Join(dir, b.name)] = file
		if err := os.WriteFile(file, b.result(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// What the borrowed files call beside the adapter is no test of it. In its folder, it would cost a link of a test
	// binary without tests.
	own, err := filepath.Glob(filepath.Join("testdata", adapter, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range own {
		if overlay[filepath.Join(dir, filepath.Base(file))], err = filepath.Abs(file); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	description := filepath.Join(temp, "overlay.json")
	if err := os.WriteFile(description, data, 0o644); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(temp, "borrowed.test")
	args := append([]string{"test", "-c", "-ldflags=-w", "-overlay", description, "-o", binary}, flags...)
	command(t, "go", append(args, "./"+adapter)...)
	return binary
}

// command returns what a program prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, &out, &errs)
	}
	return strings.TrimSpace(out.String())
}

// run runs tests that are in a binary, and returns what it says of each.
func run(binary, dir string, tests []string, env ...string) (verdicts map[string]string, out []byte, err error) {
	limit := "8m"
	if long() {
		limit = "30m"
	}
	cmd := exec.Command(binary, "-test.v", "-test.timeout="+limit, fmt.Sprintf("-test.run=^(%s)$", strings.Join(tests, "|")))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if os.Getenv("GOGC") == "" {
		cmd.Env = append(cmd.Env, "GOGC=1000") // as harness.CollectLess
	}
	out, err = cmd.CombinedOutput()
	verdicts = make(map[string]string)
	for line := range strings.Lines(string(out)) {
		var verdict, test string
		if n, _ := fmt.Sscanf(line, "--- %s %s ", &verdict, &test); n == 2 {
			verdicts[test] = strings.TrimSuffix(verdict, ":")
		}
	}
	return verdicts, out, err
}

// sorted returns the keys of m in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
