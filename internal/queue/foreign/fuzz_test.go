package foreign

import (
	"bytes"
	"testing"
)

func FuzzForeignNames(f *testing.F) {
	f.Add("entry-100-0000000001", "queue-0000000001")
	f.Fuzz(func(t *testing.T, name, child string) {
		for _, layout := range formats {
			layout.elements([]string{name, child})
			layout.open([]byte(name))
		}
	})
}

func FuzzCuratorFrame(f *testing.F) {
	f.Add([]byte("hello"))
	f.Add(curatorFrame([]byte("x")))
	f.Add([]byte{0, 1, 0, 1, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := curatorOpen(curatorFrame(data))
		if err != nil || len(all) != 1 || !bytes.Equal(all[0], data) {
			t.Errorf("%q comes back as %q, %v", data, all, err)
		}
		curatorOpen(data)
	})
}
