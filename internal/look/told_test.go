package look_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/internal/look"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

// told returns the kinds at each path, as a look at the whole tree tells them, and
// checks that a look at the path alone tells the same.
func told(t *testing.T, eyes *zsync.Session, root string) map[string]string {
	t.Helper()
	tree, err := look.Look(t.Context(), eyes, root)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, p := range tree.Places {
		all[p.Path] = words(p.Lines)
		lines, err := look.At(t.Context(), eyes, p.Path)
		if err != nil {
			t.Fatal(p.Path, err)
		}
		if at := words(lines); at != all[p.Path] {
			t.Errorf("%s is told to be %q in the tree, and %q alone", p.Path, all[p.Path], at)
		}
	}
	return all
}

// words returns the kinds of lines, each once, with what is said beside who holds
// and who waits.
func words(lines []look.Line) string {
	var all []string
	for _, l := range lines {
		w := l.Kind
		if l.Since == nil {
			w = strings.TrimPrefix(l.Kind+": "+l.State, ": ")
		}
		if !slices.Contains(all, w) && w != "free" {
			all = append(all, w)
		}
	}
	return strings.Join(all, "; ")
}

// wantTold fails unless each path below root is told to be what is wanted, and
// nothing else is told to be anything.
func wantTold(t *testing.T, eyes *zsync.Session, root string, want map[string]string) {
	t.Helper()
	got := told(t, eyes, root)
	maps.DeleteFunc(got, func(_, words string) bool { return words == "" })
	for path, words := range got {
		if words != want[path] {
			t.Errorf("%s is told to be %q, want %q", path, words, want[path])
		}
	}
	for path := range want {
		if got[path] == "" {
			t.Errorf("%s is told to be nothing, want %q", path, want[path])
		}
	}
}

func noError(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestEveryPrimitiveIsToldInUseAndIdle(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv, zsync.WithOwner("me")), suite.Open(t, srv)
		// Who gives what he makes an ACL of his own sees what others have made openly.
		own := suite.Open(t, srv, zsync.WithAuth("digest", []byte("me:secret")), zsync.WithACL(zk.AuthACL(zk.PermAll)))
		ctx, kazoo := t.Context(), zsync.WithLayout(zsync.LayoutKazoo)
		nothing := func(context.Context) error { return nil }
		lock, rw, other := zsync.NewMutex(s, "/lock"), zsync.NewRWMutex(s, "/rw"), zsync.NewMutex(s, "/kazoo", kazoo)
		permits, resized, theirs := zsync.NewSemaphore(s, "/permits", 3), zsync.NewSemaphore(s, "/resized", 3), zsync.NewSemaphore(s, "/theirs", 3, kazoo)
		election, tasks, parties := zsync.NewElection(s, "/election"), zsync.NewWaitGroup(s, "/tasks"), zsync.NewWaitGroup(s, "/parties")
		gate, settings, queue := zsync.NewBarrier(s, "/gate"), zsync.NewMap[string](s, "/settings"), zsync.NewQueue[int](s, "/queue")
		noError(t, lock.Lock(ctx), rw.Lock(ctx), other.Lock(ctx), permits.Acquire(ctx, 1), resized.Resize(ctx, 5), theirs.Acquire(ctx, 1),
			election.Campaign(ctx), tasks.Add(ctx, 1), parties.Enter(ctx, 1), gate.Close(ctx), settings.Store(ctx, "a", "text"), queue.Send(ctx, 1),
			zsync.NewOnce(s, "/once").Do(ctx, nothing), zsync.NewValue[string](s, "/value").Store(ctx, "x"))
		member, err := zsync.NewGroup[string](s, "/group").Join(ctx, "me", "")
		noError(t, err)
		_, _, err = zsync.NewFlight[int](s, "/flight", time.Hour).Do(ctx, "key", func(context.Context) (int, error) { return 1, nil })
		noError(t, err)
		at := time.Date(2030, 6, 1, 12, 0, 0, 0, time.Local)
		_, err = zsync.NewSchedule(s, "/schedule").Do(ctx, at, nothing)
		noError(t, err)
		failing := zsync.NewSchedule(s, "/failing")
		for _, day := range []int{0, 1} {
			_, err = failing.Do(ctx, at.AddDate(0, 0, day), func(context.Context) error {
				if day == 1 {
					return errors.New("disk full")
				}
				return nil
			})
		}
		if err == nil {
			t.Error("a function that fails is done")
		}
		_, err = zsync.NewInt64(s, "/int").Add(ctx, 3)
		noError(t, err)
		split, leave := context.WithCancel(ctx)
		left := make(chan error, 1)
		go func() {
			left <- zsync.NewPartition(s, "/partition").Run(split, []string{"a", "b"}, func(ctx context.Context, _ string) error { <-ctx.Done(); return nil })
		}()
		time.Sleep(time.Second)

		const last = "schedule: last done: that of 2030-06-01 12:00:00"
		const failed = last + "; failed: that of 2030-06-02 12:00:00, attempt 1, me: disk full"
		used := map[string]string{
			"/lock": "lock", "/rw": "read-write lock", "/kazoo": "kazoo lock", "/permits": "semaphore", "/resized": "semaphore: free, 5 permits",
			"/theirs": "kazoo semaphore", "/election": "election", "/tasks": "wait group: 1 open task", "/parties": "double barrier", "/gate": "gate: closed",
			"/settings": "map: 1 key", "/queue": "queue: 1 element", "/once": "once: done", "/schedule": last, "/failing": failed, "/value": `data: "x"`, "/int": "data: 3",
			"/group": "group", "/flight/key/result": "data: 1",
			"/partition": "partition; partition: 2 shards", "/partition/shards/a": "lock", "/partition/shards/b": "lock",
		}
		wantTold(t, eyes, "/", used)
		wantTold(t, own, "/", used)
		lines, err := look.At(ctx, eyes, "/partition")
		noError(t, err)
		if l := lines[0]; l.State != "owns 2 shards" || l.Info != "a, b" || !strings.HasPrefix(l.Owner, "me ") || !l.Holding {
			t.Errorf("the member of the partition is %+v", l)
		}
		leave()
		<-left
		tasks.Done()
		noError(t, lock.Unlock(), rw.Unlock(), other.Unlock(), permits.Release(1), theirs.Release(1), election.Resign(), tasks.Wait(ctx), parties.Leave(ctx),
			gate.Open(ctx), settings.Delete(ctx, "a"), member.Leave())
		element, err := queue.Receive(ctx)
		noError(t, err, element.Ack(ctx))
		time.Sleep(time.Second) // what is given up in the background, as the place in the line of who has received, goes a little later
		idle := map[string]string{
			"/permits": "semaphore: free, 3 permits", "/resized": "semaphore: free, 5 permits", "/theirs": "kazoo semaphore: free, 3 permits",
			"/settings": "map: 0 keys", "/queue": "queue: 0 elements", "/once": "once: done", "/schedule": last, "/failing": failed, "/value": `data: "x"`, "/int": "data: 3", "/partition": "partition: 2 shards, 2 without an owner",
			"/flight/key/result": "data: 1",
		}
		wantTold(t, eyes, "/", idle)
		wantTold(t, own, "/", idle)
	})
}

// What others have chosen, the names and the texts, must not pass for what zsync
// does with them.
func TestEntriesOfAMapAreEntriesWhateverTheyAreCalledAndHold(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	s, eyes := connect(t, srv), connect(t, srv)
	ctx := t.Context()
	const guid = "_c_48e50edc-09ec-4785-b44e-13769185aea0"
	entries := map[string]string{
		"text": "plain text", "number": "3", "empty": "", "gate": "zsync: closed by me", "map": "zsync map", "JSON": `{"a":1}`,
		guid + "-lock-0000000000": "me", guid + "-latch-2100000000": "me", guid + "-__WRIT__0000000001": "me", guid + "-wait-0000000001": "me",
		"deb315576356492b9a38f45828136a03": "an MD5", "deb315576356492b9a38f45828136a03__lock__0000000001": "me", "me__party__": "me",
		"done": "yes", "last": "2030-06-01T12:00:00Z", "leases": "", "locks": "", "resized": "", "parties": "", "keeper-0000000001": "",
		"t-0000000000": "", "queue-0000000001": "", "text-receipts": "", "text-dead": "", "number-__lock__": "", "gone-live": "", guid + "-tasks": "2",
	}
	m := zsync.NewMap[string](s, "/maps/m", zsync.WithCodec(zsync.Raw))
	for key, text := range entries {
		noError(t, m.Store(ctx, key, text))
	}
	whole := look.Count(len(entries), "key")
	wantTold(t, eyes, "/", map[string]string{"/maps/m": "map: " + whole})
	tree, err := look.Look(ctx, eyes, "/")
	noError(t, err)
	if len(tree.Strays) > 0 || len(tree.Places) != 1 || len(tree.Places[0].Names) > 0 || kinds.Mixed(tree.Places[0].Kinds) {
		t.Errorf("%d places, of which the first is %+v, and strays: %q", len(tree.Places), tree.Places[0], tree.Strays)
	}
	for key, text := range entries {
		if text == "" {
			text = "empty"
		}
		wantTold(t, eyes, "/maps/m/"+key, map[string]string{"/maps/m/" + key: "entry: " + text})
	}

	// Other things there are seen nevertheless, if they are used.
	noError(t, zsync.NewMutex(s, "/maps/m/text").Lock(ctx), zsync.NewMap[string](s, "/maps/m/inner").Store(ctx, "a", "b"),
		zsync.NewMap[string](s, "/maps/n").Store(ctx, "a", "b"), zsync.NewMutex(s, "/maps/n").Lock(ctx))
	wantTold(t, eyes, "/", map[string]string{
		"/maps/m": "map: " + look.Count(len(entries)+2, "key"), // as Len counts, which takes all that is there for keys
		"/maps/n": "lock; map: 2 keys", "/maps/m/text": "lock", "/maps/m/inner": "map: 1 key",
	})
	lines, err := look.At(ctx, eyes, "/maps/n")
	if noError(t, err); len(lines) != 2 || !lines[0].Holding || lines[0].Session == look.SessionText(0) {
		t.Errorf("at a map that is a lock too: %+v", lines)
	}
}

func TestWhatCarriesNoMarkIsDataAndNoMore(t *testing.T) {
	srv := zktest.Start(t, harness.Patient)
	s, eyes := connect(t, srv), connect(t, srv)
	ctx := t.Context()
	raw := func(path, text string) {
		noError(t, zsync.NewValue[string](s, path, zsync.WithCodec(zsync.Raw)).Store(ctx, text))
	}
	raw("/curator", "127.0.0.1") // as Curator leaves a gate
	raw("/text", "written once")
	raw("/three", "3")
	raw("/images/resized", "a directory")
	raw("/json", `"zsync: closed by me"`)
	raw("/long", "zsync map ")
	raw("/written", "zsync: closed by me")
	raw("/written", "zsync: closed by me")
	conn, _, err := zk.Connect([]string{srv.Addr()}, 10*time.Second, zk.WithDialer(srv.Dial), zk.WithLogInfo(false))
	noError(t, err)
	defer conn.Close()
	create := func(path, text string) {
		t.Helper()
		_, err := conn.Create(path, []byte(text), 0, zk.WorldACL(zk.PermAll))
		noError(t, err)
	}
	create("/old", "") // a map as an older zsync has made it, or another language
	create("/old/entry", "text")
	create("/old/gone", "text")
	want := map[string]string{
		"/curator": "data: 127.0.0.1", "/text": "data: written once", "/three": "data: 3", "/images/resized": "data: a directory",
		"/json": `data: "zsync: closed by me"`, "/long": "data: zsync map ", "/written": "data: zsync: closed by me",
		"/old/entry": "data: text", "/old/gone": "data: text",
	}
	wantTold(t, eyes, "/", want)
	// The first deletion, which is written there anyway, leaves the mark.
	noError(t, zsync.NewMap[string](s, "/old").Delete(ctx, "gone"))
	delete(want, "/old/entry")
	delete(want, "/old/gone")
	want["/old"] = "map: 1 key"
	wantTold(t, eyes, "/", want)
}

// People name locks as they like, also as libraries name the parts of what they make.
func TestALockThatIsHeldIsShownWhateverItIsCalled(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		s, eyes := suite.Open(t, srv), suite.Open(t, srv)
		ctx, kazoo := t.Context(), zsync.WithLayout(zsync.LayoutKazoo)
		const guid = "_c_48e50edc-09ec-4785-b44e-13769185aea0"
		names := []string{
			"deb315576356492b9a38f45828136a03", "b-01", "t-02", "b-00001", "t-00001", "d-00001-1", "keys", "keeper-1", "parties", "leases", "locks", "done", "last", "resized",
			"orders", "orders-live", "orders-consumers", "orders-ids", "orders-receipts", "orders-dead", "orders-__lock__", "orders-__resized__",
			"alone-live", "alone-ids", "alone-__lock__", "job-lock-0000000042", "my-latch-0000000042", "svc__party__", guid + "-tasks.d", "_c_mine", "queue-7", "entry-1", "dead-1",
		}
		want := map[string]string{}
		for i, name := range names {
			path := "/locks-of/" + name
			m, kind := zsync.NewMutex(s, path), "lock"
			if i%2 == 1 {
				m, kind = zsync.NewMutex(s, path, kazoo), "kazoo lock"
			}
			noError(t, m.Lock(ctx))
			want[path] = kind
		}
		for _, path := range []string{"/jobs-live/a/b", "/jobs/x", "/q-live/below", "/md5/deb315576356492b9a38f45828136a03/below"} {
			noError(t, zsync.NewMutex(s, path).Lock(ctx))
			want[path] = "lock"
		}
		noError(t, zsync.NewQueue[int](s, "/q").Send(ctx, 1), zsync.NewSemaphore(s, "/permits", 2, kazoo).Acquire(ctx, 2))
		want["/q"], want["/permits"] = "queue: 1 element", "kazoo semaphore"
		go zsync.NewSemaphore(s, "/permits", 2, kazoo).Acquire(ctx, 1)
		time.Sleep(time.Minute)
		wantToldInTree(t, eyes, want)
	})
}

// wantToldInTree is wantTold for the look at the whole tree.
func wantToldInTree(t *testing.T, eyes *zsync.Session, want map[string]string) {
	t.Helper()
	tree, err := look.Look(t.Context(), eyes, "/")
	noError(t, err)
	for _, p := range tree.Places {
		if got := words(p.Lines); got != want[p.Path] && got != "" {
			t.Errorf("%s is told to be %q, want %q", p.Path, got, want[p.Path])
		}
		if words(p.Lines) != "" {
			delete(want, p.Path)
		}
	}
	for path, words := range want {
		t.Errorf("%s is not shown, want %q", path, words)
	}
}

func TestATimeThatWasWaitedIsNotTakenForATimeOfHolding(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		first, next, eyes := suite.Open(t, srv), suite.Open(t, srv), suite.Open(t, srv)
		ctx := t.Context()
		const waited, held = 171 * time.Second, 10 * time.Second
		m, token, silent := zsync.NewMutex(first, "/token"), zsync.NewMutex(next, "/token"), zsync.NewMutex(next, "/silent")
		other := zsync.NewMutex(first, "/silent")
		noError(t, m.Lock(ctx), other.Lock(ctx))
		got := make(chan error, 2)
		go func() {
			err := token.Lock(ctx)
			if err == nil {
				_, err = token.Token(ctx)
			}
			got <- err
		}()
		go func() { got <- silent.Lock(ctx) }()
		time.Sleep(time.Second)
		var seen look.Memory
		lookAt := func() map[string]look.Line {
			t.Helper()
			tree, err := look.Look(ctx, eyes, "/")
			noError(t, err)
			seen.Note(tree)
			holders := map[string]look.Line{}
			for _, p := range tree.Places {
				holders[p.Path] = p.Lines[0]
			}
			return holders
		}
		check := func(what string, l look.Line, want time.Duration, wantAtMost bool) {
			t.Helper()
			since, atMost := l.HeldSince()
			if long := time.Since(*since).Round(time.Second); long != want || atMost != wantAtMost {
				t.Errorf("%s holds for %v, at most: %v; want %v, %v", what, long, atMost, want, wantAtMost)
			}
		}
		time.Sleep(waited - time.Second)
		lookAt()
		noError(t, m.Unlock(), other.Unlock(), <-got, <-got)
		time.Sleep(held)
		lines, err := look.At(ctx, eyes, "/token")
		noError(t, err)
		check("one that has taken its token", lines[0], held, false)
		lines, err = look.At(ctx, eyes, "/silent")
		noError(t, err)
		check("one that has not", lines[0], waited+held, true)
		holders := lookAt()
		check("one that has taken its token", holders["/token"], held, false)
		check("one whose hand-over was seen", holders["/silent"], 0, false)
		time.Sleep(held)
		check("one whose hand-over was seen", lookAt()["/silent"], held, false)
		noError(t, zsync.NewMutex(first, "/token").Revoke(ctx))
		lines, err = look.At(ctx, eyes, "/token")
		noError(t, err)
		check("one that is asked to give up", lines[0], waited+2*held, true)
	})
}
