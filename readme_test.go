package zsync_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each block of Go in these files compiles: as the body of a function that has
// ctx and s, or as it is if it declares a function.
func TestEverySnippetOfTheDocumentsCompiles(t *testing.T) {
	var code strings.Builder
	code.WriteString(`package snippets

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/fence"
	"github.com/zsync/zsync/zktest"
)

var (
	_ = fmt.Sprint
	_ = errors.Is
	_ = time.Second
	_ *testing.T
	_ = zktest.Start
)

func work(context.Context) error { return nil }
func condition() bool            { return true }

var db *sql.DB
var _ = fence.NewTable
`)
	blocks := 0
	for _, file := range []string{"README.md", "docs/migrating.md", "docs/operations.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatchIndex(string(text), -1) {
			block := string(text[m[2]:m[3]])
			line := 1 + strings.Count(string(text[:m[2]]), "\n")
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
			fmt.Fprintf(&code, "\nfunc _(ctx context.Context, %s) error {\n//line %s:%d\n%s%s}\n", s, file, line, block, end)
		}
	}
	if blocks < 15 {
		t.Errorf("only %d snippets were found", blocks)
	}
	dir := t.TempDir()
	source, overlay := filepath.Join(dir, "snippets.go"), filepath.Join(dir, "overlay.json")
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "internal/snippets/snippets.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	for file, data := range map[string][]byte{source: []byte(code.String()), overlay: replace} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-overlay", overlay, "./internal/snippets").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
