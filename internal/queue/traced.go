package queue

import (
	"slices"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
)

// A claimTrace writes the claims of one claimant to the trace, a line for all
// elements of one transaction.
type claimTrace struct {
	inc       *session.Incarnation // nil: nothing is written
	dir, guid string
}

func (t claimTrace) on() bool { return t.inc != nil }

func (t claimTrace) line(event string, keys []string) trace.Line {
	l := t.inc.TraceLine(event, trace.Element, t.dir, "")
	l.Claim, l.Elements = t.guid, keys
	return l
}

// write writes l, of the transaction zxid itself, or, with 0, of one that is not
// known.
func (t claimTrace) write(l trace.Line, zxid int64) {
	l.Zxid, l.Blind = zxid, false
	t.inc.Manager.Trace.Line(l)
}

// granted tells that elements were claimed in transaction zxid.
func (t claimTrace) granted(keys []string, zxid int64) { t.write(t.line(trace.Grant, keys), zxid) }

// settled tells what has become of elements in transaction zxid, by fate.
func (t claimTrace) settled(keys map[string][]string, zxid int64) {
	for _, fate := range []string{trace.Removed, trace.Returned, trace.Delayed, trace.Buried, trace.Missing} {
		if keys[fate] != nil {
			l := t.line(trace.Release, keys[fate])
			l.Fate = fate
			t.write(l, zxid)
		}
	}
}

// lost tells that the claims of elements are lost. What has been decided before is
// still carried out, unless others have taken it.
func (t claimTrace) lost(keys []string, why error) {
	if len(keys) > 0 {
		slices.Sort(keys)
		t.inc.Manager.Trace.Line(t.inc.Manager.TraceLoss(t.line(trace.Loss, keys), why))
	}
}
