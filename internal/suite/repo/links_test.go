package repo

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

func TestEveryLinkOfTheDocumentsLeadsToAFileAndAHeading(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("*.md")
	harness.Must(t, err)
	for _, pattern := range []string{"docs/*.md", "*/README.md"} {
		more, err := filepath.Glob(pattern)
		harness.Must(t, err)
		documents = append(documents, more...)
	}
	links := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		harness.Must(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, heading, _ := strings.Cut(m[1], "#")
			target := filepath.Join(filepath.Dir(document), file)
			if file == "" {
				target = document
			}
			data, err := os.ReadFile(target)
			if err != nil {
				t.Errorf("%s links to %s: %v", document, m[1], err)
			} else if heading != "" && !slices.Contains(anchors(string(data)), heading) {
				t.Errorf("%s links to %s: there is no such heading", document, m[1])
			}
		}
	}
	if links < 20 {
		t.Errorf("only %d links were found", links)
	}
}

// anchors returns the names by which GitHub links to the headings of a document.
func anchors(text string) (names []string) {
	fence, dropped := false, regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fence = !fence
		}
		title := strings.TrimLeft(line, "#")
		if fence || title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		name := strings.ToLower(strings.TrimSpace(title))
		name = dropped.ReplaceAllString(name, "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// Each error of the package, and each reason of a loss, is explained with the text that it prints.
func TestEveryErrorOfThePackageIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/errors.md")
	harness.Must(t, err)
	errs := map[string]error{
		"ErrLost": zsync.ErrLost, "ErrClosed": zsync.ErrClosed, "ErrNotLocked": zsync.ErrNotLocked, "ErrDeadlock": zsync.ErrDeadlock,
		"ErrMixed": zsync.ErrMixed, "ErrNegativeCounter": zsync.ErrNegativeCounter, "ErrPanicked": zsync.ErrPanicked,
		"ErrNoLeader": zsync.ErrNoLeader, "ErrNoCandidate": zsync.ErrNoCandidate, "ErrNoValue": zsync.ErrNoValue, "ErrTooLarge": zsync.ErrTooLarge,
		"ErrUnprotected": zsync.ErrUnprotected, "ErrInvalid": zsync.ErrInvalid, "ErrFull": zsync.ErrFull,
	}
	for name, err := range errs {
		if said := strings.TrimPrefix(err.Error(), "zsync: "); !strings.Contains(string(text), said) || !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/errors.md does not explain %s, %q", name, said)
		}
	}
	files, err := filepath.Glob("*.go")
	harness.Must(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		harness.Must(t, err)
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:var |\t)(Err[A-Z]\w+)\s+= `).FindAllStringSubmatch(string(source), -1) {
			if errs[m[1]] == nil {
				t.Errorf("%s has %s, which this test does not know", file, m[1])
			}
		}
	}
	for r := zsync.LossExpired; r <= zsync.LossGivenUp; r++ {
		word, err := r.MarshalText()
		harness.Must(t, err)
		if !strings.Contains(string(text), "\n| `"+string(word)+"` |") {
			t.Errorf("docs/errors.md does not explain a loss that is %s", word)
		}
	}
}

// Each decision has a number, a date, at most 120 words, and its line in the table on top.
func TestEachDecisionIsNumberedDatedShortAndInTheTable(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("docs/decisions.md")
	harness.Must(t, err)
	sections := strings.Split(string(data), "\n## ")
	for i, section := range sections[1:] {
		title, text, _ := strings.Cut(section, "\n")
		date := regexp.MustCompile(`^\n\*(\d{4}-\d{2}-\d{2})\.\*`).FindStringSubmatch(text)
		if !strings.HasPrefix(title, fmt.Sprintf("%d. ", i+1)) || date == nil {
			t.Errorf("%q: want a number, here %d, and then a line that begins with *its date.*", title, i+1)
			continue
		}
		_, name, _ := strings.Cut(title, " ")
		if row := fmt.Sprintf("\n| %d | [%s](#%s) | %s |\n", i+1, name, anchors("## " + title)[0], date[1]); !strings.Contains(sections[0], row) {
			t.Errorf("the table has no line %q", row)
		}
		if n := len(strings.Fields(text)) - 1; n > 120 {
			t.Errorf("%q has %d words, 120 are allowed", title, n)
		}
	}
	if len(sections) < 50 {
		t.Errorf("only %d decisions were found", len(sections)-1)
	}
}
