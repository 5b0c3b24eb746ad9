//go:build unix

package fence_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/fence"
	"github.com/zsync/zsync/zktest"
)

// envHolder names the variable with which the test's program is started again,
// as a holder: what it has to know, as JSON.
const envHolder = "FENCE_TEST_HOLDER"

// The targets are what holders write their token to.
type targets struct {
	Servers   string
	Databases []struct {
		Dialect     fence.Dialect
		Driver, DSN string
	}
	URL  string
	File string
	Bare string // a file without a fence

	dbs []*sql.DB
}

const lockPath = "/account"

func (x *targets) open() error {
	for _, d := range x.Databases {
		db, err := sql.Open(d.Driver, d.DSN)
		if err != nil {
			return err
		}
		x.dbs = append(x.dbs, db)
	}
	return nil
}

// write writes a token to each target, and returns how that went, by target.
func (x *targets) write(ctx context.Context, token int64) map[string]error {
	text := []byte(strconv.FormatInt(token, 10))
	results := map[string]error{
		"http": put(ctx, x.URL, token),
		"file": fence.WriteFile(ctx, x.File, text, 0o600, token),
		"bare": os.WriteFile(x.Bare, text, 0o600),
	}
	for i, d := range x.Databases {
		results[d.Driver] = fence.NewTable(d.Dialect, "fences").Do(ctx, x.dbs[i], "account", token, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE account SET writer = %d", token))
			return err
		})
	}
	return results
}

// put sends a token to the service.
func put(ctx context.Context, url string, token int64) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, nil)
	if err != nil {
		return err
	}
	fence.SetToken(r.Header, token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode == http.StatusPreconditionFailed:
		return fence.ErrStale
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

// hold is the holder: for each line of its input it takes the lock, writes, and
// says so; then it writes once more at the next line, without another look at
// the lock, as somebody does who has looked just before a pause.
func hold(args string) error {
	ctx := context.Background()
	x := new(targets)
	if err := errors.Join(json.Unmarshal([]byte(args), x), x.open()); err != nil {
		return err
	}
	s, err := zsync.Connect(ctx, x.Servers, zsync.WithOwner("holder"), zsync.WithSessionTimeout(holderTimeout),
		// Its connection breaks in each round, which is no reason to dial more slowly here.
		zsync.WithRetry(zsync.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
	if err != nil {
		return err
	}
	defer s.Close()
	m := zsync.NewMutex(s, lockPath)
	said := make(chan string)
	go func() {
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			said <- in.Text()
		}
		os.Exit(1) // with the test, whatever is under way
	}()
	for range said {
		token, err := writeAsHolder(ctx, m, x)
		if err != nil {
			return err
		}
		fmt.Println("holding", token)
		<-said
		verdicts := make(map[string]string)
		for target, err := range x.write(ctx, token) {
			switch {
			case err == nil:
				verdicts[target] = "written"
			case errors.Is(err, fence.ErrStale):
				verdicts[target] = "stale"
			default:
				verdicts[target] = err.Error()
			}
		}
		if err := m.Unlock(); err != nil && !errors.Is(err, zsync.ErrLost) {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
			return err
		}
	}
	return nil
}

// writeAsHolder takes the lock and writes. Its session may be lost at any time; then
// it begins again.
func writeAsHolder(ctx context.Context, m *zsync.Mutex, x *targets) (int64, error) {
	for {
		if err := m.Lock(ctx); err != nil {
			return 0, err
		}
		token, err := m.Token(ctx)
		if errors.Is(err, zsync.ErrLost) {
			m.Unlock()
			continue
		}
		if err != nil {
			return 0, err
		}
		for target, err := range x.write(ctx, token) {
			if err != nil {
				return 0, fmt.Errorf("%s: %w", target, err)
			}
		}
		return token, nil
	}
}

// holderTimeout is the session timeout of the holder, and of its successor. It is
// longer than a busy machine stands still: only who is stopped here is taken for dead.
const holderTimeout = time.Minute

// A holder is stopped, superseded and continued: its late write must be
// refused, each time, by everything that has a fence. What has none takes it,
// which shows that the write was late indeed.
func TestTheLateWriteOfAHolderThatWasStoppedIsRefused(t *testing.T) {
	rounds := 15
	if os.Getenv("ZSYNC_TEST_LONG") != "" {
		rounds = 1000
	}
	srv := zktest.Start(t)
	x := newTargets(t, srv.Addr())
	contents := x.contents(t)
	h := startHolder(t, x)
	s, err := zsync.Connect(t.Context(), x.Servers, zsync.WithSessionTimeout(holderTimeout), zsync.WithOwner("successor"))
	must(t, err)
	defer s.Close()
	m := zsync.NewMutex(s, lockPath)

	refused := make(map[string]int)
	for round := range rounds {
		h.say("hold")
		var old int64
		if _, err := fmt.Sscanf(h.answer(), "holding %d", &old); err != nil {
			t.Fatal(err)
		}
		h.stop()
		h.say("write")
		for _, id := range srv.Sessions() {
			if id != s.ID() {
				srv.Expire(id) // as when it has said nothing for its timeout
			}
		}
		must(t, m.Lock(t.Context()))
		token, err := m.Token(t.Context())
		must(t, err)
		if token <= old {
			t.Fatalf("round %d: the successor's token is %d, the holder's %d", round, token, old)
		}
		for target, err := range x.write(t.Context(), token) {
			if err != nil {
				t.Fatalf("round %d: the successor writes to %s: %v", round, target, err)
			}
		}
		h.resume()
		var verdicts map[string]string
		must(t, json.Unmarshal([]byte(h.answer()), &verdicts))
		for target, verdict := range verdicts {
			want, wantStays := "stale", token
			if target == "bare" {
				want, wantStays = "written", old
			}
			if verdict != want {
				t.Fatalf("round %d: the late write to %s: got %q, want %q", round, target, verdict, want)
			}
			if stays := contents[target](); stays != wantStays {
				t.Fatalf("round %d: %s has token %d, want %d", round, target, stays, wantStays)
			}
			refused[target]++
		}
		must(t, m.Unlock())
	}
	delete(refused, "bare")
	if len(refused) < 3 {
		t.Errorf("only %v were tried", refused)
	}
	for target, n := range refused {
		if n != rounds {
			t.Errorf("%s refused %d of %d", target, n, rounds)
		}
	}
	t.Logf("refused in %d rounds: %v", rounds, refused)
}

// newTargets makes what is written to, with each kind of database that is
// installed.
func newTargets(t *testing.T, servers string) *targets {
	t.Helper()
	dir := t.TempDir()
	x := &targets{Servers: servers, File: filepath.Join(dir, "file"), Bare: filepath.Join(dir, "bare")}
	for name, empty := range kinds {
		// In a test of its own: one that is not installed skips only that.
		t.Run("with "+name, func(sub *testing.T) {
			d := empty(sub)
			if name == "SQLite" {
				d.dsn = "file:" + filepath.Join(dir, "db") + patient
			}
			db, fences := d.open(t), fence.NewTable(d.dialect, "fences")
			must(sub, fences.Create(sub.Context(), db))
			for _, s := range []string{"CREATE TABLE account (writer BIGINT)", "INSERT INTO account VALUES (0)"} {
				_, err := db.ExecContext(sub.Context(), s)
				must(sub, err)
			}
			x.Databases = append(x.Databases, struct {
				Dialect     fence.Dialect
				Driver, DSN string
			}{d.dialect, d.driver, d.dsn})
			x.dbs = append(x.dbs, db)
		})
	}
	return x
}

// contents starts the service, and returns for each target what reads the token
// that was last written to it.
func (x *targets) contents(t *testing.T) map[string]func() int64 {
	var served atomic.Int64
	service := httptest.NewServer(fence.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, err := fence.Token(r.Header); err == nil {
			served.Store(token)
		}
	}), fence.Dir(t.TempDir()), nil))
	t.Cleanup(service.Close)
	x.URL = service.URL + "/account"
	inFile := func(name string) func() int64 {
		return func() int64 {
			data, err := os.ReadFile(name)
			must(t, err)
			return numbers(t, strings.Fields(string(data)))[0]
		}
	}
	all := map[string]func() int64{"http": served.Load, "file": inFile(x.File), "bare": inFile(x.Bare)}
	for i, d := range x.Databases {
		all[d.Driver] = func() (token int64) {
			must(t, x.dbs[i].QueryRowContext(t.Context(), "SELECT writer FROM account").Scan(&token))
			return token
		}
	}
	return all
}

// A holder is a child process, from its parent's side.
type holder struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

func startHolder(t *testing.T, x *targets) *holder {
	t.Helper()
	args, err := json.Marshal(x)
	must(t, err)
	h := &holder{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string)}
	h.cmd.Env = append(os.Environ(), envHolder+"="+string(args))
	var errs strings.Builder
	h.cmd.Stderr = &errs
	h.in, err = h.cmd.StdinPipe()
	must(t, err)
	out, err := h.cmd.StdoutPipe()
	must(t, err)
	must(t, h.cmd.Start())
	go func() {
		defer close(h.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			h.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		h.in.Close()
		h.cmd.Process.Kill() // it may be stopped
		for range h.lines {
		}
		h.cmd.Wait()
		if t.Failed() {
			t.Logf("the holder: %s", errs.String())
		}
	})
	return h
}

func (h *holder) say(line string) {
	h.t.Helper()
	_, err := io.WriteString(h.in, line+"\n")
	must(h.t, err)
}

func (h *holder) answer() string {
	h.t.Helper()
	select {
	case line, ok := <-h.lines:
		if !ok {
			h.t.Fatal("the holder has ended")
		}
		return line
	case <-time.After(3 * time.Minute):
		h.t.Fatal("the holder does not answer")
	}
	return ""
}

// stop returns once the holder stands still.
func (h *holder) stop() {
	h.t.Helper()
	must(h.t, h.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(h.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	must(h.t, err)
	if !status.Stopped() {
		h.t.Fatalf("the holder is not stopped: %v", status)
	}
}

func (h *holder) resume() {
	h.t.Helper()
	must(h.t, h.cmd.Process.Signal(syscall.SIGCONT))
}
