package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
)

// This file fences the writes of database transactions. It does not connect to
// the database, and does not depend on a driver.

// ErrUnknown means that the [Table] does not have the resource. Nothing was
// written.
var ErrUnknown = errors.New("fence: unknown resource")

// A Dialect is a kind of database.
type Dialect int

// The kinds of databases that a Table supports. For MariaDB, use MySQL.
const (
	PostgreSQL Dialect = iota + 1
	MySQL
	SQLite
)

// A Table of a database keeps the greatest token that has written to each
// resource. One Table is enough for a whole database:
//
//	fences := fence.NewTable(fence.PostgreSQL, "fences")
//	err := fences.Create(ctx, db) // once
//
//	err := fences.Do(ctx, db, "accounts", token, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx, "UPDATE accounts SET …")
//		return err
//	})
//
// A transaction commits only if no transaction with a greater token has
// committed before it. After it, no transaction with a smaller token can
// commit. A single statement ensures that. It is the same for all three
// databases except for its placeholders, and other programs may use it too:
//
//	UPDATE fences SET token = ?, writes = writes + 1 WHERE resource = ? AND token <= ?
//
// If the statement changes no row, the token is stale. (Because of the second
// assignment, MySQL counts a row whose token stays the same.) The row stays
// locked until the transaction ends. So the second of two transactions for one
// resource waits, and then sees the writes of the first.
//
// This is true at every isolation level. At levels above READ COMMITTED,
// PostgreSQL may refuse a transaction that runs at the same time as another.
// Run it again then.
//
// # Pauses
//
// A process that is paused during a transaction keeps its row locked (with
// SQLite, the whole database) until it continues or the database aborts the
// transaction. It writes nothing stale, but other writers wait. Set
// PostgreSQL's idle_in_transaction_session_timeout, or MySQL's
// innodb_lock_wait_timeout, to the longest wait that you accept.
//
// # Cost
//
// A transaction needs one additional statement. The first write to a resource
// needs three more statements, and another transaction.
type Table struct {
	err    error // of NewTable, if an argument was bad
	create string
	update string
	insert string
	read   string
}

var identifier = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// NewTable returns the Table called name. A schema may precede the name:
// "fences" or "audit.fences". It sends no statement. If an argument is bad, the
// Table's methods return the error.
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
		text = "VARBINARY(255)" // a VARCHAR treats "a" and "A" as equal
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

// Create creates the table unless it exists. Several processes may call it at the
// same time.
func (t *Table) Create(ctx context.Context, db *sql.DB) error {
	if err := errors.Join(t.err, given("db", db != nil)); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, t.create); err == nil {
		return nil
	}
	// If another process has created the table meanwhile, PostgreSQL returns an
	// error in spite of IF NOT EXISTS. The second attempt sees the table.
	_, err := db.ExecContext(ctx, t.create)
	return err
}

// Add adds a resource without a token, unless the table has it already.
// [Table.Do] adds resources by itself; [Table.Advance] does not.
func (t *Table) Add(ctx context.Context, db *sql.DB, resource string) error {
	if err := errors.Join(t.err, check(resource, 1), given("db", db != nil)); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, t.insert, resource)
	return err
}

// Do runs write in a transaction that commits only if token is not stale. If
// token is stale, Do does not call write and returns a [*StaleError].
//
// If write fails, Do rolls the transaction back and returns the same error. In
// MySQL, write must not change tables (CREATE, ALTER and the like): MySQL then
// commits, and later statements of the transaction are not fenced.
func (t *Table) Do(ctx context.Context, db *sql.DB, resource string, token int64, write func(tx *sql.Tx) error) error {
	if err := errors.Join(given("db", db != nil), given("write", write != nil)); err != nil {
		return err
	}
	called := false
	err := t.do(ctx, db, resource, token, func(tx *sql.Tx) error { called = true; return write(tx) })
	if called || !errors.Is(err, ErrUnknown) { // write may itself return ErrUnknown, about another resource
		return err
	}
	// Add the row in its own transaction. In one transaction, it would not be
	// safe: in MySQL, two transactions that look for a missing row and then
	// insert it wait for each other.
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
	defer tx.Rollback() // has no effect after Commit
	if err := t.Advance(ctx, tx, resource, token); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Advance records, in your transaction, that it runs under token. It returns a
// [*StaleError] if a greater token has committed, and [ErrUnknown] for a
// resource that was not added. Call it before anything else in the
// transaction, and roll back whenever it returns an error.
func (t *Table) Advance(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	if err := errors.Join(t.err, check(resource, token), given("tx", tx != nil)); err != nil {
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
		// Either the resource was added after the update, or the read saw an
		// older snapshot than the update. The row exists in both cases, so the
		// update decides now.
		if is, err := t.advance(ctx, tx, resource, token); is || err != nil {
			return err
		}
		stale.Newest = 0
	}
	return stale
}

// The method `advance` records the token if the table has the resource without a greater token. It
// reports whether it has recorded the token.
func (t *Table) advance(ctx context.Context, tx *sql.Tx, resource string, token int64) (bool, error) {
	result, err := tx.ExecContext(ctx, t.update, token, resource, token)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// Store returns a [Store] that keeps its tokens in the table, for [NewHandler].
// If the writes are to the same database, use Do instead: a process can be
// paused between storing the token and writing, and then only a write in the
// same transaction is safe.
func (t *Table) Store(db *sql.DB) Store { return tableStore{t, db} }

type tableStore struct {
	t  *Table
	db *sql.DB
}

func (s tableStore) Advance(ctx context.Context, resource string, token int64) error {
	return s.t.Do(ctx, s.db, resource, token, func(*sql.Tx) error { return nil })
}
