package zsync_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/zsync/zsync"

// rooms are the packages of the library from the bottom up: each may import
// those before it, and nothing else of this module.
var rooms = []string{"internal/trace", "internal/wire", "internal/session", "internal/line", "internal/double", "internal/turnstile", "internal/queue", "."}

// parseDir parses the files of a package, without its tests.
func parseDir(t *testing.T, fset *token.FileSet, dir string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// imported returns what a file imports of this module, as directories.
func imported(f *ast.File) (dirs []string) {
	for _, spec := range f.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		if p == module {
			dirs = append(dirs, ".")
		} else if dir, ok := strings.CutPrefix(p, module+"/"); ok {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func TestEachLayerImportsOnlyLayersBelowIt(t *testing.T) {
	seen := 0
	for i, dir := range rooms {
		for _, f := range parseDir(t, token.NewFileSet(), dir) {
			seen++
			for _, d := range imported(f) {
				if !slices.Contains(rooms[:i], d) {
					t.Errorf("%s imports %s", dir, d)
				}
			}
		}
	}
	if seen < len(rooms) {
		t.Errorf("%d files seen", seen)
	}
}

func TestTheTestServerIsAnIndependentWitness(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("zktest", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		for _, dir := range imported(f) {
			if !strings.HasPrefix(dir, "zktest") {
				t.Errorf("%s imports %s", name, dir)
			}
		}
		return nil
	})
	if err != nil || seen == 0 {
		t.Fatalf("%d files seen, %v", seen, err)
	}
}

// TestCirclesOfFilesDoNotGrow bounds how many files of one package form a circle
// of uses: whoever changes one of them has to know all. The bounds may only
// shrink.
func TestCirclesOfFilesDoNotGrow(t *testing.T) {
	bounds := map[string]int{"internal/trace": 1, "internal/wire": 1, "internal/session": 5, "internal/line": 2, "internal/double": 1, "internal/turnstile": 1, "internal/queue": 10, ".": 8}
	for _, dir := range rooms {
		largest := slices.MaxFunc(circles(uses(t, dir)), func(a, b []string) int { return len(a) - len(b) })
		if bound := bounds[dir]; len(largest) > bound {
			t.Errorf("%s: %d files form a circle, the bound is %d: %v", dir, len(largest), bound, largest)
		} else if len(largest) < bound {
			t.Errorf("%s: the largest circle has %d files; lower its bound of %d", dir, len(largest), bound)
		}
	}
}

// stub imports every package as an empty one: only uses within a package count.
type stub struct{}

func (stub) Import(p string) (*types.Package, error) {
	pkg := types.NewPackage(p, path.Base(p))
	pkg.MarkComplete()
	return pkg, nil
}

// uses returns which files of a package use what other files of it define.
func uses(t *testing.T, dir string) map[string]map[string]bool {
	t.Helper()
	fset := token.NewFileSet()
	files := parseDir(t, fset, dir)
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: stub{}, Error: func(error) {}} // of what the stubs do not define
	pkg, _ := conf.Check(dir, fset, files, info)
	file := func(p token.Pos) string { return filepath.Base(fset.Position(p).Filename) }
	graph := make(map[string]map[string]bool)
	for _, f := range files {
		graph[file(f.Pos())] = make(map[string]bool)
	}
	for id, o := range info.Uses {
		if o.Pkg() != pkg || !o.Pos().IsValid() {
			continue
		}
		if _, ok := o.(*types.PkgName); ok {
			continue
		}
		if from, to := file(id.Pos()), file(o.Pos()); from != to {
			graph[from][to] = true
		}
	}
	return graph
}

// circles returns the strongly connected components of a graph.
func circles(graph map[string]map[string]bool) (all [][]string) {
	index, low := make(map[string]int), make(map[string]int)
	var stack []string
	var visit func(v string)
	visit = func(v string) {
		index[v] = len(index) + 1
		low[v] = index[v]
		stack = append(stack, v)
		for w := range graph[v] {
			if index[w] == 0 {
				visit(w)
				low[v] = min(low[v], low[w])
			} else if slices.Contains(stack, w) {
				low[v] = min(low[v], index[w])
			}
		}
		if low[v] == index[v] {
			i := slices.Index(stack, v)
			circle := slices.Sorted(slices.Values(stack[i:]))
			stack = stack[:i]
			all = append(all, circle)
		}
	}
	for v := range graph {
		if index[v] == 0 {
			visit(v)
		}
	}
	return all
}
