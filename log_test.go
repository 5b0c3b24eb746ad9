package zsync_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// logKeys are the keys of all that is logged.
var logKeys = []string{
	"path", "op", "session", "reason", "err",
	"addr", "at", "since", "attempt", "batches", "id", "key", "tasks", "element", "elements", "owner", "timeout", "version", "buried", "holds", "until", "lasted",
}

func TestLogKeysAreFixed(t *testing.T) {
	seen := 0
	for _, dir := range []string{".", "internal/session", "internal/line", "internal/queue"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		must(t, err)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, name, nil, 0)
			must(t, err)
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

func TestALossIsAWarningAndAContenderIsAGroup(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var out traceBuffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		s := open(t, srv, zsync.WithLogger(log), zsync.WithOwner("me"))
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		cs, err := m.Contenders(t.Context())
		must(t, err)
		log.Info("who", "holder", cs[0])
		srv.Expire(s.ID())
		<-m.Lost()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, want := range []string{
			"holder.owner=me", "holder.session=0x", "holder.mode=exclusive", "holder.state=holds", "holder.since=", "holder.node=_c_",
			`level=WARN msg="zsync: lost" op=lock path=/m session=0x`, `reason="lost: the session has expired"`,
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log does not say %s:\n%s", want, out.String())
			}
		}
	})
}

// Unless WithLogger gives another logger, the session logs failures to slog.Default, and nothing else. Of an
// outage, it logs the beginning and the end, and a reminder each hour.
func TestFailuresAreLoggedByDefaultAndAnOutageOnceAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var out bytes.Buffer
		old := slog.Default()
		defer slog.SetDefault(old)
		slog.SetDefault(slog.New(slog.NewTextHandler(locked{&mu, &out}, nil)))
		said := func() []string {
			mu.Lock()
			defer mu.Unlock()
			lines := slices.Collect(strings.Lines(out.String()))
			out.Reset()
			return lines
		}
		s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(testTimeout))
		must(t, err)
		defer s.Close()
		m := zsync.NewMutex(s, "/m")
		must(t, m.Lock(t.Context()))
		srv.Disconnect(s.ID())
		time.Sleep(testTimeout)
		if got := said(); len(got) > 0 {
			t.Errorf("a reconnect is said: %q", got)
		}
		srv.Stop()
		time.Sleep(5*time.Hour - time.Minute)
		var outage, loss int
		for _, line := range said() {
			switch {
			case strings.Contains(line, "no connection to any server") && strings.Contains(line, srv.Addr()+": ") && strings.Contains(line, "level=WARN"):
				outage++
			case strings.Contains(line, "lost"):
				loss++
			default:
				t.Errorf("unexpected: %s", line)
			}
		}
		if outage != 5 || loss == 0 {
			t.Errorf("in five hours without servers, %d lines of the outage and %d of the loss; want 5", outage, loss)
		}
		srv.Restart()
		time.Sleep(time.Hour)
		if got := said(); len(got) != 1 || !strings.Contains(got[0], "zsync: connected again") {
			t.Errorf("of the end is said: %q", got)
		}
	})
}

// locked is a writer under a lock.
type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
