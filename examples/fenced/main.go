// Fenced writes to a database under a lock with a fencing token. If a process pauses while it holds
// the lock, and continues after another process has got the lock, the database refuses its write.
//
//	go run ./examples/fenced
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/examples/internal/demo"
	"github.com/zsync/zsync/fence"
)

func main() {
	file := flag.String("db", "", "the SQLite database; if empty, one in a new temporary directory")
	takes := flag.Duration("takes", 4*time.Second, "for how long the lock is held")
	demo.Prepare = func() (string, func(), error) {
		if *file != "" {
			return " --db " + *file, func() {}, nil
		}
		dir, err := os.MkdirTemp("", "zsync-fenced-")
		*file = filepath.Join(dir, "account.db")
		return " --db " + *file, func() { os.RemoveAll(dir) }, err
	}
	demo.Main("Several processes add to one balance under a lock. The database refuses a write of one that has lost the lock.", func(ctx context.Context, p *demo.Process) error {
		db, err := openAccount(ctx, *file)
		if err != nil {
			return err
		}
		defer db.Close()
		a := &account{p, db, fence.NewTable(fence.SQLite, "fences"), zsync.NewMutex(p.Session, "/examples/account"), *takes}
		if err := a.fences.Create(ctx, db); err != nil {
			return err
		}
		for ctx.Err() == nil {
			if err := a.turn(ctx); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

func openAccount(ctx context.Context, file string) (*sql.DB, error) {
	if file == "" {
		return nil, errors.New("--servers needs --db too: the first process has told which")
	}
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
		INSERT OR IGNORE INTO account VALUES (1, 0)`)
	return db, err
}

type account struct {
	*demo.Process
	db     *sql.DB
	fences *fence.Table
	lock   *zsync.Mutex
	takes  time.Duration
}

// turn adds 1 to the balance under the lock: it reads, sleeps, and writes.
func (a *account) turn(ctx context.Context) error {
	if err := a.lock.Lock(ctx); err != nil {
		return err
	}
	defer a.lock.Unlock() // its error does not matter, because the fence protects the database
	token, err := a.lock.Token(ctx)
	if errors.Is(err, zsync.ErrLost) {
		return nil
	}
	if err != nil {
		return err
	}
	var balance int
	if err := a.db.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&balance); err != nil {
		return err
	}
	a.KillMe("has read the balance, %d, under token %d; to see it refused: kill -STOP %d; sleep 10; kill -CONT %[3]d", balance, token, os.Getpid())
	if err := demo.Sleep(ctx, a.takes); err != nil {
		return err
	}
	// If this process was paused until now, another process may hold the lock.
	err = a.fences.Do(ctx, a.db, "account", token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE account SET balance = ?", balance+1)
		return err
	})
	switch {
	case errors.Is(err, fence.ErrStale):
		a.Say("is refused: %v", err)
	case err != nil:
		return err
	default:
		a.Say("has written the balance, %d", balance+1)
	}
	return nil
}
