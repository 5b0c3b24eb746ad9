package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/harness"
)

// logKeys are the keys of all that is logged.
var logKeys = []string{
	"path", "op", "session", "reason", "err",
	"addr", "at", "since", "attempt", "batches", "id", "key", "tasks", "element", "elements", "owner", "timeout", "version", "buried", "holds", "until", "lasted",
}

func TestLogKeysAreFixed(t *testing.T) {
	seen := 0
	for _, dir := range []string{".", "internal/session", "internal/znodes", "internal/lock", "internal/queue"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		harness.Must(t, err)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, name, nil, 0)
			harness.Must(t, err)
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, sel.Sel.Name) || len(call.Args) < 2 {
					return true
				}
				if x, ok := sel.X.(*ast.SelectorExpr); !ok || x.Sel.Name != "Log" {
					return true
				}
				for i := 1; i < len(call.Args); i += 2 {
					seen++
					lit, ok := call.Args[i].(*ast.BasicLit)
					if !ok {
						t.Errorf("%s: a key that is no literal", fset.Position(call.Pos()))
						continue
					}
					key, _ := strconv.Unquote(lit.Value)
					if !slices.Contains(logKeys, key) {
						t.Errorf("%s: key %q; want one of %q", fset.Position(call.Pos()), key, logKeys)
					}
				}
				return true
			})
		}
	}
	if seen < 20 {
		t.Errorf("%d keys seen", seen)
	}
}
