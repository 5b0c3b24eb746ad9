package shared

import (
	"strconv"
	"testing"
)

func TestACacheRemembersTheLastKeysAndIsBounded(t *testing.T) {
	var c Cache[int]
	for i := range 10 * cacheSize {
		key := strconv.Itoa(i)
		if _, ok := c.Load(key); ok {
			t.Fatalf("%s is known before it was stored", key)
		}
		c.Store(key, i)
		if v, ok := c.Load(key); !ok || v != i {
			t.Fatalf("%s is %d, %v", key, v, ok)
		}
		if len(c.known) > cacheSize {
			t.Fatalf("%d keys", len(c.known))
		}
	}
	c.Store("a", 1)
	c.Delete("a")
	if _, ok := c.Load("a"); ok {
		t.Error("a was deleted")
	}
}
