//go:build unix

package fence_test

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/lib/pq"

	"github.com/zsync/zsync/fence"
	"github.com/zsync/zsync/internal/need"
)

// A database is an empty one, and how to open it.
type database struct {
	dialect fence.Dialect
	driver  string
	dsn     string
}

func (d database) open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// inEachDatabase runs f with an empty database of each kind that is installed.
func inEachDatabase(t *testing.T, f func(t *testing.T, d database)) {
	for name, empty := range kinds {
		t.Run(name, func(t *testing.T) { f(t, empty(t)) })
	}
}

var kinds = map[string]func(t *testing.T) database{
	"SQLite": sqlite, "PostgreSQL": postgres.empty, "MySQL": mariadb.empty,
}

// patient is how an SQLite file is opened by several processes.
const patient = "?_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_pragma=synchronous(off)"

func sqlite(t *testing.T) database {
	return database{fence.SQLite, "sqlite", "file:" + filepath.Join(t.TempDir(), "db") + patient}
}

// A server is a database server, which the first test that needs it starts.
type server struct {
	dialect fence.Dialect
	driver  string
	dsn     string   // with the server's directory and the name of a database
	first   string   // a database that is there from the beginning
	account string   // who runs it, as root may not
	finds   []string // where its programs are besides PATH
	program string   // runs it
	uses    []string // other programs, without which it cannot be installed
	install func(bin func(name string) string, dir string) []string
	run     func(dir string) []string

	once      sync.Once
	err       error
	dir       string
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	databases atomic.Int64
}

var postgres = &server{
	dialect: fence.PostgreSQL, driver: "postgres", first: "postgres", account: "postgres",
	dsn:     "host=%s dbname=%s user=fence sslmode=disable",
	finds:   []string{"/usr/lib/postgresql/*/bin"},
	program: "postgres",
	uses:    []string{"initdb"},
	install: func(bin func(string) string, dir string) []string {
		return []string{bin("initdb"), "-D", dir + "/data", "-U", "fence", "-A", "trust", "-N", "--locale=C"}
	},
	run: func(dir string) []string { return []string{"-D", dir + "/data", "-k", dir, "-h", "", "-F"} },
}

var mariadb = &server{
	dialect: fence.MySQL, driver: "mysql", first: "mysql", account: "nobody",
	dsn:     "root@unix(%s/socket)/%s",
	finds:   []string{"/usr/sbin"},
	program: "mariadbd",
	uses:    []string{"mariadb-install-db", "my_print_defaults"}, // the second is of another package
	install: func(bin func(string) string, dir string) []string {
		return []string{bin("mariadb-install-db"), "--no-defaults", "--datadir=" + dir + "/data", "--auth-root-authentication-method=normal", "--skip-test-db"}
	},
	run: func(dir string) []string {
		return []string{"--no-defaults", "--datadir=" + dir + "/data", "--socket=" + dir + "/socket", "--pid-file=" + dir + "/pid", "--skip-networking", "--innodb-flush-log-at-trx-commit=0"}
	},
}

// empty returns a new database of the server, and skips the test if the server
// is not installed.
func (s *server) empty(t *testing.T) database {
	t.Helper()
	for _, name := range append([]string{s.program}, s.uses...) {
		if s.find(name) == "" {
			need.Missing(t, name, "it is not installed")
		}
	}
	s.once.Do(func() { s.err = s.start(s.find(s.program)) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	db := database{s.dialect, s.driver, fmt.Sprintf(s.dsn, s.dir, s.first)}.open(t)
	name := fmt.Sprintf("d%d", s.databases.Add(1))
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return database{s.dialect, s.driver, fmt.Sprintf(s.dsn, s.dir, name)}
}

// find returns where a program of the server is, or nothing.
func (s *server) find(name string) string {
	for _, dir := range s.finds {
		if found, _ := filepath.Glob(filepath.Join(dir, name)); len(found) > 0 {
			return slices.Max(found)
		}
	}
	found, _ := exec.LookPath(name)
	return found
}

func (s *server) start(program string) (err error) {
	if s.dir, err = os.MkdirTemp("", "fence-"); err != nil {
		return err
	}
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 {
		if as, err = s.credential(); err != nil {
			return err
		}
	}
	args := s.install(s.find, s.dir)
	install := exec.Command(args[0], args[1:]...)
	install.SysProcAttr, install.Dir = as, s.dir
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", install, err, out)
	}
	var out bytes.Buffer
	s.cmd = exec.Command("sh", append([]string{"-c", untilInputEnds, "sh", program}, s.run(s.dir)...)...)
	s.cmd.SysProcAttr, s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = as, s.dir, &out, &out
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	db, err := sql.Open(s.driver, fmt.Sprintf(s.dsn, s.dir, s.first))
	if err != nil {
		return err
	}
	defer db.Close()
	// real time: the database server does not say when it is ready
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := db.Ping()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			s.end()
			return fmt.Errorf("%s: %w\n%s", s.program, err, &out)
		}
	}
}

// credential gives the server's directory to its account.
func (s *server) credential() (*syscall.SysProcAttr, error) {
	account, err := user.Lookup(s.account)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.Atoi(account.Uid)
	gid, err2 := strconv.Atoi(account.Gid)
	if err := errors.Join(err1, err2, os.Chown(s.dir, uid, gid)); err != nil {
		return nil, err
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// untilInputEnds runs a program until the standard input ends: with the test,
// however that ends.
const untilInputEnds = `"$@" & cat >/dev/null; kill -TERM $!; wait $!`

func (s *server) end() {
	if s.stdin != nil {
		s.stdin.Close()
		s.cmd.Wait()
	}
	os.RemoveAll(s.dir)
}
