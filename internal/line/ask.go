package line

import (
	"context"

	"github.com/zsync/zsync/internal/session"
)

// Whoever comes behind one of another session does not know what has become of those further
// ahead, and lists the line: of ten thousand each hand-over is told ten thousand names. So
// of a line that is long a view tells the names of those alone that it takes to be ahead,
// and asks after them. They have nearly always gone. A name never comes back, so that each of
// them is gone is told for good, whenever it is told; and as nobody can come to stand ahead of
// one who is there, that all have gone makes it his turn.

// ask asks, in one round trip, after those whom v takes to be ahead of me in dir. alone says
// that all of them have gone; if not, or if they are too many, the line must be listed.
//
// proof is the connection that has told of the last one. That the znode of me stood
// then is seen by its watch, which has not fired; that it stands when all others
// have gone is seen so too if the answer came over the same connection. Otherwise there is
// no proof any more, and who asks must look.
func (v *view) ask(ctx context.Context, dir int64, me Child, proof int64) (alone bool, _ int64, err error) {
	switch asked, err := v.askAhead(ctx, dir, me); {
	case err != nil:
		return false, 0, err
	case !asked:
		return false, proof, nil
	}
	if v.inc.Watches.Connection() != proof {
		proof = 0
	}
	return v.nobodyAhead(dir, me), proof, nil
}

// askAhead strikes off those ahead of me in dir that have gone, without listing the line. It
// reports false if that is not to be known so.
func (v *view) askAhead(ctx context.Context, dir int64, me Child) (bool, error) {
	names, size := v.aheadOf(dir, me), 0
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = session.ChildPath(v.key.dir, name)
		size += len(paths[i]) + 16
	}
	if len(names) == 0 || size > session.MaxPacket/2 { // the servers would not take it
		return false, nil
	}
	missing, err := v.inc.Missing(ctx, paths)
	if err != nil || missing == nil {
		if session.OutcomeOf(err) == session.Answered {
			err = nil // refused, or the servers are too old; a listing may not be
		}
		return false, err
	}
	for i, is := range missing {
		if c, ok := ParseChild(names[i], v.bases()...); ok && is {
			v.gone(dir, spotOf(c))
		}
	}
	return true, nil
}
