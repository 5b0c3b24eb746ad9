package need

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A witness is a test that takes note of how it ends.
type witness struct {
	testing.TB
	skipped, failed string
	args            []any
}

func (w *witness) Helper()      {}
func (w *witness) Name() string { return "TestCommandDiesWithZsync/by_SIGKILL" }

func (w *witness) Skipf(format string, args ...any)  { w.skipped, w.args = format, args; panic(w) }
func (w *witness) Fatalf(format string, args ...any) { w.failed = format; panic(w) }

func endOf(f func(tb testing.TB)) (w *witness) {
	w = new(witness)
	defer func() { recover() }()
	f(w)
	return w
}

func TestATestIsSkippedForWantOfAProgramUnlessThatIsKnownToBeInstalled(t *testing.T) {
	const none = "zsync-has-no-such-program"
	ask := func(tb testing.TB) { Command(tb, none) }
	t.Setenv(Env, "tmux "+none+"-either")
	if w := endOf(ask); w.skipped == "" || w.failed != "" {
		t.Errorf("skipped %q, failed %q", w.skipped, w.failed)
	}
	t.Setenv(Env, "tmux "+none)
	if w := endOf(ask); w.skipped != "" || w.failed == "" {
		t.Errorf("it is known to be installed: skipped %q, failed %q", w.skipped, w.failed)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got := Command(t, self); got != self {
		t.Errorf("%s is at %s", self, got)
	}
}

func TestATestIsSkippedForWantOfAVariableAndSaysWhich(t *testing.T) {
	ask := func(tb testing.TB) { Variable(tb, "ZSYNC_TEST_NEED") }
	t.Setenv("ZSYNC_TEST_NEED", "")
	if w := endOf(ask); !strings.Contains(fmt.Sprintf(w.skipped, w.args...), "ZSYNC_TEST_NEED is not set, so this is not shown: Command dies with zsync (by SIGKILL)") {
		t.Errorf("skipped %q %v", w.skipped, w.args)
	}
	t.Setenv("ZSYNC_TEST_NEED", "1")
	if w := endOf(ask); w.skipped != "" || Variable(t, "ZSYNC_TEST_NEED") != "1" {
		t.Errorf("skipped %q %v", w.skipped, w.args)
	}
}

func TestASkipSaysInASentenceWhatIsNotShown(t *testing.T) {
	for name, want := range map[string]string{
		"TestCommandDiesWithZsync/by_SIGKILL": "Command dies with zsync (by SIGKILL)",
		"TestAStoreRefusesEveryToken":         "A store refuses every token",
		"TestLockIsHeldByOneAtATime":          "Lock is held by one at a time",
		"TestStatusInJSONIsComplete":          "Status in JSON is complete",
	} {
		if got := sentence(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if strings.Contains(sentence("TestTLS"), " ") {
		t.Error(sentence("TestTLS"))
	}
}
