package shared

import (
	"runtime"
	"testing"
	"weak"
)

// The type `owner` is like a Session: it has a map, and leads to a value of the map.
type owner struct {
	m    WeakMap[string, owned]
	used *owned
}

type owned struct{ by *owner }

func TestAMapIsFreedWithAValueToWhichItsOwnerLeads(t *testing.T) {
	freed := func() weak.Pointer[owner] {
		o := new(owner)
		o.used = o.m.Of("a", &owned{o})
		return weak.Make(o)
	}()
	for range 10 {
		if runtime.GC(); freed.Value() == nil {
			return
		}
	}
	t.Error("the owner remains in memory")
}
