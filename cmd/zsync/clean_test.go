//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/zktest"
)

const (
	aContender = "_c_48e50edc-09ec-4785-b44e-13769185aea0"
	aReceipt   = aContender + "-receipt"
)

// stranger returns a connection of another library's client.
func stranger(t *testing.T, srv *zktest.Server) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Minute, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// A name proves nothing: whoever may choose paths may choose one that zsync's own znodes have.
func TestDoctorDeletesWhatZsyncHasMadeAndLeavesAllThatIsOnlyCalledSo(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		s, conn, ctx := connect(t, srv), stranger(t, srv), t.Context()
		raw := zsync.WithCodec(zsync.Raw)
		done := func(context.Context) error { return nil }
		goes := map[string]string{ // and its data
			"/gone-live": marks.Dir, "/gone-ids": marks.Dir, "/gone-consumers": marks.Dir,
			"/gone-receipts": marks.Dir, "/gone-__lock__": marks.Dir,
			"/v-receipts/" + aReceipt: "", "/w-receipts/" + aReceipt: "", "/cond/" + aReceipt: "",
		}
		stays := map[string]string{ // made by other programs
			"/empty-live": "", "/text-consumers": "text", "/map-ids": marks.Map, "/five-live": string(marks.Mark([]byte("5"))),
			"/kazoo-__lock__": "", "/kazoo-__resized__": "", "/young-live": marks.Dir, "/young-receipts/" + aReceipt: "",
			"/v-receipts/" + aContender[:len(aContender)-1] + "1-receipt": "written by another",
			"/v-receipts/my-receipt":         "",
			"/unmarked-receipts/" + aReceipt: "", "/unmarked/" + aReceipt: "",
			"/other/" + aContender + "-lock-0000000000": "", "/other2/" + aContender + "-lock-0000000000": "data",
			"/rw/" + aContender + "-__READ__0000000000": "", "/rw/" + aContender + "-__WRIT__0000000001": "data",
			"/held/job-lock-0000000007": "text", "/full-consumers/a": marks.Dir,
		}
		dirs := map[string]string{"/v-receipts": marks.Dir, "/w-receipts": marks.Dir, "/young-receipts": marks.Dir, "/cond": marks.Dir, "/full-consumers": marks.Dir, "/unmarked-receipts": "", "/unmarked": "", "/other": "", "/other2": "", "/rw": ""}
		create := func(paths map[string]string) {
			t.Helper()
			for _, path := range slices.Sorted(maps.Keys(paths)) {
				if _, err := conn.Create(path, []byte(paths[path]), 0, zk.WorldACL(zk.PermAll)); err != nil {
					t.Fatal(path, err)
				}
			}
		}
		old := maps.Clone(stays)
		young := map[string]string{}
		maps.DeleteFunc(old, func(path, data string) bool {
			is := strings.HasPrefix(path, "/young") || strings.HasPrefix(path, "/held")
			if is {
				young[path] = data
			}
			return is
		})
		create(dirs)
		create(goes)
		for path, data := range map[string]string{"/w-receipts/": "0 barred", "/cond/": "0"} { // as transactions leave them
			if _, err := conn.Set(path+aReceipt, []byte(data), 0); err != nil {
				t.Fatal(err)
			}
		}
		create(old)
		// Live ones of zsync's.
		once := zsync.NewOnce(s, "/x-receipts")
		m := zsync.NewMap[string](s, "/m-receipts", raw)
		number := zsync.NewInt64(s, "/number-dead")
		if err := errors.Join(
			zsync.NewValue[string](s, "/v").Store(ctx, "value"), zsync.NewValue[string](s, "/w").Store(ctx, "value"), zsync.NewValue[string](s, "/x").Store(ctx, "value"),
			once.Do(ctx, done), m.Store(ctx, aReceipt, ""), m.Store(ctx, "other", "value"), zsync.NewMap[string](s, "/m").Store(ctx, "a", "b"),
			zsync.NewBarrier(s, "/gate-ids").Close(ctx), zsync.NewBarrier(s, "/gate-consumers").Close(ctx),
			zsync.NewValue[string](s, "/value-live").Store(ctx, "v"), zsync.NewValue[string](s, "/value-consumers", raw).Store(ctx, ""), number.Store(ctx, 7),
		); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		lock := zsync.NewMutex(s, "/held")
		if err := errors.Join(lock.Lock(ctx), zsync.NewMutex(s, "/alone-live").Lock(ctx)); err != nil {
			t.Fatal(err)
		}
		create(young)
		was := paths(t, conn, "/")

		r := start(t, srv.Addr(), "", "doctor", "--clean", "--yes", "--admin-port", "0")
		if r.wait(); !strings.Contains(r.stdout.String(), "looked at: ") {
			t.Fatalf("%s%s", &r.stdout, &r.stderr)
		}
		is := paths(t, conn, "/")
		for path := range goes {
			if slices.Contains(is, path) || strings.Count(r.stdout.String(), "deleted "+path+"\n") != 1 {
				t.Errorf("%s is there still, or not said to be deleted", path)
			}
		}
		for _, path := range was {
			if _, ok := goes[path]; !ok && !slices.Contains(is, path) {
				t.Errorf("%s is deleted", path)
			}
		}
		for _, want := range []string{
			"/empty-live: its data are not the mark of zsync's directories", "/text-consumers: its data are not", "/value-live: its data are not", "/gate-ids: its data are not",
			"/map-ids: its data are not", "/five-live: its data are not", "/kazoo-__lock__: its data are not", "/kazoo-__resized__: its data are not",
			"/young-live: it was written less than 24h0m0s ago", "/full-consumers: it has children", "/alone-live: it has children",
			"/young-receipts/" + aReceipt + ": it was written less than", "1 znode in /unmarked-receipts, which is no directory of zsync's: its data have no mark",
			"/v-receipts/" + aContender[:len(aContender)-1] + "1-receipt: its data are not those of a receipt", "1 znode in /m-receipts, which is no directory of zsync's",
			"/other/" + aContender + "-lock-0000000000: another program made it", "/other2/" + aContender + "-lock-0000000000: another program made it",
			"/rw/" + aContender + "-__READ__0000000000: another", "/rw/" + aContender + "-__WRIT__0000000001: another",
		} {
			if strings.Count(r.stdout.String(), "left alone: "+want) != 1 {
				t.Errorf("does not say once that it leaves %s", want)
			}
		}
		if err := errors.Join(once.Do(ctx, func(context.Context) error { return errors.New("it runs again") }), lock.Unlock()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("\n%s", &r.stdout)
		}
	})
}

// paths returns all znodes below at.
func paths(t *testing.T, conn *zk.Conn, at string) (all []string) {
	t.Helper()
	names, _, err := conn.Children(at)
	if err != nil {
		t.Fatal(at, err)
	}
	for _, name := range names {
		child := strings.TrimSuffix(at, "/") + "/" + name
		all = append(append(all, child), paths(t, conn, child)...)
	}
	return all
}

func TestDoctorDeletesOnlyWhatIsStillAsShown(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		conn := stranger(t, srv)
		for _, path := range []string{"/gone-consumers", "/gone-live", "/filled-live"} {
			if _, err := conn.Create(path, []byte(marks.Dir), 0, zk.WorldACL(zk.PermAll)); err != nil {
				t.Fatal(path, err)
			}
		}
		exists := func(path string) bool {
			ok, _, err := conn.Exists(path)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		r := start(t, srv.Addr(), "n\n", "doctor", "--clean", "--older", "0", "--admin-port", "0")
		if r.wait(); !strings.Contains(r.stdout.String(), "delete 3 znodes? [y/N] nothing is deleted\n") || !exists("/gone-live") {
			t.Errorf("without a yes:\n%s", &r.stdout)
		}
		in, out := io.Pipe()
		r = startReading(t, srv.Addr(), in, "doctor", "--clean", "--older", "0", "--admin-port", "0")
		t.Cleanup(func() { out.Close() }) // what reads it is waited for
		r.awaitOutput("delete 3 znodes? [y/N] ")
		_, written := conn.Set("/gone-consumers", []byte("in use again"), -1)
		_, filled := conn.Create("/filled-live/child", nil, 0, zk.WorldACL(zk.PermAll))
		if err := errors.Join(written, filled); err != nil {
			t.Fatal(err)
		}
		io.WriteString(out, "y\n")
		out.Close()
		r.wait()
		for _, want := range []string{"deleted /gone-live\n", "left alone, as it has changed: /gone-consumers\n", "left alone, as it has changed: /filled-live\n"} {
			if !strings.Contains(r.stdout.String(), want) {
				t.Errorf("no %q in\n%s", want, &r.stdout)
			}
		}
		if exists("/gone-live") || !exists("/gone-consumers") || !exists("/filled-live/child") {
			t.Error("it has deleted something that was not as shown")
		}
		start(t, srv.Addr(), "", "doctor", "--yes").want(exitUsage, "")
	})
}

func TestDoctorThatAsksEndsWithASignalAndItsTimeout(t *testing.T) {
	inMemory(t, func(t *testing.T, srv *zktest.Server) {
		if _, err := stranger(t, srv).Create("/gone-live", []byte(marks.Dir), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		in, out := io.Pipe() // nobody answers
		t.Cleanup(func() { out.Close(); in.Close() })
		r := startReading(t, srv.Addr(), in, "doctor", "--clean", "--admin-port", "0")
		await(t, func() bool { return strings.Contains(r.stdout.String(), "[y/N]") }, "the question")
		r.signal(os.Interrupt)
		if got := r.wait(); got != 128+int(syscall.SIGINT) {
			t.Errorf("after a signal, exit status %d and %q", got, &r.stderr)
		}
		late := startReading(t, srv.Addr(), in, "doctor", "--clean", "--admin-port", "0", "--timeout", "30")
		if got := late.wait(); got != exitBusy || !strings.Contains(late.stderr.String(), "gave up after 30s") {
			t.Errorf("after the timeout, exit status %d and %q", got, &late.stderr)
		}
	})
}
