package queue

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is different in another library's layout is a method of layout there, and no
// condition here.
func TestNobodyAsksWhichLayoutAQueueHas(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "foreign") {
			continue
		}
		seen++
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if n.Name == "foreign" || n.Name == "formats" {
					t.Errorf("%v: %s", fset.Position(n.Pos()), n.Name)
				}
			case *ast.TypeAssertExpr:
				if id, ok := n.Type.(*ast.Ident); ok && id.Name == "own" {
					t.Errorf("%v: asks for %s", fset.Position(n.Pos()), id.Name)
				}
			}
			return true
		})
	}
	if seen == 0 {
		t.Error("no file was seen")
	}
}

// What is put back must find its place among elements that were listed later.
func TestForeignElementsHaveTheSameOrderInEveryListing(t *testing.T) {
	for l, names := range map[string][]string{
		"SimpleDistributedQueue": {"qn-0000000005", "qn-0000000007"},
		"DistributedQueue":       {"queue-0FFFFFFFF0000000009", "queue-1000000070000000005", "queue-1000000070000000005#00000", "queue-1000000070000000005#00001", "queue-1000000070000000006"},
		"kazoo":                  {"entry-050-0000000009", "entry-100-0000000005", "entry-100-0000000006"},
	} {
		f := formats[l]
		for i := range names[1:] {
			a, b := f.elements(names[i : i+1])[0], f.elements([]string{"x", names[i+1]})[0]
			if !a.before(b) || b.before(a) {
				t.Errorf("%s does not come before %s", a.name, b.name)
			}
		}
		reversed := slices.Clone(names)
		slices.Reverse(reversed)
		for i, e := range f.elements(reversed) {
			if e.name != names[i] {
				t.Errorf("%d. in order is %s, want %s", i, e.name, names[i])
			}
		}
	}
}
