package repo

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
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
var rooms = []string{
	"internal/dice", "internal/marks", "internal/trace", "internal/wire", "internal/shared", "internal/sasl", "internal/lease", "internal/conn", "internal/session", "internal/znodes", "internal/txn", "internal/codec", "internal/tally", "internal/spread", "internal/timetable", "internal/lock",
	"internal/double", "internal/queue", "internal/queue/foreign", ".",
}

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

// The tests of every layer use the harness, so it may know none of them.
func TestEachLayerCanUseTheHarness(t *testing.T) {
	files := parseDir(t, token.NewFileSet(), "internal/harness")
	for _, f := range files {
		for _, dir := range imported(f) {
			if dir != "zktest" {
				t.Errorf("internal/harness imports %s", dir)
			}
		}
	}
	if len(files) == 0 {
		t.Error("internal/harness has no files")
	}
}

// ofMechanisms are the suites that see the inside of the library. The others hold what is
// promised to users, so they see what users see.
var ofMechanisms = []string{"model", "observe", "locks", "session", "txn", "cases", "doublebarrier", "semaphore"}

func TestTheSuitesUseThePublicAPIAndSayWhatTheyHold(t *testing.T) {
	folders, err := os.ReadDir("internal/suite")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, d := range folders {
		if !d.IsDir() {
			continue
		}
		seen++
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("internal/suite", d.Name(), "doc.go"), nil, parser.ParseComments)
		if err != nil {
			t.Error(err)
		} else if text := f.Doc.Text(); !strings.Contains(text, "docs/guarantees.md") && !strings.Contains(text, "docs/costs.md") && !strings.Contains(text, "docs/queue.md") {
			t.Errorf("%s does not say which guarantee of which document it holds", d.Name())
		}
	}
	tests, err := filepath.Glob("internal/suite/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tests {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range imported(f) {
			if !slices.Contains([]string{".", "zktest", "internal/harness", "internal/suite"}, dir) &&
				!slices.Contains(ofMechanisms, filepath.Base(filepath.Dir(name))) {
				t.Errorf("%s imports %s", name, dir)
			}
		}
	}
	if seen == 0 || len(tests) < 2*seen {
		t.Errorf("%d folders, %d files", seen, len(tests))
	}
}

// TestCirclesOfFilesDoNotGrow bounds how many files of one package form a circle
// of uses: whoever changes one of them has to know all. The bounds may only
// shrink.
func TestCirclesOfFilesDoNotGrow(t *testing.T) {
	t.Parallel()
	bounds := map[string]int{"internal/dice": 1, "internal/marks": 1, "internal/trace": 1, "internal/wire": 1, "internal/sasl": 1, "internal/lease": 1, "internal/conn": 1, "internal/session": 5, "internal/znodes": 3, "internal/txn": 1, "internal/lock": 2, "internal/double": 1, "internal/shared": 1, "internal/codec": 1, "internal/tally": 1, "internal/spread": 1, "internal/timetable": 1, "internal/queue": 6, "internal/queue/foreign": 2, ".": 3}
	for _, dir := range rooms {
		largest := slices.MaxFunc(circles(uses(t, dir)), func(a, b []string) int { return len(a) - len(b) })
		if bound := bounds[dir]; len(largest) > bound {
			t.Errorf("%s: %d files form a circle, the bound is %d: %v", dir, len(largest), bound, largest)
		} else if len(largest) < bound {
			t.Errorf("%s: the largest circle has %d files; lower its bound of %d", dir, len(largest), bound)
		}
	}
}

// TestTheTopLayerStaysThin bounds what somebody has to know of the root package:
// what is not public and not about one primitive belongs into a room below. The
// bounds may only shrink.
func TestTheTopLayerStaysThin(t *testing.T) {
	t.Parallel()
	const maxLines, maxPrivateTypes, maxTestNames, maxFiles = 7500, 22, 8, 58
	fset := token.NewFileSet()
	lines, private := 0, []string(nil)
	for _, f := range parseDir(t, fset, ".") {
		lines += codeLines(t, fset.File(f.Pos()).Name())
		for _, name := range declared(f, token.TYPE) {
			if !ast.IsExported(name) {
				private = append(private, name)
			}
		}
	}
	if lines > maxLines {
		t.Errorf("%d lines of code without comments, want at most %d", lines, maxLines)
	}
	if len(private) > maxPrivateTypes {
		t.Errorf("%d private types, want at most %d: %v", len(private), maxPrivateTypes, private)
	}
	t.Logf("%d lines of code, %d private types", lines, len(private))

	// A visitor sees the library: one test file for each primitive at most, and few examples.
	// With what is not Go, the root has at most 70 files.
	sources, err := filepath.Glob("*.go")
	if err != nil || len(sources) == 0 || len(sources) > maxFiles {
		t.Errorf("%d Go files, want at most %d; %v", len(sources), maxFiles, err)
	}

	// What the tests of the root see of its inside.
	names, err := filepath.Glob("*_test.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d test files, %v", len(names), err)
	}
	for _, name := range names {
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if name != "export_test.go" {
			if f.Name.Name != "zsync_test" {
				t.Errorf("%s is package %s; tests of the root are zsync_test", name, f.Name.Name)
			}
			continue
		}
		var exported []string
		for _, tok := range []token.Token{token.CONST, token.VAR, token.TYPE, token.FUNC} {
			exported = append(exported, slices.DeleteFunc(declared(f, tok), func(n string) bool { return !ast.IsExported(n) })...)
		}
		if len(exported) > maxTestNames {
			t.Errorf("%d names in export_test.go, want at most %d: %v", len(exported), maxTestNames, exported)
		}
		t.Logf("%d names in export_test.go", len(exported))
	}
}

// TestTheTopLayerOfAMutexIsSmall bounds how many private types of the root package
// somebody has to know who changes Mutex: those that its file uses, and what they
// are made of. docs/design.md names them.
func TestTheTopLayerOfAMutexIsSmall(t *testing.T) {
	const most = 9
	fset := token.NewFileSet()
	files := parseDir(t, fset, ".")
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object), Defs: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: stub{}, Error: func(error) {}} // of what the stubs do not define
	pkg, _ := conf.Check(".", fset, files, info)
	known := make(map[string]bool)
	var learn func(n ast.Node)
	byName := make(map[string]*ast.TypeSpec)
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				byName[spec.Name.Name] = spec
			}
			return true
		})
	}
	learn = func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			o := info.Uses[id]
			if o == nil {
				o = info.Defs[id]
			}
			if o == nil || o.Pkg() != pkg || o.Type() == nil {
				return true
			}
			typ := o.Type()
			if fn, ok := o.(*types.Func); ok && fn.Signature().Recv() != nil {
				typ = fn.Signature().Recv().Type()
			}
			if p, ok := typ.(*types.Pointer); ok {
				typ = p.Elem()
			}
			named, ok := typ.(*types.Named)
			if !ok || named.Obj().Pkg() != pkg || known[named.Obj().Name()] || ast.IsExported(named.Obj().Name()) {
				return true
			}
			known[named.Obj().Name()] = true
			if spec := byName[named.Obj().Name()]; spec != nil {
				learn(spec.Type)
			}
			return true
		})
	}
	for _, f := range files {
		if filepath.Base(fset.Position(f.Pos()).Filename) == "mutex.go" {
			learn(f)
		}
	}
	names := slices.Sorted(maps.Keys(known))
	if len(names) > most || len(names) == 0 {
		t.Errorf("%d private types, want at most %d: %v", len(names), most, names)
	}
	design, err := os.ReadFile("docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	list := "`" + strings.Join(names, "`, `") + "`"
	if !strings.Contains(strings.Join(strings.Fields(string(design)), " "), list) {
		t.Errorf("docs/design.md does not list %s", list)
	}
}

// codeLines counts the lines of a file that have more on them than comments.
func codeLines(t *testing.T, name string) int {
	t.Helper()
	src, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile(name, -1, len(src))
	s.Init(file, src, nil, 0)
	lines := make(map[int]bool)
	for {
		p, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return len(lines)
		case tok == token.SEMICOLON && text == "\n":
			continue
		}
		for i := range 1 + strings.Count(text, "\n") {
			lines[file.Line(p)+i] = true
		}
	}
}

// declared returns the names that a file declares for the package, of one kind.
func declared(f *ast.File, kind token.Token) (names []string) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && kind == token.FUNC && (fn.Recv == nil || ast.IsExported(fn.Name.Name)) {
			names = append(names, fn.Name.Name)
		}
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != kind {
			continue
		}
		for _, spec := range g.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
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
