package zsync

import (
	"context"
	"math"
	"time"

	"github.com/zsync/zsync/internal/double"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/tally"
)

// A WaitGroup waits for tasks to end, across processes: [WaitGroup.Add] says
// how many there are, [WaitGroup.Done] is called by whoever has ended one, in
// whichever process, and [WaitGroup.Wait] returns when none is open. With
// nothing added Wait returns at once.
//
//	err := wg.Go(ctx, func() { … }) // Add, and Done at its end
//	err := wg.Wait(ctx)             // here, or in another process
//
// Its other face is a double barrier, with which parties begin and end a piece
// of work together: see [WaitGroup.Enter] and [WaitGroup.Leave]. The two faces
// do not affect each other, even on one path.
//
// Every change of the counter is applied exactly once, even if connections
// drop, and the counter never goes below zero. A Wait sees every Add that
// returned before it began, in whichever process. As in sync, Add calls for the
// next set of tasks must wait until the Waits for the last one have returned,
// or these wait for both. In the terminology of the Go memory model, Done
// synchronizes before the Wait that it lets return, for callers in one process.
//
// # Loss
//
// A task belongs to the session that added it. When that session ends its
// tasks end with it, and no Wait hangs on the dead: whoever added them and
// lives on gets [ErrLost] from Done for each, which then ends no other task.
// Tasks have no names, so this takes for granted that a process which adds
// tasks and loses its session is the one that would have ended them. Where one
// process adds tasks for others to end, [WithPersistentTasks] keeps them. A
// Wait outlives a session.
//
// # Errors
//
// Add and Done return [ErrNegativeCounter] if the counter would become
// negative, and leave it as it is. Done returns ErrLost if the task ended with
// the session in which this process added it.
//
// # Znodes
//
// Each session that has open tasks writes one ephemeral znode,
// path/_c_<uuid>-tasks, whose data is their number in ASCII; persistent tasks
// are written in the same way but into a persistent znode. A znode whose number
// comes down to zero is deleted. Receipts against lost replies are those of
// [Session.Txn], and the children of path-receipts. path is a container, and
// the servers remove it once it is empty.
//
// # Cost
//
// All Adds and Dones that goroutines of one process make while a request is
// under way go into the next one together. Such a request is 1 round trip; for
// persistent tasks there is 1 more in the background. A Done, or the part of one, that finds no
// open tasks of its own session ends those of another: that costs a sync, a
// listing and a read for every 128 sessions with open tasks besides. Wait costs
// 2 requests if nothing is open; otherwise that read and another listing, and
// one request, one watch and one notification for each session with open tasks,
// however many these are.
//
// # Algorithm
//
// ZooKeeper has no recipe for such a counter; the algorithm is zsync's own and
// stands with the code that follows it. That of the other face is "Double
// Barriers" from the recipes.
type WaitGroup struct {
	made
	tally  *tally.Tally
	double *double.Barrier
}

// A WaitGroupOption changes a WaitGroup.
type WaitGroupOption func(*waitGroupConfig)

type waitGroupConfig struct{ keep bool }

// WithPersistentTasks keeps the tasks that are added through this WaitGroup
// when the session that added them ends. They are open until somebody calls
// Done for each.
func WithPersistentTasks() WaitGroupOption { return func(c *waitGroupConfig) { c.keep = true } }

// NewWaitGroup returns the WaitGroup at path. It does no I/O; a bad argument is
// reported by every method.
func NewWaitGroup(s *Session, path string, opts ...WaitGroupOption) *WaitGroup {
	var c waitGroupConfig
	var err error
	for i, o := range opts {
		if o == nil {
			err = session.Invalid("WaitGroup option %d is nil", i)
			continue
		}
		o(&c)
	}
	wg := &WaitGroup{made: made{s: s, path: path}}
	if wg.err = checkNew(s, path, err); wg.err == nil {
		wg.tally = s.tallies.Of(s.m, s.m.Full(path), c.keep)
		wg.double = double.New(s.m, path, &s.leftovers)
	}
	return wg
}

// Path returns the path that wg was made with.
func (wg *WaitGroup) Path() string { return wg.path }

// Add adds delta, which may be negative, to the counter. If it would become
// negative the error is [ErrNegativeCounter] and the counter stays as it is.
// A negative delta may fail with [ErrLost]: see [WaitGroup].
//
// If ctx ends first, a positive delta is not added, or is taken back; a
// negative one whose request is under way may still be applied.
func (wg *WaitGroup) Add(ctx context.Context, delta int) error {
	return opError("add", wg.path, wg.add(ctx, delta))
}

func (wg *WaitGroup) add(ctx context.Context, delta int) error {
	switch {
	case wg.misuse() != nil:
		return wg.misuse()
	case delta > math.MaxInt32 || delta < -math.MaxInt32:
		return session.Invalid("delta %d is out of range; want at most %d tasks at once", delta, math.MaxInt32)
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	case delta == 0:
		return nil
	}
	return wg.tally.Add(ctx, delta)
}

// Done ends one task. It returns [ErrNegativeCounter] if none is open, and
// [ErrLost] if the task ended with the session that this process added it in.
//
// Done cannot fail to give up: if the connection is down, or no server answers
// within half a second, or the servers refuse it, it returns nil, and the Session
// ends the task as soon as it can; [Session.Close] waits for that, but for no longer
// than a second. It is [ErrInvalid], and nothing is ended, where another program's
// znode hides whether another session has an open task.
func (wg *WaitGroup) Done() error {
	if wg.misuse() != nil {
		return opError("done", wg.path, wg.misuse())
	}
	return opError("done", wg.path, wg.tally.Done(true))
}

// Go adds one task, calls f in a goroutine and ends the task when f returns,
// or as soon as the Session can. If the task cannot be added f is not called.
//
// If f panics the panic goes on, as in sync, and ends the process. The task is
// not ended first, so that no Wait takes it for done: it ends with the session.
func (wg *WaitGroup) Go(ctx context.Context, f func()) error {
	if wg.misuse() == nil && f == nil {
		return opError("go", wg.path, session.Invalid("the function is nil"))
	}
	if err := wg.add(ctx, 1); err != nil {
		return opError("go", wg.path, err)
	}
	go func() {
		defer func() {
			if x := recover(); x != nil {
				panic(x)
			}
			if err := wg.tally.Done(false); err != nil {
				wg.s.m.Log.Warn("zsync: task of Go", "path", wg.path, "err", err)
			}
		}()
		f()
	}()
	return nil
}

// Wait waits until no task is open. A ctx that has ended already fails even
// if none is. A Wait that fails leaves nothing behind. Where another program's
// znode stands among those with open tasks, Wait and Count are [ErrInvalid].
func (wg *WaitGroup) Wait(ctx context.Context) error {
	ctx, end := wg.tracers().waiting(ctx, "waitgroup", wg.path)
	err := wg.misuse()
	if err == nil {
		err = wg.tally.Wait(ctx)
	}
	end(err)
	return opError("wait", wg.path, err)
}

// Count returns how many tasks are open. While others change the counter all
// the time, so that no instant can be made out, it is the sum of what the
// sessions had one after another.
//
// It costs a sync, and twice a listing and a read for every 128 sessions with
// open tasks.
func (wg *WaitGroup) Count(ctx context.Context) (int, error) {
	if wg.misuse() != nil {
		return 0, opError("count", wg.path, wg.misuse())
	}
	total, err := wg.tally.Count(ctx)
	return total, opError("count", wg.path, err)
}

// Enter waits until n parties have entered and lets all n in together; it must
// be given the same n by all. Parties are goroutines of one process or of many,
// with one WaitGroup or with several. The party that comes next begins the next
// round, which is let in when it has n parties of its own.
//
// A party that dies, or whose Enter fails, before the round is let in does not
// count: the servers let a round in only if all n are there. (Who has died is
// known to the servers when its session has expired.) A party that dies later
// counts as having left. An Enter that waits while its session expires waits on
// in the next. What it has then is a membership that belongs to the session, and
// ends with it: Leave returns [ErrLost]. So it does for a party whose znode somebody has
// deleted while it waited: it may have been told that it is inside beside n others.
//
// When Enter returns an error the caller is not a member, and nothing of it is
// left. A different n than that of those who wait or are inside is
// [ErrInvalid].
//
// # Znodes
//
// Each party writes one ephemeral, sequential znode,
// path/parties/_c_<uuid>-<n>-party-<seq>, whose data is the owner in plain text
// ([WithOwner]), and each round one ephemeral znode path/keeper-<zxid>-<number>
// with the name of the party that keeps it. The data of path/parties is n and
// which parties are inside. path and path/parties are containers. Apache
// Curator's DistributedDoubleBarrier and kazoo's DoubleBarrier use other znodes
// and cannot share the path: their marker, by its nature, outlives the round
// that it belongs to.
//
// # Cost
//
// Enter costs 2 requests and one notification, and Leave the same. For each
// round come 2 more requests by the last who enters and, as its part of
// leaving, some to find the others gone: n-1 at most, in whatever order they
// leave, and far fewer for n beyond 20, where it may rarely be one more.
// Together that is at most 5 a party, and about 4.3 for n = 32. A round in which
// all come at once takes 5 round trips for n up to 8, and 6 for n = 32. Parties
// of the same Session share what they read, and after these nobody asks: they cost 2
// each, and 4 more a round.
//
// Where no answer comes within 2 ms, and n is at most 128, requests are spent to save
// round trips: a round takes 4, and at most 6 requests a party.
//
// A party that finds the containers missing, because nobody made them yet or because
// the servers have removed them empty, needs 2 to 4 more, and one more where no answer
// comes within 2 ms. Parties beyond n that wait for a later round are woken, and read
// the room, for each round before it. A party that waits for a second costs 1 request
// and one notification more: from then on it enters anew if somebody deletes its znode.
//
// # Algorithm
//
// The algorithm is "Double Barriers" from the ZooKeeper recipes with the rounds
// told apart.
func (wg *WaitGroup) Enter(ctx context.Context, n int) error {
	return opError("enter", wg.path, wg.enter(ctx, n))
}

func (wg *WaitGroup) enter(ctx context.Context, n int) error {
	if wg.misuse() != nil {
		return wg.misuse()
	}
	if err := wg.double.Check(n); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return session.CtxErr(ctx)
	}
	start := time.Now()
	traced := func() Op { return wg.s.tracers.traced("double barrier", "enter", wg.path) }
	end := wg.s.tracers.acquiring(ctx, traced)
	g, err := wg.double.Enter(ctx, n)
	wg.s.m.Waited("enter", wg.path, start, err)
	if err != nil {
		end("", err)
		return err
	}
	end(g.Name(), nil)
	wg.s.tracers.follow(ctx, traced, g)
	return nil
}

// Leave gives up a membership that Enter gave, and waits until all of that
// round have left. With several memberships, as goroutines that share wg have
// them, it is the earliest one.
//
// The membership is given up in any case, also if Leave fails. It returns
// [ErrNotLocked] if wg has no membership, [ErrLost] if the membership ended
// with its session before Leave, and the error of ctx if that ends while others
// are inside. Once it has left, Leave outlives a session. For the cost see
// [WaitGroup.Enter].
func (wg *WaitGroup) Leave(ctx context.Context) error {
	if wg.misuse() != nil {
		return opError("leave", wg.path, wg.misuse())
	}
	return opError("leave", wg.path, wg.double.Leave(ctx))
}

// Lost returns a channel that is closed when the membership is lost that
// [WaitGroup.Enter] has given wg, and that Leave would end next: the session has
// ended, or may have. While wg has none, the channel is closed already. It is
// not closed by Leave. The counter is nobody's, so it has no Lost.
func (wg *WaitGroup) Lost() <-chan struct{} {
	if wg.misuse() != nil {
		return session.ClosedChan
	}
	hold, _ := wg.double.Membership()
	if hold == nil || hold.Err() != nil {
		return session.ClosedChan
	}
	return hold.Lost()
}

// Contenders returns the parties of the double barrier, in their order: who is
// inside, which is Holding, and who waits to enter. It costs two requests and
// one read for every 128 of them.
func (wg *WaitGroup) Contenders(ctx context.Context) ([]Contender, error) {
	if wg.misuse() != nil {
		return nil, opError("contenders", wg.path, wg.misuse())
	}
	var out []Contender
	err := wg.s.m.During(ctx, func(inc *session.Incarnation) error {
		names, inside, err := wg.double.Parties(ctx, inc)
		if err == nil && len(names) > 0 {
			out, err = describe(ctx, inc, wg.double.Room(), names, func(i int) (Mode, bool) { return ModeParty, inside(i) })
		}
		if session.IsNoNode(err) {
			return nil // there is no room
		}
		return err
	})
	return out, opError("contenders", wg.path, err)
}
