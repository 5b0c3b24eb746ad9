//go:build unix

package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync/fence"
)

func TestMain(m *testing.M) {
	if args := os.Getenv(envHolder); args != "" {
		if err := hold(args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	status := m.Run()
	postgres.end()
	mariadb.end()
	os.Exit(status)
}

// eachStore runs f with a new Store of each kind.
func eachStore(t *testing.T, f func(t *testing.T, s fence.Store)) {
	t.Run("Memory", func(t *testing.T) { f(t, new(fence.Memory)) })
	t.Run("Dir", func(t *testing.T) { f(t, fence.Dir(t.TempDir())) })
	inEachDatabase(t, func(t *testing.T, d database) { db, fences := withTable(t, d); f(t, fences.Store(db)) })
}

func withTable(t *testing.T, d database) (*sql.DB, *fence.Table) {
	t.Helper()
	db, fences := d.open(t), fence.NewTable(d.dialect, "fences")
	for range 2 { // a table that is there is no error
		must(t, fences.Create(t.Context(), db))
	}
	return db, fences
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantStale fails the test unless err says that a token is stale, and why.
func wantStale(t *testing.T, err error, resource string, token, newest int64) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: resource, Token: token, Newest: newest}) {
		t.Fatalf("got %v, want that token %d of %s is stale behind %d", err, token, resource, newest)
	}
}

func TestAStoreRefusesEveryTokenBelowTheGreatestOfItsResource(t *testing.T) {
	const a, b = "accounts/1", "Accounts/1"
	eachStore(t, func(t *testing.T, s fence.Store) {
		must(t, s.Advance(t.Context(), a, 7))
		must(t, s.Advance(t.Context(), a, 7)) // the same hold, once more
		wantStale(t, s.Advance(t.Context(), a, 6), a, 6, 7)
		must(t, s.Advance(t.Context(), b, 1)) // of its own
		must(t, s.Advance(t.Context(), a, 1<<62))
		wantStale(t, s.Advance(t.Context(), a, 7), a, 7, 1<<62)
		must(t, s.Advance(t.Context(), strings.Repeat("x", 255), 1))
	})
}

func TestAStoreRefusesBadArguments(t *testing.T) {
	eachStore(t, func(t *testing.T, s fence.Store) {
		for _, tt := range []struct {
			resource string
			token    int64
		}{{"", 1}, {strings.Repeat("x", 256), 1}, {"a", 0}, {"a", -1}} {
			if err := s.Advance(t.Context(), tt.resource, tt.token); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("Advance(%q, %d): got %v, want ErrInvalid", tt.resource, tt.token, err)
			}
		}
	})
}

// An attempt is a fenced write of its own token to a place of its own kind,
// which keeps all that were written, in order.
type attempt struct {
	write   func(ctx context.Context, token int64) error
	written func() []int64
}

// eachPlace runs f with a place of each kind.
func eachPlace(t *testing.T, f func(t *testing.T, a attempt)) {
	t.Run("file", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "log")
		f(t, attempt{
			write: func(ctx context.Context, token int64) error {
				return fence.DoFile(ctx, name, token, func() error {
					old, err := os.ReadFile(name)
					if err != nil && !errors.Is(err, os.ErrNotExist) {
						return err
					}
					return os.WriteFile(name, fmt.Appendf(old, "%d ", token), 0o600)
				})
			},
			written: func() []int64 {
				data, err := os.ReadFile(name)
				must(t, err)
				return numbers(t, strings.Fields(string(data)))
			},
		})
	})
	inEachDatabase(t, func(t *testing.T, d database) {
		db, fences := withTable(t, d)
		db.SetMaxOpenConns(8)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE log (n BIGINT, token BIGINT)")
		must(t, err)
		f(t, attempt{
			write: func(ctx context.Context, token int64) error {
				return fences.Do(ctx, db, "log", token, func(tx *sql.Tx) error {
					_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO log (n, token) SELECT COUNT(*), %d FROM log", token))
					return err
				})
			},
			written: func() []int64 {
				rows, err := db.QueryContext(t.Context(), "SELECT token FROM log ORDER BY n")
				must(t, err)
				defer rows.Close()
				var all []int64
				for rows.Next() {
					var token int64
					must(t, rows.Scan(&token))
					all = append(all, token)
				}
				must(t, rows.Err())
				return all
			},
		})
	})
}

func numbers(t *testing.T, fields []string) (all []int64) {
	t.Helper()
	for _, field := range fields {
		n, err := strconv.ParseInt(field, 10, 64)
		must(t, err)
		all = append(all, n)
	}
	return all
}

func TestWritesOfManyAtOnceAreInTheOrderOfTheirTokens(t *testing.T) {
	eachPlace(t, func(t *testing.T, a attempt) {
		const writers, each = 8, 12
		tokens := rand.Perm(writers * each)
		var mu sync.Mutex
		var accepted []int64
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for _, n := range tokens[w*each : (w+1)*each] {
					token := int64(n) + 1
					err := a.write(t.Context(), token)
					if err == nil {
						mu.Lock()
						accepted = append(accepted, token)
						mu.Unlock()
					} else if !errors.Is(err, fence.ErrStale) {
						t.Errorf("token %d: %v", token, err)
					}
				}
			})
		}
		wg.Wait()
		written := a.written()
		if !slices.IsSorted(written) {
			t.Errorf("written out of order: %d", written)
		}
		slices.Sort(accepted)
		if !slices.Equal(written, accepted) {
			t.Errorf("written %d, but accepted %d", written, accepted)
		}
		if len(written) == 0 || written[len(written)-1] != writers*each {
			t.Errorf("written %d, want the greatest token, %d, among them", written, writers*each)
		}
	})
}

// None of them finds the resource, and all add it; whoever asks then why it changed nothing
// finds what another has just added.
func TestTheGreatestOfTheFirstTokensIsAccepted(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, d database) {
		const writers, rounds = 8, 100
		db, fences := withTable(t, d)
		db.SetMaxOpenConns(writers)
		for i := range rounds {
			resource := fmt.Sprint("r", i)
			var wg sync.WaitGroup
			for token := range int64(writers) {
				wg.Go(func() {
					err := fences.Do(t.Context(), db, resource, token+1, func(*sql.Tx) error { return nil })
					if err != nil && (token+1 == writers || !errors.Is(err, fence.ErrStale)) {
						t.Errorf("the first write of %d of %d to %s: %v", token+1, writers, resource, err)
					}
				})
			}
			wg.Wait()
		}
	})
}

func TestAWriteThatFailsChangesNothingAndItsErrorIsReturned(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, d database) {
		db, fences := withTable(t, d)
		cause := errors.New("no")
		if err := fences.Do(t.Context(), db, "a", 9, func(*sql.Tx) error { return cause }); err != cause {
			t.Errorf("got %v, want %v", err, cause)
		}
		must(t, fences.Do(t.Context(), db, "a", 5, func(*sql.Tx) error { return nil })) // 9 has written nothing
		called := false
		wantStale(t, fences.Do(t.Context(), db, "a", 4, func(*sql.Tx) error { called = true; return nil }), "a", 4, 5)
		if called {
			t.Error("a stale write was called")
		}
	})
}

// The first write of a newer token waits for a transaction of an older one
// under way; the older does not overtake.
func TestANewerTransactionWaitsForAnOlderOneUnderWay(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, d database) {
		db, fences := withTable(t, d)
		must(t, fences.Do(t.Context(), db, "a", 1, func(*sql.Tx) error { return nil }))
		newer := make(chan error, 1)
		must(t, fences.Do(t.Context(), db, "a", 2, func(*sql.Tx) error {
			go func() {
				newer <- fences.Do(t.Context(), db, "a", 3, func(*sql.Tx) error { return nil })
			}()
			select {
			case err := <-newer:
				return fmt.Errorf("the newer did not wait: %v", err)
			case <-time.After(200 * time.Millisecond):
				return nil
			}
		}))
		must(t, <-newer)
		wantStale(t, fences.Do(t.Context(), db, "a", 2, func(*sql.Tx) error { return nil }), "a", 2, 3)
	})
}

// At the strictest isolation a transaction that began before a newer token
// committed is refused, by one error or another.
func TestASerializableTransactionThatBeganEarlierIsRefused(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, d database) {
		db, fences := withTable(t, d)
		for _, first := range []bool{true, false} { // whether the resource's row is new
			resource := fmt.Sprint(first)
			if !first {
				must(t, fences.Do(t.Context(), db, resource, 1, func(*sql.Tx) error { return nil }))
			}
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: serializable(d)})
			must(t, err)
			var n int
			if d.dialect == fence.MySQL { // whose serializable reads lock
				_, err = tx.ExecContext(t.Context(), "SELECT 1")
			} else {
				err = tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM fences").Scan(&n)
			}
			must(t, err)
			must(t, fences.Do(t.Context(), db, resource, 9, func(*sql.Tx) error { return nil }))
			err = fences.Advance(t.Context(), tx, resource, 8)
			if err == nil {
				err = tx.Commit()
			}
			if err == nil {
				t.Errorf("a new row: %t: token 8 committed behind 9", first)
			}
			tx.Rollback()
			var token int64
			must(t, db.QueryRowContext(t.Context(), "SELECT token FROM fences WHERE resource = '"+resource+"'").Scan(&token))
			if token != 9 {
				t.Errorf("a new row: %t: token %d is stored, want 9", first, token)
			}
		}
	})
}

// A transaction of the caller's own needs its resource to be there: adding it in
// the midst of that could have two wait for each other.
func TestATransactionOfOnesOwnNamesResourcesThatWereAdded(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, d database) {
		db, fences := withTable(t, d)
		advance := func(token int64) error {
			tx, err := db.BeginTx(t.Context(), nil)
			must(t, err)
			defer tx.Rollback()
			if err := fences.Advance(t.Context(), tx, "a", token); err != nil {
				return err
			}
			return tx.Commit()
		}
		if err := advance(5); !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("of a resource that was not added: got %v, want ErrUnknown", err)
		}
		for range 2 {
			must(t, fences.Add(t.Context(), db, "a"))
		}
		must(t, advance(5))
		must(t, fences.Add(t.Context(), db, "a")) // changes nothing
		wantStale(t, advance(4), "a", 4, 5)
	})
}

// The function of Do may itself name a resource that was not added. Do calls it once, and returns its error.
func TestDoCallsAFunctionOnceThoughItReturnsErrUnknown(t *testing.T) {
	inEachDatabase(t, func(t *testing.T, d database) {
		db, fences := withTable(t, d)
		for range 2 { // "a" is new, and then it is known
			calls := 0
			err := fences.Do(t.Context(), db, "a", 5, func(tx *sql.Tx) error {
				calls++
				return fences.Advance(t.Context(), tx, "b", 5)
			})
			if calls != 1 || !errors.Is(err, fence.ErrUnknown) {
				t.Errorf("called %d times: %v", calls, err)
			}
		}
	})
}

func serializable(d database) sql.IsolationLevel {
	if d.dialect == fence.SQLite {
		return sql.LevelDefault // which it is
	}
	return sql.LevelSerializable
}

// Every process of a program may create the table when it starts. PostgreSQL looks for the table
// before another transaction has created it, waits for that transaction, and then refuses.
func TestATableMayBeCreatedWhileAnotherProcessCreatesIt(t *testing.T) {
	d := postgres.empty(t)
	db, fences := d.open(t), fence.NewTable(d.dialect, "fences")
	other, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	defer other.Rollback()
	_, err = other.ExecContext(t.Context(), `CREATE TABLE fences (resource VARCHAR(255) COLLATE "C" NOT NULL PRIMARY KEY, token BIGINT NOT NULL, writes BIGINT NOT NULL)`)
	must(t, err)
	created := make(chan error, 1)
	go func() { created <- fences.Create(t.Context(), db) }()
	for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) { // real time: the database is another process
		must(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").Scan(&waiting))
	}
	must(t, other.Commit())
	must(t, <-created)
	must(t, fences.Add(t.Context(), db, "r"))
}

func TestATableRefusesABadNameOrDialectAndNilArguments(t *testing.T) {
	db := sqlite(t).open(t)
	for _, table := range []*fence.Table{
		fence.NewTable(fence.SQLite, "a; DROP TABLE b"), fence.NewTable(fence.SQLite, ""), fence.NewTable(0, "fences"),
	} {
		if err := table.Create(t.Context(), db); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Create: got %v, want ErrInvalid", err)
		}
		if err := table.Do(t.Context(), db, "a", 1, func(*sql.Tx) error { return nil }); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Do: got %v, want ErrInvalid", err)
		}
	}
	fences := fence.NewTable(fence.SQLite, "fences")
	must(t, fences.Create(t.Context(), db))
	for name, err := range map[string]error{
		"Do without a function":         fences.Do(t.Context(), db, "a", 1, nil),
		"Do without a database":         fences.Do(t.Context(), nil, "a", 1, func(*sql.Tx) error { return nil }),
		"Create without a database":     fences.Create(t.Context(), nil),
		"Add without a database":        fences.Add(t.Context(), nil, "a"),
		"Advance without a transaction": fences.Advance(t.Context(), nil, "a", 1),
		"a Store without a database":    fences.Store(nil).Advance(t.Context(), "a", 1),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

func TestWriteFileReplacesTheFileUnlessItsTokenIsStale(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "state")
	must(t, fence.WriteFile(t.Context(), name, []byte("two"), 0o640, 2))
	must(t, fence.WriteFile(t.Context(), name, []byte("three"), 0o640, 3))
	wantStale(t, fence.WriteFile(t.Context(), name, []byte("late"), 0o640, 2), name, 2, 3)
	data, err := os.ReadFile(name)
	if err != nil || string(data) != "three" {
		t.Errorf("the file has %q, %v", data, err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	left, err := filepath.Glob(dir + "/.*")
	if err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

func TestADamagedTokenFileRefusesEveryWrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "state")
	for _, text := range []string{"x", "7", "-0000000000000000007\n", "00000000000000000000\n", "00000000000000000007\nmore"} {
		must(t, os.WriteFile(name+".fence", []byte(text), 0o600))
		err := fence.WriteFile(t.Context(), name, nil, 0o600, 1<<62)
		if err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("with %q: got %v", text, err)
		}
	}
}

func TestAWriterGivesUpWaitingForAnotherWithItsContext(t *testing.T) {
	name := filepath.Join(t.TempDir(), "state")
	synctest.Test(t, func(t *testing.T) { // so the writer waits when its context is cancelled
		ctx, cancel := context.WithCancel(t.Context())
		must(t, fence.DoFile(t.Context(), name, 1, func() error {
			time.AfterFunc(time.Second, cancel)
			if err := fence.WriteFile(ctx, name, nil, 0o600, 2); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
			return nil
		}))
	})
	for _, err := range []error{
		fence.WriteFile(t.Context(), "", nil, 0o600, 1), fence.WriteFile(t.Context(), name, nil, 0o600, 0), fence.DoFile(t.Context(), name, 1, nil),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	}
}
