// Package inside lets tests outside of the root see what the public API does not show. The
// suites of a mechanism use it; those of a guarantee may not
// (TestTheSuitesUseThePublicAPIAndSayWhatTheyHold).
package inside

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/session"
)

// Manager returns the manager of s.
func Manager(s *zsync.Session) *session.Manager { return field[session.Manager](s, "m") }

// Live returns the present incarnation of s.
func Live(t testing.TB, s *zsync.Session) *session.Incarnation {
	t.Helper()
	inc, err := Manager(s).Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return inc
}

// Double returns the double barrier of wg.
func Double(wg *zsync.WaitGroup) *double.Barrier { return field[double.Barrier](wg, "double") }

// Session returns the Session of a primitive.
func Session(primitive interface{ Path() string }) *zsync.Session {
	return field[zsync.Session](primitive, "s")
}

// field returns the pointer to a T in a field of what v points to.
func field[T any](v any, name string) *T {
	f := reflect.ValueOf(v).Elem().FieldByName(name)
	if !f.IsValid() || f.Type() != reflect.TypeFor[*T]() {
		panic(fmt.Sprintf("%T has no field %s of type %v", v, name, reflect.TypeFor[*T]()))
	}
	return (*T)(f.UnsafePointer())
}
