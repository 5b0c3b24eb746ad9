package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
)

// ErrUnknown means that nobody has added the resource to the [Table]. Nothing was
// written.
var ErrUnknown = errors.New("fence: unknown resource")

// A Dialect says which database it is.
type Dialect int

// The databases that a Table can be in. MariaDB is MySQL.
const (
	PostgreSQL Dialect = iota + 1
	MySQL
	SQLite
)

// A Table of a database keeps the greatest token that has written to each
// resource. One Table does for a whole database:
//
//	fences := fence.NewTable(fence.PostgreSQL, "fences")
//	err := fences.Create(ctx, db) // once
//
//	err := fences.Do(ctx, db, "accounts", token, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts SET …")
//		return err
//	})
//
// What a transaction writes is committed only if no greater token had
// committed before, and no smaller one can commit after it. That rests on one
// statement, the same for all three databases but for their placeholders,
// which may be used without this package too:
//
//	UPDATE fences SET token = ?, writes = writes + 1 WHERE resource = ? AND token <= ?
//
// If it changes no row the token is stale. (The second assignment has MySQL
// count a row whose token stays the same.) The row stays locked until the
// transaction ends; so of two transactions for one resource the later waits,
// and then sees what the other has committed.
//
// It holds at every isolation level. At those above READ COMMITTED PostgreSQL
// may refuse a transaction for having come at the same time as another; run
// it again.
//
// # Pauses
//
// A process that is paused in the midst of a transaction keeps its row, and
// with SQLite the database, locked until it goes on or is given up. Nothing
// stale is written; but others wait. Set PostgreSQL's
// idle_in_transaction_session_timeout, or innodb_lock_wait_timeout, to what
// you can wait.
//
// # Cost
//
// One statement a transaction. The first write to a resource takes three more,
// and another transaction.
type Table struct {
	err    error // why it cannot be used
	create string
	update string
	insert string
	read   string
}

var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// NewTable returns the Table of that name, which may have a schema before it:
// "fences" or "audit.fences". Nothing is sent. A bad argument is told by the
// methods.
func NewTable(d Dialect, name string) *Table {
	t := new(Table)
	if !identifier.MatchString(name) {
		t.err = fmt.Errorf("%w: table %q, want letters, digits and underscores", ErrInvalid, name)
	}
	text, p1, p2, p3 := "VARCHAR(255)", "?", "?", "?"
	insert, unless := "INSERT", ""
	switch d {
	case PostgreSQL:
		text, p1, p2, p3 = `VARCHAR(255) COLLATE "C"`, "$1", "$2", "$3"
		unless = " ON CONFLICT (resource) DO NOTHING"
	case MySQL:
		text = "VARBINARY(255)" // a VARCHAR takes "a" and "A" for the same
		insert = "INSERT IGNORE"
	case SQLite:
		unless = " ON CONFLICT (resource) DO NOTHING"
	default:
		t.err = fmt.Errorf("%w: dialect %d, want PostgreSQL, MySQL or SQLite", ErrInvalid, d)
	}
	t.create = "CREATE TABLE IF NOT EXISTS " + name + " (resource " + text + " NOT NULL PRIMARY KEY, token BIGINT NOT NULL, writes BIGINT NOT NULL)"
	t.update = "UPDATE " + name + " SET token = " + p1 + ", writes = writes + 1 WHERE resource = " + p2 + " AND token <= " + p3
	t.insert = insert + " INTO " + name + " (resource, token, writes) VALUES (" + p1 + ", 0, 0)" + unless
	t.read = "SELECT token FROM " + name + " WHERE resource = " + p1
	return t
}

// Create creates the table unless it is there.
func (t *Table) Create(ctx context.Context, db *sql.DB) error {
	if t.err != nil {
		return t.err
	}
	_, err := db.ExecContext(ctx, t.create)
	return err
}

// Add adds a resource that nobody has written to, unless it is there. [Table.Do]
// does so by itself; [Table.Advance] does not.
func (t *Table) Add(ctx context.Context, db *sql.DB, resource string) error {
	if err := errors.Join(t.err, check(resource, 1)); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, t.insert, resource)
	return err
}

// Do runs write in a transaction that commits only if token is not stale. If it
// is, write is not called and Do returns a [*StaleError].
//
// An error of write is returned as it is, and the transaction rolled back. In MySQL
// write must not change tables (CREATE, ALTER and the like): that commits, and what
// follows it is not fenced any more.
func (t *Table) Do(ctx context.Context, db *sql.DB, resource string, token int64, write func(tx *sql.Tx) error) error {
	if write == nil {
		return fmt.Errorf("%w: write is nil", ErrInvalid)
	}
	err := t.do(ctx, db, resource, token, write)
	if !errors.Is(err, ErrUnknown) {
		return err
	}
	// Added in a transaction of its own: MySQL has two that look for a row which
	// is not there, and then insert it, wait for each other.
	if err := t.Add(ctx, db, resource); err != nil {
		return err
	}
	return t.do(ctx, db, resource, token, write)
}

func (t *Table) do(ctx context.Context, db *sql.DB, resource string, token int64, write func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // of no effect behind Commit
	if err := t.Advance(ctx, tx, resource, token); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Advance records in a transaction of yours that it is made under token. It
// returns a [*StaleError] if a greater one has committed, and [ErrUnknown] for a
// resource that was not added. Call it before anything else in the
// transaction, and roll back whenever it returns an error.
func (t *Table) Advance(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	if err := errors.Join(t.err, check(resource, token)); err != nil {
		return err
	}
	if is, err := t.advance(ctx, tx, resource, token); is || err != nil {
		return err
	}
	stale := &StaleError{Resource: resource, Token: token}
	switch err := tx.QueryRowContext(ctx, t.read, resource).Scan(&stale.Newest); {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %s", ErrUnknown, resource)
	case err != nil:
		return err
	case stale.Newest <= token:
		// The resource was added after the update, or what is read is a snapshot older than
		// what the update saw. The resource is there in either case: now the update tells.
		if is, err := t.advance(ctx, tx, resource, token); is || err != nil {
			return err
		}
		stale.Newest = 0
	}
	return stale
}

// advance reports whether the resource is there, and no greater token was.
func (t *Table) advance(ctx context.Context, tx *sql.Tx, resource string, token int64) (bool, error) {
	result, err := tx.ExecContext(ctx, t.update, token, resource, token)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// Store returns a [Store] that keeps its tokens in the table, for [NewHandler].
// Where the writes go to the same database use Do instead: only what is written
// in one transaction with the token is safe from a pause between the two.
func (t *Table) Store(db *sql.DB) Store { return tableStore{t, db} }

type tableStore struct {
	t  *Table
	db *sql.DB
}

func (s tableStore) Advance(ctx context.Context, resource string, token int64) error {
	return s.t.Do(ctx, s.db, resource, token, func(*sql.Tx) error { return nil })
}
