package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/harness"
)

// A sleep in virtual time takes no time, and depends on no machine. A sleep in real time has a
// comment with its reason, on its line or on the line above:
//
//	time.Sleep(d) // real time: the kernel sends the signal after this time
func TestEachSleepInRealTimeSaysWhy(t *testing.T) {
	t.Parallel()
	c := &calls{
		fset:    token.NewFileSet(),
		uses:    map[*ast.Ident]types.Object{},
		named:   map[string]*declaration{"time.Sleep": {}, "testing/synctest.Test": {starts: true, bubble: true}},
		at:      map[token.Pos]*declaration{},
		reasons: map[string]bool{},
		reached: map[reach]bool{},
	}
	c.read(t)
	c.findBubbles()
	for _, d := range c.at {
		if d.begins() {
			c.follow(d, d.starts)
		}
	}
	if len(c.sleeps) < 50 {
		t.Errorf("%d sleeps in real time were found", len(c.sleeps))
	}
	for _, at := range c.sleeps {
		if !c.reasons[line(at, 0)] && !c.reasons[line(at, -1)] {
			t.Errorf(`%s: use virtual time, wait for an event, or say in a comment that begins with "real time: " why the test sleeps`, at)
		}
	}
}

// calls follows the calls of tests, but not into bubbles of virtual time. It does not follow calls of
// interfaces.
type calls struct {
	fset    *token.FileSet
	uses    map[*ast.Ident]types.Object
	named   map[string]*declaration    // functions and variables, by the path of the package and the name
	at      map[token.Pos]*declaration // the same and methods, by the position of the name
	reasons map[string]bool            // lines with a reason
	reached map[reach]bool
	sleeps  []token.Position // in real time
}

// A declaration is a function, a method, or a variable of a package.
type declaration struct {
	node   ast.Node
	name   string
	starts bool // it starts a bubble, or calls a function that does
	bubble bool // it also takes a function, which runs in the bubble
}

// A reach is a declaration that is reached outside of bubbles. If aside, a bubble calls the functions
// that it stores.
type reach struct {
	d     *declaration
	aside bool
}

// read parses and checks all tests and their helpers. A helper is a package below internal that
// imports testing.
func (c *calls) read(t *testing.T) {
	t.Helper()
	files, helpers := map[string][]*ast.File{}, map[string]bool{}
	harness.Must(t, filepath.WalkDir(".", func(name string, e fs.DirEntry, err error) error {
		test := strings.HasSuffix(name, "_test.go")
		if err != nil || !test && !(strings.HasPrefix(name, "internal") && strings.HasSuffix(name, ".go")) {
			return err
		}
		f, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		pkg := path.Join(module, filepath.ToSlash(filepath.Dir(name)))
		helpers[pkg] = helpers[pkg] || !test && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing"` })
		if test {
			pkg += " " + f.Name.Name // which may end with _test
		}
		files[pkg] = append(files[pkg], f)
		return nil
	}))
	conf := types.Config{Importer: stub{}, Error: func(error) {}} // the stubs lack most names
	for key, fs := range files {
		pkg, _, test := strings.Cut(key, " ")
		if !test && !helpers[pkg] {
			continue
		}
		conf.Check(pkg, c.fset, fs, &types.Info{Uses: c.uses})
		for _, f := range fs {
			c.declare(pkg, f)
		}
	}
}

// declare records the declarations of a file, and its comments with reasons.
func (c *calls) declare(pkg string, f *ast.File) {
	add := func(id *ast.Ident, d *declaration, method bool) {
		d.name = id.Name
		if c.at[id.Pos()] = d; !method {
			c.named[pkg+"."+id.Name] = d
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add(d.Name, &declaration{node: d}, d.Recv != nil)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for _, id := range v.Names {
						add(id, &declaration{node: v}, false)
					}
				}
			}
		}
	}
	for _, g := range f.Comments {
		for _, text := range g.List {
			if strings.HasPrefix(text.Text, "// real time: ") {
				c.reasons[line(c.fset.Position(text.Pos()), 0)] = true
			}
		}
	}
}

// findBubbles finds the declarations that start bubbles.
func (c *calls) findBubbles() {
	for grows := true; grows; {
		grows = false
		for _, d := range c.at {
			if d.starts || !c.startsBubble(d) {
				continue
			}
			f, ok := d.node.(*ast.FuncDecl)
			d.starts, d.bubble, grows = true, !ok || slices.ContainsFunc(f.Type.Params.List, takesFunc), true
		}
	}
}

// startsBubble reports whether d calls a declaration that starts a bubble, or is another name of one.
func (c *calls) startsBubble(d *declaration) (starts bool) {
	if v, ok := d.node.(*ast.ValueSpec); ok {
		return len(v.Values) == 1 && c.runsBubble(v.Values[0])
	}
	ast.Inspect(d.node, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			to := c.declared(call.Fun)
			starts = starts || to != nil && to.starts
		}
		return true
	})
	return starts
}

// follow follows what d calls, but not into bubbles.
func (c *calls) follow(d *declaration, aside bool) {
	if c.reached[reach{d, aside}] {
		return
	}
	c.reached[reach{d, aside}] = true
	ast.Inspect(d.node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if c.named["time.Sleep"] == c.declared(n.Fun) {
				c.sleeps = append(c.sleeps, c.fset.Position(n.Pos()))
			}
			return !c.runsBubble(n.Fun)
		case *ast.AssignStmt:
			return !aside || !slices.ContainsFunc(n.Rhs, c.isFunc)
		case *ast.CompositeLit:
			return !aside || !slices.ContainsFunc(n.Elts, c.isFunc)
		case *ast.KeyValueExpr:
			return !aside || !c.isFunc(n.Value)
		case *ast.Ident, *ast.SelectorExpr:
			if to := c.declared(n.(ast.Expr)); to != nil && to.node != nil {
				_, variable := to.node.(*ast.ValueSpec)
				c.follow(to, variable && aside || to.starts)
			}
		}
		return true
	})
}

// declared returns the declaration that an expression names, or nil.
func (c *calls) declared(e ast.Expr) *declaration {
	switch e := e.(type) {
	case *ast.IndexExpr: // a function with its type parameter
		return c.declared(e.X)
	case *ast.SelectorExpr:
		if id, ok := e.X.(*ast.Ident); ok {
			if p, ok := c.uses[id].(*types.PkgName); ok {
				return c.named[p.Imported().Path()+"."+e.Sel.Name]
			}
		}
		return c.declared(e.Sel)
	case *ast.Ident:
		if o := c.uses[e]; o != nil {
			return c.at[o.Pos()]
		}
	}
	return nil
}

func (c *calls) runsBubble(e ast.Expr) bool {
	d := c.declared(e)
	return d != nil && d.bubble
}

// begins reports whether d is called by the runtime or by package testing.
func (d *declaration) begins() bool {
	f, ok := d.node.(*ast.FuncDecl)
	return ok && f.Recv == nil && (d.name == "main" || d.name == "init" ||
		slices.ContainsFunc([]string{"Test", "Benchmark", "Example", "Fuzz"}, func(p string) bool { return strings.HasPrefix(d.name, p) }))
}

func takesFunc(f *ast.Field) bool {
	t := f.Type
	if many, ok := t.(*ast.Ellipsis); ok {
		t = many.Elt
	}
	_, ok := t.(*ast.FuncType)
	return ok
}

// isFunc reports whether an expression is a function, and not a call.
func (c *calls) isFunc(e ast.Expr) bool {
	if d := c.declared(e); d != nil {
		_, ok := d.node.(*ast.FuncDecl)
		return ok
	}
	_, ok := e.(*ast.FuncLit)
	return ok
}

// line returns a line as a text: the line of a position, and n more.
func line(at token.Position, n int) string {
	at.Line, at.Column = at.Line+n, 0
	return at.String()
}
