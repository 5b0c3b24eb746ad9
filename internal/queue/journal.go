package queue

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	txns "github.com/zsync/zsync/internal/txn"
)

// A journal has transactions applied exactly once, whatever happens to their
// replies and to the session. It is a persistent znode that only its owner
// writes, and every transaction writes it: it expects the version that the one
// before has left, and counts up the serial in the data. So
//
//   - sent again after it was applied it fails with BadVersion, and an attempt of
//     a former session that comes late fails likewise;
//   - if it fails for another reason while an attempt without a reply is open, the
//     journal is written without the transaction, at the same version. One of the
//     two is applied and not the other, and the serial says which, however often
//     the replies are lost, because refusals come in the servers' one order: what
//     is read after one knows of every attempt before;
//   - whoever takes over what the owner had writes the journal too, and leaves the
//     serial as it is. So the owner learns both whether its last transaction
//     was applied and that it is the last.
//
// While an attempt is open only the same operations are sent again. One
// transaction is on its way at a time; the methods belong to one goroutine.
type journal struct {
	m       *session.Manager
	vet     func(ctx context.Context, inc *session.Incarnation) error // of what it writes to, before anything is applied
	path    string
	mark    string               // an ephemeral znode that is made with the journal in home, or empty
	home    *session.Incarnation // whose session mark belongs to
	made    bool                 // certainly
	marked  bool                 // and the mark
	bare    bool                 // it was there without the mark for a while
	version int32
	kept    record    // as it was written last
	open    bool      // an attempt without a reply may have been applied, or may be yet
	sent    time.Time // when the first of these attempts was made
	last    *session.Incarnation
	moved   bool  // an attempt was open when its session ended
	zxid    int64 // of the last transaction; 0 if that is not known
}

// A transaction is what a journal applies.
type transaction struct {
	kept  record // what the journal is to hold, but for the serial
	steps []step
}

// A step is an operation of a transaction.
type step struct {
	op   any
	cure cure
}

// A cure is told why the servers have refused a step, and that nothing was applied. If
// it returns nil the transaction is built and sent again, and otherwise its error is
// that of the transaction.
type cure func(inc *session.Incarnation, err error) error

func incurable(_ *session.Incarnation, err error) error { return err }

// when is the cure, which f is, of some errors.
func when(is func(err error) bool, f func(inc *session.Incarnation) error) cure {
	return func(inc *session.Incarnation, err error) error {
		if is(err) {
			return f(inc)
		}
		return err
	}
}

// outrun reports whether somebody else was quicker: a znode is gone, or has been written.
func outrun(err error) bool { return session.IsNoNode(err) || session.IsBadVersion(err) }

// errTaken means that others have taken over what the journal's owner had, or
// have deleted the journal. applied tells whether the last transaction is
// certainly among what was applied, and unapplied whether it is certainly not.
type errTaken struct{ applied, unapplied bool }

func (errTaken) Error() string { return "zsync: the journal was taken over" }

// apply applies the transaction that build returns: it may be called several
// times, and with nil operations nothing is done. An error that is no answer of the
// servers leaves the outcome open: then nothing more can be applied before settle,
// or apply with the same transaction, has found out. rs are nil if the reply was
// lost.
func (j *journal) apply(ctx context.Context, build func(inc *session.Incarnation) (*transaction, error)) (rs []zk.MultiResponse, err error) {
	var t *transaction
	err = j.m.During(ctx, func(inc *session.Incarnation) (err error) {
		j.enter(inc)
		if j.vet != nil && !j.open {
			if err := j.vet(ctx, inc); err != nil {
				return err
			}
		}
		for try := 0; ; {
			if !j.open {
				if t, err = build(inc); err != nil || t == nil {
					return err
				}
				if err = session.CheckSize(j.ops(inc, t)); err != nil {
					return err
				}
				j.sent = time.Now()
			}
			// Late it is not sent again: it would make the journal again, if that was swept.
			if err = zk.ErrNodeExists; !j.late() {
				rs, err = inc.AttemptMulti(ctx, j.ops(inc, t))
			}
			if err == nil {
				if j.made {
					j.version++
				}
				j.done(t)
				j.zxid = zxidOf(rs)
				rs = rs[len(rs)-len(t.steps):]
				return nil
			}
			if session.OutcomeOf(err) != session.Answered {
				// An attempt that was not sent is taken for open as well:
				// sending the same again is right for both.
				j.open = true
				if errors.Is(err, session.ErrEnded) || ctx.Err() != nil {
					return err
				}
				if err := inc.Pause(ctx, try); err != nil {
					return err
				}
				try++
				continue
			}
			answer := rs
			if rs = nil; !j.open {
				if err := j.refused(ctx, inc, t, answer, err); err != nil {
					return err
				}
				continue
			}
			applied, err := j.settle(ctx, inc)
			switch {
			case err != nil:
				return err
			case applied:
				j.done(t)
				return nil
			}
			// Refused again, it is certain that nothing was applied.
		}
	})
	return rs, err
}

// late reports whether an open attempt that makes the journal is so old that somebody may have
// swept what it has made.
func (j *journal) late() bool { return j.open && !j.made && session.Late(j.sent) }

// commit applies ops in one transaction, exactly once, for who has no journal.
func (q site) commit(ctx context.Context, ops []any) ([]zk.MultiResponse, error) {
	return txns.Across(ctx, q.m, q.receipts, ops)
}

// zxidOf returns the transaction of rs, or 0 if no response tells it.
func zxidOf(rs []zk.MultiResponse) int64 {
	for _, r := range rs {
		if r.Stat != nil && r.Stat.Mzxid != 0 {
			return r.Stat.Mzxid
		}
	}
	return 0
}

// enter is told in which session attempts are made from here on.
func (j *journal) enter(inc *session.Incarnation) {
	j.moved = j.moved || j.open && j.last != inc
	j.last = inc
}

// ops returns a transaction with what the journal adds.
func (j *journal) ops(inc *session.Incarnation, t *transaction) (ops []any) {
	next := t.kept
	next.serial = j.kept.serial + 1
	acl := j.m.Config.ACL
	if j.made {
		ops = append(ops, &zk.SetDataRequest{Path: j.path, Data: next.marshal(), Version: j.version})
	} else {
		ops = append(ops, &zk.CreateRequest{Path: j.path, Data: next.marshal(), Acl: acl})
	}
	if j.mark != "" && !j.marked && inc == j.home {
		ops = append(ops, &zk.CreateRequest{Path: j.mark, Data: j.m.Owner, Acl: acl, Flags: zk.FlagEphemeral})
	}
	for _, s := range t.steps {
		ops = append(ops, s.op)
	}
	return ops
}

// done notes that a transaction was applied.
func (j *journal) done(t *transaction) {
	serial := j.kept.serial + 1
	j.made, j.marked, j.open = true, true, false
	j.kept = t.kept
	j.kept.serial = serial
}

// refused is told that the servers have refused an attempt, while none is open. Another
// is to be made if it returns nil.
func (j *journal) refused(ctx context.Context, inc *session.Incarnation, t *transaction, rs []zk.MultiResponse, err error) error {
	i := session.FailedOp(rs)
	own := len(rs) - len(t.steps) // what the journal has added
	switch {
	case i >= own && i >= 0:
		return t.steps[i-own].cure(inc, err)
	case i == 0 && j.made && outrun(err):
		return errTaken{unapplied: true} // no attempt is open
	case i >= 0 && session.IsNoNode(err):
		return j.makeDirs(ctx, inc)
	case i == 0 && !j.made && session.IsNodeExists(err):
		return errTaken{unapplied: true} // somebody plays with names that are unique
	}
	return err
}

// settle finds out whether an open attempt was applied, and sees to it that
// otherwise it never is. What the servers refuse it tries again until the session
// ends: nothing can be applied before it is known. Of an attempt that is late it is
// known if the journal is there, as only that has made it.
func (j *journal) settle(ctx context.Context, inc *session.Incarnation) (applied bool, err error) {
	for try := 0; ; try++ {
		late := j.late()
		version, err := int32(0), zk.ErrNodeExists
		if !late {
			version, err = j.write(ctx, inc)
		}
		if err == nil {
			j.bare = j.bare || !j.marked
			j.made, j.version, j.open = true, version, false
			return false, nil
		}
		if session.IsBadVersion(err) || session.IsNodeExists(err) {
			var data []byte
			var stat *zk.Stat
			if data, stat, err = inc.GetFresh(ctx, j.path); err == nil {
				r := parseRecord(data)
				applied = r.serial > j.kept.serial
				j.bare = j.bare || !j.marked && !applied
				j.made, j.version, j.open, j.zxid = true, stat.Version, false, stat.Mzxid
				if r.givenBack {
					return applied, errTaken{applied, !applied}
				}
				return applied, nil
			}
		}
		switch {
		case session.IsNoNode(err) && (j.made || late):
			j.open = false // nothing can be applied any more, by a session that is over
			return false, errTaken{}
		case session.OutcomeOf(err) != session.Answered:
			return false, err
		}
		if err := inc.Pause(ctx, try+1); err != nil {
			return false, err
		}
	}
}

// write writes the journal as it was, without a transaction.
func (j *journal) write(ctx context.Context, inc *session.Incarnation) (version int32, err error) {
	if j.made {
		stat, err := inc.Set(ctx, j.path, j.kept.marshal(), j.version)
		if err != nil {
			return 0, err
		}
		return stat.Version, nil
	}
	created, err := inc.CreateIn(ctx, dirOf(j.path), j.path, j.kept.marshal())
	if err == nil && !created {
		err = zk.ErrNodeExists
	}
	return 0, err
}

// dirOf is the directory of a znode of ours.
func dirOf(path string) session.Dir { return session.Dir{Path: session.ParentPath(path)} }

func (j *journal) makeDirs(ctx context.Context, inc *session.Incarnation) error {
	if err := inc.MakeDir(ctx, dirOf(j.path)); err != nil || j.mark == "" {
		return err
	}
	return inc.MakeDir(ctx, dirOf(j.mark))
}
