package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The type `mutant` is one small change of the library. Its edits do not change what the code does until the
// mutant is switched on.
type mutant struct {
	number int    // of all possible mutants, in the order of the source
	dir    string // the package
	file   string // within dir
	line   int
	column int
	kind   string // see the package's doc comment
	where  string // the function
	text   string // the code that changes

	edits []edit
	// A compiler error belongs to the mutant if the error is in the lines from `line` to `last`. The error may
	// also be in the line `end`, at which the compiler reports a missing return.
	last, end int
}

// String returns the text that identifies the mutant in a file of results.
func (m *mutant) String() string {
	return fmt.Sprintf("%d %s/%s:%d:%d %s", m.number, m.dir, m.file, m.line, m.column, m.kind)
}

// The type `edit` is for a change of the file: a text replaces `cut` bytes, from `offset` on. At the same
// offset, edits at the ends of expressions come before edits at the beginnings of expressions.
type edit struct {
	offset, cut int
	text        string
	ends        bool
}

// The type `finder` finds the mutants of files. It finds an outer mutant before the mutants inside the
// outer one.
type finder struct {
	mutants []*mutant

	// of the file
	fset  *token.FileSet
	text  string
	dir   string
	file  string
	where string // the function
	end   int    // the last line of the function
}

// The function `find` returns all mutants of packages. The tests of these packages have no mutants.
func find(dirs []string) ([]*mutant, error) {
	f := &finder{}
	for _, dir := range dirs {
		names, err := sources(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			if err := f.source(dir, filepath.Base(name), string(text)); err != nil {
				return nil, err
			}
		}
	}
	return f.mutants, nil
}

// The function `sources` returns the files of a package, without the files of its tests.
func sources(dir string) ([]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") }), err
}

// The method `source` finds the mutants of one file.
func (f *finder) source(dir, file, text string) error {
	f.fset, f.text, f.dir, f.file = token.NewFileSet(), text, dir, file
	parsed, err := parser.ParseFile(f.fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range parsed.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			f.where = fn.Name.Name
			f.function(fn.Type, fn.Body)
		}
	}
	return nil
}

// The method `function` finds the mutants in the body of a function. For a return statement, it uses the result
// types of the innermost function.
func (f *finder) function(typ *ast.FuncType, body *ast.BlockStmt) {
	defer func(end int) { f.end = end }(f.end)
	f.end = f.fset.Position(body.Rbrace).Line
	var results []string
	if typ.Results != nil {
		for _, field := range typ.Results.List {
			name := ""
			if id, ok := field.Type.(*ast.Ident); ok {
				name = id.Name
			}
			for range max(len(field.Names), 1) {
				results = append(results, name)
			}
		}
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			f.function(n.Type, n.Body)
			return false
		case *ast.BlockStmt:
			f.statements(n.List, n == body)
		case *ast.CaseClause:
			f.statements(n.Body, false)
		case *ast.CommClause:
			f.statements(n.Body, false)
		case *ast.IfStmt:
			f.negate(n.Cond)
		case *ast.ForStmt:
			f.negate(n.Cond)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						f.negate(e)
					}
				}
			}
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.ReturnStmt:
			if len(n.Results) == len(results) { // if the numbers differ, the statement returns the results of one call
				for i, e := range n.Results {
					switch results[i] {
					case "bool":
						f.wrap(e, "return", "mutantNot(%d, ", ")")
					case "error":
						f.wrap(e, "return", "mutantError(%d, ", ")")
					}
				}
			}
		case *ast.GenDecl:
			return n.Tok == token.VAR // a constant must stay a constant
		}
		return true
	})
}

// The method `statements` adds mutants for a list of statements. Each mutant leaves out one statement. The last
// return of a function has no mutant: without this return, the function does not compile, or it does the same as
// before.
func (f *finder) statements(list []ast.Stmt, wholeBody bool) {
	for i, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || isBlank(s.Lhs) {
				continue
			}
		case *ast.BranchStmt:
			if s.Tok != token.BREAK && s.Tok != token.CONTINUE {
				continue
			}
		case *ast.ReturnStmt:
			if wholeBody && i == len(list)-1 {
				continue
			}
		default:
			continue
		}
		m := f.wrap(s, "omit", "if !mutantAt(%d) { ", " }")
		m.last = m.line
		if _, ok := s.(*ast.ReturnStmt); ok {
			m.end = f.end
		}
	}
}

func isBlank(list []ast.Expr) bool {
	return !slices.ContainsFunc(list, func(e ast.Expr) bool { id, ok := e.(*ast.Ident); return !ok || id.Name != "_" })
}

func (f *finder) negate(cond ast.Expr) {
	if cond != nil { // a loop may have no condition
		f.wrap(cond, "negate", "mutantNot(%d, ", ")")
	}
}

// The map `compared` has the helper of each comparison operator.
var compared = map[token.Token]string{
	token.LSS: "mutantLess(%d, ", token.LEQ: "mutantLessOrEqual(%d, ", token.GTR: "mutantGreater(%d, ", token.GEQ: "mutantGreaterOrEqual(%d, ",
}

func (f *finder) binary(e *ast.BinaryExpr) {
	helper := compared[e.Op]
	switch e.Op {
	case token.LAND, token.LOR:
		f.negate(e.X)
		f.negate(e.Y)
	case token.ADD, token.SUB:
		if lit, ok := e.Y.(*ast.BasicLit); ok && lit.Kind == token.INT {
			helper = map[token.Token]string{token.ADD: "mutantAdd(%d, ", token.SUB: "mutantSubtract(%d, "}[e.Op]
		}
	}
	if helper == "" {
		return
	}
	m := f.wrap(e, "bound", helper, ")")
	m.edits = append(m.edits, edit{offset: f.offset(e.OpPos), cut: len(e.Op.String()), text: ", "})
}

// The method `wrap` adds a mutant that puts one text before a node and another text after the node. The first text
// contains the mutant's number.
func (f *finder) wrap(n ast.Node, kind, before, after string) *mutant {
	at := f.fset.Position(n.Pos())
	number := len(f.mutants)
	m := &mutant{
		number: number, dir: f.dir, file: f.file, line: at.Line, column: at.Column, kind: kind, where: f.where,
		text: short(f.text[f.offset(n.Pos()):f.offset(n.End())]),
		edits: []edit{
			{offset: f.offset(n.Pos()), text: fmt.Sprintf(before, number)},
			{offset: f.offset(n.End()), text: after, ends: true},
		},
		last: f.fset.Position(n.End()).Line,
	}
	f.mutants = append(f.mutants, m)
	return m
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

// The function `short` returns a piece of code as one line, cut to a hundred bytes.
func short(code string) string {
	code = strings.Join(strings.Fields(code), " ")
	if len(code) > 100 {
		code = strings.ToValidUTF8(code[:100], "") + " ..."
	}
	return code
}
