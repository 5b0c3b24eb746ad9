package zsync

import (
	"context"
	"fmt"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/trace"
	"github.com/zsync/zsync/internal/znodes"
)

// A Mutex is a mutual exclusion lock that processes share by its path:
//
//	m := zsync.NewMutex(s, "/locks/accounts")
//	err := m.Do(ctx, func(ctx context.Context) error { … }) // ctx ends if the lock is lost
//	err = m.Lock(ctx)                                       // or, as with sync.Mutex, this, and then
//	err = m.Unlock()
//
// At most one live session holds it. Waiters are served in the order in which the servers stored
// them. Goroutines that use one *Mutex share one place ([WithHandoffs]). The n'th Unlock
// synchronizes before the m'th Lock for n < m.
//
// # Loss
//
// If the session ends, or another client deletes the znode, the Mutex is lost and another process
// may hold it. Unlock a lost Mutex, too: until then, Lock waits, so two goroutines with one *Mutex
// never work at once. Lock returns [ErrDeadlock] if the lost hold is not of a Do, and no Unlock
// comes within one to two session timeouts.
//
// # Cost
//
// Lock of a free Mutex and Unlock take 1 round trip each. A handoff to another process takes 1, and
// a handoff between goroutines of one *Mutex none.
//
// # Znodes
//
// A contender is path/_c_<uuid>-lock-<seq>, as in Curator (docs/interop.md).
type Mutex struct{ localLock }

// NewMutex returns the Mutex at path.
func NewMutex(s *Session, path string, opts ...LockOption) *Mutex {
	c := newSetup(opts)
	c.err = checkNew(s, path, c.err)
	return newMutex(s, path, c)
}

func newMutex(s *Session, path string, c setup) *Mutex {
	m := new(Mutex)
	ln := m.init(s, path, c, "mutex", "lock", "lock-")
	ln.Settled, ln.Kind = true, trace.Mutex
	return m
}

// Lock locks m. It waits until m is free, ctx ends, or the Session is closed.
func (m *Mutex) Lock(ctx context.Context) error {
	_, _, err := m.acquire(ctx, lock.Exclusive, false)
	return opError("lock", m.path, err)
}

// TryLock tries to lock m and reports whether it succeeded. It waits for the servers, not for a
// holder. If m may be unused but retained, TryLock waits up to half a second. A lock unlocked
// before the call counts as free.
func (m *Mutex) TryLock(ctx context.Context) (bool, error) {
	g, err := m.try(ctx, lock.Exclusive)
	return g != nil, opError("trylock", m.path, err)
}

// Unlock unlocks m. After [ErrLost], nothing is left to unlock.
func (m *Mutex) Unlock() error { return opError("unlock", m.path, m.release(lock.Exclusive)) }

// Revoke asks m's holder to release m: the holder's [Mutex.Revoked] is closed. The holder decides;
// later holders are not asked. To release a place that is only retained, Revoke joins the line for
// up to half a second. Without a holder, it returns [ErrNotLocked]. The owner in the znode becomes
// __REVOKE__.
func (m *Mutex) Revoke(ctx context.Context) (err error) {
	defer m.wrap("revoke", &err)
	holder, open := "", false // the holder stays the same in a later session: it may have been asked already
	return m.during(ctx, func(inc *session.Incarnation) (err error) {
		if holder == "" {
			if holder, err = m.local.Line.First(ctx, inc, inc.NamesFresh); err != nil {
				return err
			}
		}
		if holder == "" {
			return ErrNotLocked
		}
		if recalled, err := m.local.Line.Recall(ctx, holder); recalled || err != nil {
			return err
		}
		// Names of znodes are unique, so a repeated write can only reach the same holder.
		err = inc.Repeat(ctx, func() error {
			_, err := session.Attempt(ctx, inc, session.SetCall(znodes.ChildPath(m.local.Line.Dir, holder), []byte(lock.RevokeMessage), -1))
			open = open || session.OutcomeOf(err) == session.Unknown
			return err
		})
		switch {
		case session.IsNoNode(err):
			return nil // the holder has released m already
		case open && err != nil && session.OutcomeOf(err) == session.Answered:
			return fmt.Errorf("the holder may have been asked: %v", err) // %v: only the last attempt was refused
		}
		return err
	})
}

// Revoked returns a channel that is closed if there is no hold, and when [Mutex.Revoke] or
// Curator's Revoker asks the present holder to release m. From then on, the goroutines of the
// process no longer hand m over.
func (m *Mutex) Revoked() <-chan struct{} {
	g, err := m.current(nil)
	if err != nil {
		return session.ClosedChan
	}
	return g.Claim.Asked()
}

// Do runs f while it holds m, and returns f's error, the error of the release, or both joined. f's
// context ends with cause [ErrLost] after a loss, and [ErrClosed] at [Session.Close], which waits
// for f. Return soon from f then.
//
// Do is reentrant through its context: with a ctx from Do of the same path, it runs f at once, and
// returns ErrLost or [ErrNotLocked] if the outer hold is over by the time f returns. If f panics,
// Do unlocks m and panics. After the end of ctx, it unlocks in the background if need be.
func (m *Mutex) Do(ctx context.Context, f func(ctx context.Context) error) error {
	return m.do(ctx, "do", lock.Exclusive, f)
}
