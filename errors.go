package zsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/queue"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
	"github.com/zsync/zsync/internal/znodes"
)

// The errors of this package, for [errors.Is]. docs/errors.md explains each.
var (
	ErrLost            = session.ErrLost                 // a hold has ended without a release, or could have: a [*LostError]
	ErrClosed          = session.ErrClosed               // the Session was closed
	ErrNotLocked       = lock.ErrNotLocked               // this value has no hold that the call could release or use
	ErrDeadlock        = lock.ErrDeadlock                // the call would wait for its own caller, or for a lost hold that this process has not released
	ErrMixed           = znodes.ErrMixed                 // the path has another use, or the servers could remove data stored there
	ErrFull            = queue.ErrFull                   // TrySend found no room
	ErrNegativeCounter = tally.ErrNegativeCounter        // more tasks of a WaitGroup were ended than added
	ErrPanicked        = errors.New("function panicked") // the function of a Once panicked
	ErrNoLeader        = errors.New("no leader")         // no candidate leads now
	ErrNoCandidate     = errors.New("no such candidate") // the process is not, or no longer, a candidate
	ErrNoValue         = errors.New("no value")          // nothing is stored
	ErrTooLarge        = session.ErrTooLarge             // a request, or the end of the session, would exceed ZooKeeper's packet limit of 1 MiB; nothing was sent
	ErrUnprotected     = session.ErrUnprotected          // an existing znode has a wider ACL than [WithACL] allows
	ErrInvalid         = session.ErrInvalid              // an argument breaks a rule, which the message names; zsync changed nothing
)

// A WaitError describes a wait that ended without a grant, because its context ended or the Session
// was closed. Lock, RLock, Acquire, Campaign, Do, Run and [LockAll] return it; it wraps the
// context's error.
//
//	var w *zsync.WaitError
//	if errors.As(err, &w) {
//		log.Printf("gave up after %v, %d ahead, held by %s", w.Waited, w.Place, w.Behind.Owner)
//	}
//
// Owner, Session and Since of Behind are known after a second, or at once if the same Mutex or
// Election holds. In a longer wait, they are read again.
type WaitError struct {
	Behind Contender     // the holder; for permits, the first waiter or, if the caller is the first, a holder
	Place  int           // number of contenders ahead, including Behind; 0 if the caller had no place in the line
	Waited time.Duration // how long the caller waited
	err    error
}

// Error returns how long the wait was, the holder, and why the wait ended.
func (e *WaitError) Error() string {
	who, state := "", "behind"
	if e.Behind.Holding {
		state = "held by"
	}
	switch {
	case e.Place == 0 && e.err == ErrClosed:
		return e.err.Error()
	case e.Place == 0:
	case e.Behind.Owner == "":
		who = fmt.Sprintf(", %d ahead, %s znode %s", e.Place, state, e.Behind.Node)
	default:
		who = fmt.Sprintf(", %d ahead, %s %s (znode %s)", e.Place, state, e.Behind.Owner, e.Behind.Node)
	}
	return fmt.Sprintf("waited %v%s: %v", e.Waited.Round(time.Millisecond), who, e.err)
}

// Unwrap returns the error of the context, with its cause, or [ErrClosed].
func (e *WaitError) Unwrap() error { return e.err }

// waitEnded returns a WaitError for a wait since start, if ctx or the Session ended the wait.
// It returns any other err unchanged.
func waitEnded(ctx context.Context, m *session.Manager, err error, start time.Time, behind Contender, place int) error {
	if err == nil || ctx.Err() == nil && m.Failure() == nil {
		return err
	}
	if _, said := err.(*WaitError); said { // err itself, because a WaitError inside err may be the cause of ctx
		return err
	}
	return &WaitError{Behind: behind, Place: place, Waited: time.Since(start), err: m.Explained(ctx, err)}
}

// The function `waited` returns err. If ctx has ended the wait since start, it adds how long the wait
// was, and whether a server answered.
func waited(ctx context.Context, m *session.Manager, start time.Time, err error) error {
	lasted := time.Since(start).Round(time.Millisecond)
	if err == nil || lasted == 0 || ctx.Err() == nil || !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx)) {
		return err
	}
	err = m.Explained(ctx, err)
	if context.Cause(ctx) != ctx.Err() {
		return err // the text of the cause is enough
	}
	return fmt.Errorf("waited %v: %w", lasted, err)
}

// firstAhead describes the contender for which a caller waits, as a holder in the given mode. If it
// is unknown, firstAhead returns the zero Contender.
func firstAhead(b lock.Behind, mode Mode) Contender {
	if b.Name == "" {
		return Contender{}
	}
	return contenderOf(b.Name, b.Node, mode, true)
}

// opError adds the operation and the path to err, unless err is nil or has them already.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok {
		return err
	}
	if words := releases[op]; err == ErrNotLocked && words != "" {
		err = session.Worded(words, err)
	}
	return &Error{Op: op, Path: path, Err: err}
}

// The map `releases` has other texts for ErrNotLocked, which fit permits, leaderships, memberships
// and claims.
var releases = map[string]string{
	"resign": "not held", "transfer": "not held", "release": "not held", "leave": "not entered, or already left",
	"ack": "already settled", "nack": "already settled", "reject": "already settled", "return": "already settled",
	"wait": "the lock L is not locked",
}

// An Error has the operation that failed, its path and the reason.
type Error struct {
	Op   string // the operation, such as "lock"
	Path string // the path of the primitive; empty for the session itself
	Err  error  // the reason
}

// Error returns a text such as "zsync: lock /locks/backup: lost: …".
func (e *Error) Error() string {
	text := "zsync: " + strings.TrimSuffix(e.Op+" "+e.Path, " ") + ": "
	switch {
	case errors.Is(e.Err, zk.ErrInvalidACL):
		text += "the servers refuse the ACL of a new znode (see WithACL): "
	case errors.Is(e.Err, zk.ErrNoAuth) && !errors.Is(e.Err, ErrUnprotected):
		text += "no permission (see WithAuth, and the ACLs of the path): "
	}
	text += e.Err.Error()
	if lost, ok := e.Err.(*LostError); ok && lost.Reason != LossClosed {
		text += "; another process may hold it now"
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// A LostError describes the loss of a hold. [errors.Is] finds [ErrLost] in it. [errors.As] finds a
// LostError in errors, causes of contexts and an [Event].
type LostError struct {
	Reason  LossReason
	Session int64     // the ZooKeeper session through which it was held
	Since   time.Time // when the loss was found; after a pause of the process, when it could have been found
	Err     error     // the reason for a LossGivenUp, such as the error that WithHealth's function returned
}

// Error returns the reason in words: "lost: the session has expired".
func (e *LostError) Error() string {
	if e.Err != nil {
		return "lost: " + e.Reason.String() + ": " + e.Err.Error()
	}
	return "lost: " + e.Reason.String()
}

// Is reports whether target is ErrLost, or ErrClosed after a LossClosed.
func (e *LostError) Is(target error) bool {
	return target == ErrLost || target == ErrClosed && e.Reason == LossClosed
}

// A LossReason is the reason of a loss.
type LossReason int

const (
	LossExpired   LossReason = iota + 1 // the servers have ended the session
	LossCutOff                          // no server confirmed the session in time; the session may have ended, or will end soon
	LossPaused                          // like LossCutOff, but after a pause of the process or machine; another process may have got a hold since
	LossReplaced                        // a server has replaced the session by another
	LossDeleted                         // another client has deleted the znode of the hold
	LossClosed                          // the Session was closed, or has failed for good
	LossSuspended                       // the connection dropped, and WithLossOnSuspend counts that as a loss
	LossGivenUp                         // WithMaxHold or WithHealth ended the hold, or the servers refused to delete a znode of the session
)

// The map `lossTexts` has the text of each reason, and one word that never changes.
var lossTexts = map[LossReason][2]string{
	LossExpired:   {"the session has expired", "expired"},
	LossCutOff:    {"the session was not confirmed in time", "cut-off"},
	LossPaused:    {"the process or its machine was stopped for too long", "paused"},
	LossReplaced:  {"the session was replaced without notice", "replaced"},
	LossDeleted:   {"the znode was deleted", "deleted"},
	LossClosed:    {"the session was closed", "closed"},
	LossSuspended: {"the connection dropped", "suspended"},
	LossGivenUp:   {"given up", "given-up"},
	0:             {"for a reason that is not known", "unknown"},
}

// String returns the reason in words.
func (r LossReason) String() string {
	return cmp.Or(lossTexts[r][0], fmt.Sprintf("LossReason(%d)", int(r)))
}

// MarshalText returns the reason as one word that never changes, for metrics.
func (r LossReason) MarshalText() ([]byte, error) {
	return []byte(cmp.Or(lossTexts[r][1], lossTexts[0][1])), nil
}

// lossWord returns the reason of a loss as one word, and the time from which the hold was not valid.
func lossWord(err error) (string, time.Time) {
	lost := new(LostError)
	if !errors.As(err, &lost) && errors.Is(err, ErrClosed) {
		lost.Reason = LossClosed
	}
	word, _ := lost.Reason.MarshalText()
	return string(word), lost.Since
}

func lostError(why session.LossCause, session int64, since time.Time, cause error) error {
	return &LostError{Reason: LossReason(why), Session: session, Since: since, Err: cause}
}
