// Package inside lets tests in other packages use unexported fields of the root
// package. It serves the suites of a mechanism. The suites of a guarantee must not use
// it (TestTheSuitesUseThePublicAPIAndSayWhatTheyHold).
package inside

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/suite"
)

// Manager returns the manager of s.
func Manager(s *zsync.Session) *session.Manager { return field[session.Manager](s, "m") }

// Live returns the current incarnation of s.
func Live(t testing.TB, s *zsync.Session) *session.Incarnation {
	t.Helper()
	inc, err := Manager(s).Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inc
}

// Double returns the double barrier of wg.
func Double(wg *zsync.WaitGroup) *double.DoubleBarrier {
	return field[double.DoubleBarrier](wg, "double")
}

// Session returns the Session of a primitive.
func Session(primitive interface{ Path() string }) *zsync.Session {
	return field[zsync.Session](primitive, "s")
}

// SemaphoreZnodes returns the parent znode of the permits of m, and the parent znode of
// the waiters for the internal lock of m.
func SemaphoreZnodes(m *zsync.Semaphore) (leases, gate string) {
	v := reflect.ValueOf(m).Elem().FieldByName("dir").FieldByName("Path")
	if v.Kind() != reflect.String {
		panic("the field dir of a Semaphore has no field Path of type string")
	}
	return Manager(Session(m)).Bare(v.String()), field[zsync.Mutex](m, "gate").Path()
}

// Leases returns the names of the znodes of m's permits.
func Leases(t testing.TB, m *zsync.Semaphore) []string {
	t.Helper()
	leases, _ := SemaphoreZnodes(m)
	return suite.ChildrenOf(t, Session(m), leases)
}

// The function `field` returns a field of the struct at v, by the field's name. The field is a
// pointer to a T.
func field[T any](v any, name string) *T {
	f := reflect.ValueOf(v).Elem().FieldByName(name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[*T]() {
		panic(fmt.Sprintf("%T has no field %s of type %v", v, name, reflect.TypeFor[*T]()))
	}
	return (*T)(f.UnsafePointer())
}
