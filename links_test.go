package zsync_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync"
)

func TestEveryLinkOfTheDocumentsLeadsToAFileAndAHeading(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("*.md")
	must(t, err)
	for _, pattern := range []string{"docs/*.md", "*/README.md"} {
		more, err := filepath.Glob(pattern)
		must(t, err)
		documents = append(documents, more...)
	}
	links := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		must(t, err)
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
	fence := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fence = !fence
		}
		title := strings.TrimLeft(line, "#")
		if fence || title == line || !strings.HasPrefix(title, " ") {
			continue
		}
		name := strings.ToLower(strings.TrimSpace(title))
		name = regexp.MustCompile("[^\\p{L}\\p{N} _-]").ReplaceAllString(name, "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// Each error of the package, and each reason of a loss, is explained with the text that it prints.
func TestEveryErrorOfThePackageIsExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/errors.md")
	must(t, err)
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
	must(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		must(t, err)
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
		must(t, err)
		if !strings.Contains(string(text), "\n| `"+string(word)+"` |") {
			t.Errorf("docs/errors.md does not explain a loss that is %s", word)
		}
	}
}
