package interop_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/interop"
	"github.com/zsync/zsync/zktest"
)

// A place is a ZooKeeper that the foreign programs are tried against.
type place struct {
	name    string
	servers func(t *testing.T) string // connect string
}

// places are the in-process server and, as the control that shows what a program
// does by itself, the real ensemble where there is one.
func places() []place {
	list := []place{{"zktest", func(t *testing.T) string { return strings.Join(zktest.Start(t).Addrs(), ",") }}}
	if real := os.Getenv("ZSYNC_TEST_SERVERS"); real != "" {
		list = append(list, place{"ensemble", func(*testing.T) string { return real }})
	}
	return list
}

// A driver starts a program that takes the commands of testdata/driver.py.
type driver struct {
	name  string
	start func(tb testing.TB, file string, args ...string) *interop.Program
	file  string
}

var drivers = []driver{
	{"kazoo", interop.Kazoo, "driver.py"},
	{"curator", interop.Curator, "Driver"},
}

// program starts the driver's program and returns once it is connected.
func (d driver) program(t *testing.T, servers string, timeout time.Duration) *interop.Program {
	t.Helper()
	p := d.start(t, d.file, servers, fmt.Sprint(timeout.Milliseconds()))
	p.Ok()
	return p
}

// everywhere runs f for every driver in every place.
func everywhere(t *testing.T, f func(t *testing.T, d driver, servers string)) {
	for _, p := range places() {
		for _, d := range drivers {
			t.Run(p.name+"/"+d.name, func(t *testing.T) { f(t, d, p.servers(t)) })
		}
	}
}

// fresh returns a path that no other test uses, made by p.
func fresh(p *interop.Program) string {
	return p.Do("create /interop- x s")
}

// check compares an answer with what it must be.
func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
