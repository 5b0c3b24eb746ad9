package queue

import "testing"

func FuzzQueueNames(f *testing.F) {
	f.Add("b-00007-0000000042", 7, int64(42), "e-0000000001")
	f.Add("d-00000-0000000012", 0, int64(12), "t0001700000000-0000000001")
	f.Add("dead-3-0123456789abcdef-0000000001", 3, int64(1), "48e50edc-09ec-4785-b44e-13769185aea0-live")
	f.Add("entry-100-0000000001", 1, int64(9), "queue-0000000001")
	f.Fuzz(func(t *testing.T, name string, prio int, number int64, child string) {
		if prio >= 0 && number >= 0 {
			b, ok := parseBucket(bucketName(prio, number))
			if !ok || b.prio != prio || b.number != number || b.delayed {
				t.Errorf("bucket %d, %d is read as %+v, %v", prio, number, b, ok)
			}
		}
		for _, b := range parseBuckets([]string{name, child, "d-00001-0000000000", "b-00001-0000000000"}) {
			es := parseElements(b, []string{name, child, "e-0000000002", "t0000000000001-0000000003"})
			if len(es) > 4 || b.prio < 0 || b.number < 0 {
				t.Errorf("%+v: %+v", b, es)
			}
		}
		parseDead(name)
		parseBoard([]byte(name + "\n" + child)).marshal()
	})
}
