package zsync_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
