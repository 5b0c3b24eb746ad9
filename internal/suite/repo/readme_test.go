package repo

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// Each block of Go in these files compiles: as the body of a function that has
// ctx and s, or as it is if it declares a function. Each is run, on a server of its
// own, and ends without an error or, if it goes on for as long as its context does,
// with that; but for those that want a database. A whole program is compiled and not run: as
// a package that the snippets import, because another binary costs a second of the linker.
func TestEverySnippetOfTheDocumentsCompilesAndRuns(t *testing.T) {
	t.Parallel()
	var code, runs, imports strings.Builder
	sources := make(map[string]string) // by the file below internal/snippets that they stand for
	code.WriteString(`
import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/fence"
	"github.com/zsync/zsync/zktest"
)

var (
	_ = fmt.Sprint
	_ = zk.WorldACL
	_ = errors.Is
	_ = time.Second
	_ *testing.T
	_ = zktest.Start
)

func work(context.Context) error { return nil }
func condition() bool            { return true }

var db *sql.DB
var _ = fence.NewTable
var servers string // of the snippet that connects

func run(t *testing.T, name string, snippet func(ctx context.Context, s *zsync.Session) error) {
	t.Run(name, func(t *testing.T) {
		srv := zktest.Start(t, zktest.WithSessionTimeouts(time.Minute, time.Hour)) // none is lost though the machine stands still
		s, err := zsync.Connect(t.Context(), srv.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		servers = srv.Addr()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := snippet(ctx, s); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}
`)
	blocks := 0
	documents, err := filepath.Glob("docs/*.md")
	harness.Must(t, err)
	for _, file := range append(documents, "README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatchIndex(string(text), -1) {
			block := string(text[m[2]:m[3]])
			line := 1 + strings.Count(string(text[:m[2]]), "\n")
			if strings.HasPrefix(block, "package main\n") {
				if strings.Count(block, "\nfunc main() {") != 1 {
					t.Errorf("%s:%d: a program without main", file, line)
				}
				name := fmt.Sprintf("program%d", len(sources)+1)
				sources[name+"/main.go"] = strings.NewReplacer("package main\n", "package "+name+"\n", "\nfunc main() {", "\nfunc Main() {").Replace(block)
				fmt.Fprintf(&imports, "import _ %q\n", module+"/internal/snippets/"+name)
				continue
			}
			blocks++
			if strings.HasPrefix(block, "func ") {
				fmt.Fprintf(&code, "\n//line %s:%d\n%s", file, line, block)
				continue
			}
			end := "\treturn nil\n"
			if regexp.MustCompile(`(?m)^(err|s, err|.*, err) :?= `).MatchString(block) {
				end = "\treturn err\n"
			}
			s := "s *zsync.Session"
			if strings.HasPrefix(block, "s, err :=") {
				s = "_ *zsync.Session"
			}
			block = strings.ReplaceAll(block, `"zk1:2181,zk2:2181,zk3:2181"`, "servers")
			fmt.Fprintf(&code, "\nfunc snippet%d(ctx context.Context, %s) error {\n//line %s:%d\n%s%s}\n", blocks, s, file, line, block, end)
			if !strings.Contains(block, "db,") {
				fmt.Fprintf(&runs, "\trun(t, %q, snippet%d)\n", fmt.Sprintf("%s:%d", file, line), blocks)
			}
		}
	}
	if blocks < 15 {
		t.Errorf("only %d snippets were found", blocks)
	}
	fmt.Fprintf(&code, "\nfunc TestSnippets(t *testing.T) {\n%s}\n", &runs)
	dir := t.TempDir()
	binary := filepath.Join(dir, "snippets.test")
	overlay := filepath.Join(dir, "overlay.json")
	root, err := os.Getwd()
	harness.Must(t, err)
	sources["snippets_test.go"] = "package snippets\n\n" + imports.String() + code.String()
	replaced := make(map[string]string)
	for name, source := range sources {
		file := filepath.Join(dir, fmt.Sprint(len(replaced), ".go"))
		replaced[filepath.Join(root, "internal/snippets", name)] = file
		harness.Must(t, os.WriteFile(file, []byte(source), 0o600))
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": replaced})
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(overlay, replace, 0o600))
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-o", binary, "-overlay", overlay, "./internal/snippets").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(binary, "-test.v").CombinedOutput()
	if n := strings.Count(string(out), "--- PASS: TestSnippets/"); err != nil || n < blocks-3 { // all but the one with a database and the test
		t.Errorf("%d of %d were run: %v\n%s", n, blocks, err, out)
	}
}

// compileProgram compiles the source of a program in dir, and returns the binary.
func compileProgram(t *testing.T, dir, source string) (program string) {
	t.Helper()
	file, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	root, err := os.Getwd()
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(file, []byte(source), 0o600))
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "internal/snippets/program/main.go"): file}})
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(overlay, replace, 0o600))
	program = filepath.Join(dir, "program")
	if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", program, "-overlay", overlay, "./internal/snippets/program").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// The README shows what its first program prints in two runs on one server.
func TestTheFirstProgramOfTheReadmePrintsWhatTheReadmeShows(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	harness.Must(t, err)
	m := regexp.MustCompile("(?s)```go\n(package main\n.*?)```.*?    \\$ go run \\.; go run \\.\n((?:    [^$\n]*\n)*)").FindSubmatch(text)
	if m == nil {
		t.Fatal("the README has no program with the output of two runs")
	}
	program := compileProgram(t, t.TempDir(), string(m[1]))
	srv := zktest.Start(t)
	var printed strings.Builder
	for range 2 {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+srv.Addr())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		printed.Write(out)
	}
	if shown := strings.ReplaceAll(string(m[2]), "    ", ""); printed.String() != shown {
		t.Errorf("the program prints\n%s\nand the README shows\n%s", printed.String(), shown)
	}
}

// A module that is empty but for its imports builds after the commands of the README, with
// a checkout beside it.
func TestTheCommandsOfTheReadmeMakeAModuleUseACheckout(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	harness.Must(t, err)
	commands := regexp.MustCompile(`(?m)^    (go mod .*)$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) != 2 {
		t.Fatalf("the README has %d commands", len(commands))
	}
	root, err := os.Getwd()
	harness.Must(t, err)
	dir := t.TempDir()
	module := filepath.Join(dir, "module")
	harness.Must(t, os.Mkdir(module, 0o755))
	harness.Must(t, os.Symlink(root, filepath.Join(dir, "zsync")))
	harness.Must(t, os.WriteFile(filepath.Join(module, "main.go"), []byte(`package main

import (
	_ "github.com/zsync/zsync"
	_ "github.com/zsync/zsync/fence"
	_ "github.com/zsync/zsync/otel"
)

func main() {}
`), 0o600))
	run := func(command string) {
		args := strings.Fields(command)
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOPROXY=off", "GONOSUMDB=*") // the workspace has downloaded all that is needed
		if out, err := cmd.CombinedOutput(); err != nil {
			disabled := regexp.MustCompile(`(\S+): module lookup disabled by GOPROXY=off`).FindSubmatch(out)
			if disabled != nil && !strings.HasPrefix(string(disabled[1]), "github.com/zsync/") {
				t.Skipf("a module that fence or otel requires was not downloaded, so this is not shown: the lines of README work in an empty module: %s", out)
			}
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	run("go mod init example.com/module")
	for _, m := range commands {
		run(m[1])
	}
	run("go list -deps .") // fails if an import has no module
	if os.Getenv("CI") != "" {
		run("go build -o " + os.DevNull + " .") // compiles zsync anew, as this folder has a new name each time
	}
}

// The table of counterparts has each type of sync, sync/atomic and golang.org/x/sync, as
// this Go and the module have them, with what zsync has or a sentence why it has none.
func TestTheDocumentsNameACounterpartOfEveryTypeOfSync(t *testing.T) {
	text, err := os.ReadFile("docs/interop.md")
	harness.Must(t, err)
	_, table, ok := strings.Cut(string(text), "## Counterparts of")
	if !ok {
		t.Fatal("the table is not there")
	}
	_, table, _ = strings.Cut(table, "\n|---")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := make(map[string][]string) // by type: its row
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		if len(cells) != 3 {
			continue
		}
		pkg := ""
		for _, m := range regexp.MustCompile("`(?:([a-z/]+)\\.)?([A-Za-z0-9]+)[^`]*`").FindAllStringSubmatch(cells[0], -1) {
			if m[1] != "" {
				pkg = m[1] // the rest of the row is of the same package
			}
			rows[pkg+"."+m[2]] = cells
		}
	}
	module := strings.TrimSpace(output(t, "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sync"))
	goroot := filepath.Join(strings.TrimSpace(output(t, "go", "env", "GOROOT")), "src")
	seen := 0
	for pkg, dir := range map[string]string{
		"sync": filepath.Join(goroot, "sync"), "atomic": filepath.Join(goroot, "sync", "atomic"),
		"x/sync/errgroup": filepath.Join(module, "errgroup"), "x/sync/semaphore": filepath.Join(module, "semaphore"),
		"x/sync/singleflight": filepath.Join(module, "singleflight"), "x/sync/syncmap": filepath.Join(module, "syncmap"),
	} {
		for _, name := range typesIn(t, dir) {
			seen++
			switch cells := rows[pkg+"."+name]; {
			case cells == nil:
				t.Errorf("%s.%s is not in the table", pkg, name)
			case strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[1]) == "none" && strings.TrimSpace(cells[2]) == "":
				t.Errorf("%s.%s has neither a counterpart nor a reason", pkg, name)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d types were found", seen)
	}
	entries, err := os.ReadDir(module)
	harness.Must(t, err)
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"errgroup", "semaphore", "singleflight", "syncmap"}, e.Name()) && e.Name()[0] != '.' {
			t.Errorf("x/sync/%s is a package that this test does not know", e.Name())
		}
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	harness.Must(t, err)
	return string(out)
}

// typesIn returns the exported types of the package in a directory.
func typesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	harness.Must(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		harness.Must(t, err)
		for _, d := range parsed.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.TYPE {
				continue
			}
			for _, spec := range decl.Specs {
				if name := spec.(*ast.TypeSpec).Name.Name; ast.IsExported(name) && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}
