package zsync

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"sync"
	"time"
)

// noCopy makes go vet report a copy of what contains it.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// made is what the constructor of every primitive is given.
type made struct {
	_    noCopy
	s    *Session
	path string
	err  error // of the constructor's arguments
}

// bad returns why a primitive cannot be used, if so.
func (m *made) bad() error {
	if m.s == nil && m.err == nil {
		return invalid("a zero value; every primitive is made by its New function, with a Session and a path")
	}
	return m.err
}

// A Locker is what can be locked and unlocked: [sync.Locker], with a context
// and errors.
type Locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// SyncLocker makes a [sync.Locker] of l, for code that wants one. Its Lock
// waits as long as ctx allows. Both methods panic with the error if l returns
// one, as sync does at misuse: check [Mutex.Lost] where a loss must be handled.
func SyncLocker(ctx context.Context, l Locker) sync.Locker { return &syncLocker{ctx, l} }

type syncLocker struct {
	ctx context.Context
	l   Locker
}

func (s *syncLocker) Lock() {
	if err := s.l.Lock(s.ctx); err != nil {
		panic(err)
	}
}

func (s *syncLocker) Unlock() {
	if err := s.l.Unlock(); err != nil {
		panic(err)
	}
}

// LockAll locks all of ls, or none. Whatever order they are given in, they are
// taken in one global order, that of their paths with the chroots, so that two
// callers never wait for each other. Each must have a method Path() string, as
// the lockers of this package have; a locker that is given twice is refused.
//
// unlock unlocks them all, in reverse, and returns the errors of those that
// could not be. A hold that is lost is told by the Lost of its locker, and by
// unlock; one that is lost while LockAll still waits for others is taken anew.
// When LockAll fails nothing stays locked; when ctx has ended it does not wait for
// servers that do not answer, and unlocks in the background. The errors are those of Lock,
// [ErrInvalid] and [ErrDeadlock] for what is given twice. It costs what the
// locks cost, one after the other.
func LockAll(ctx context.Context, ls ...Locker) (unlock func() error, err error) {
	sorted, err := inOrder(ls)
	if err != nil {
		return nil, err
	}
	locked := 0
	release := func() error {
		var errs []error
		for ; locked > 0; locked-- {
			if err := sorted[locked-1].Unlock(); err != nil {
				errs = append(errs, err)
			}
		}
		return joinErrors(errs)
	}
	lost := func(l orderedLocker) bool {
		h, ok := l.Locker.(interface{ Lost() <-chan struct{} })
		return ok && isClosed(h.Lost())
	}
	for {
		for _, l := range sorted {
			if err := l.Lock(ctx); err != nil {
				unlockSoon(ctx, release)
				return nil, err
			}
			locked++
		}
		// What was locked first may have been lost while the last was waited for.
		// Nobody has been told anything, so it is a wait that outlives its session.
		if !slices.ContainsFunc(sorted, lost) {
			return sync.OnceValue(release), nil
		}
		if !unlockSoon(ctx, release) {
			return nil, opError("lockall", "", ctxErr(ctx))
		}
	}
}

// unlockSoon unlocks, and reports whether that has been done. Once ctx has ended
// it is waited for no longer than grace, and goes on in the background.
func unlockSoon(ctx context.Context, unlock func() error) bool {
	done := make(chan error, 1)
	go func() { done <- unlock() }()
	_, ok := graced(done, ctx.Done())
	return ok
}

// An orderedLocker is a locker of LockAll and where it stands in the order.
type orderedLocker struct {
	Locker
	path string // the name to call it by
	full string // the path as the servers know it, if that is known
}

// inOrder sorts lockers by the paths that the servers know them by: what lies
// below different chroots has one order for everybody.
func inOrder(ls []Locker) ([]orderedLocker, error) {
	sorted := make([]orderedLocker, 0, len(ls))
	for i, l := range ls {
		p, ok := l.(interface{ Path() string })
		if v := reflect.ValueOf(l); ok && v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, opError("lockall", "", invalid("locker %d is nil", i))
		}
		if !ok {
			return nil, opError("lockall", "", invalid("locker %d is a %T, which has no method Path() string to order it by", i, l))
		}
		o := orderedLocker{Locker: l, path: p.Path(), full: p.Path()}
		if f, ok := l.(interface{ fullPath() string }); ok {
			o.full = f.fullPath()
		}
		sorted = append(sorted, o)
	}
	slices.SortStableFunc(sorted, func(a, b orderedLocker) int { return cmp.Compare(a.full, b.full) })
	for i := range sorted {
		if i > 0 && sorted[i].full == sorted[i-1].full {
			return nil, opError("lockall", sorted[i].path, invalid("the path is given twice: %w", ErrDeadlock))
		}
	}
	return sorted, nil
}

// fullPath returns the path as the servers know it.
func (m *made) fullPath() string {
	if m.s == nil {
		return m.path
	}
	return m.s.full(m.path)
}

func (r *rlocker) fullPath() string { return r.made.fullPath() }

// A Contender is one who holds or waits, as the server that was asked knows it:
// it may lag behind the others.
type Contender struct {
	Owner   string    // the data of its znode: WithOwner's text, or what another library writes; empty if we may not read it
	Node    string    // the name of its znode
	Session int64     // the ZooKeeper session it belongs to
	Mode    Mode      // what it holds or waits for
	Holding bool      // whether it holds, as far as the listing tells
	Since   time.Time // when it came, by the servers' clock
}

// A Mode is what a contender holds or waits for.
type Mode int

// The modes of contenders.
const (
	ModeExclusive Mode = iota // a lock or a leadership
	ModeShared                // a read lock
	ModePermits               // permits of a semaphore
	ModeParty                 // a part in a double barrier
)

// String returns "exclusive", "shared", "permits" or "party".
func (m Mode) String() string {
	switch m {
	case ModeExclusive:
		return "exclusive"
	case ModeShared:
		return "shared"
	case ModePermits:
		return "permits"
	case ModeParty:
		return "party"
	}
	return "unknown"
}

// contenders describes everyone in the line. judge says what the i'th of all
// holds or waits for.
func contenders(ctx context.Context, l *line, judge func(all []child, i int) (Mode, bool)) ([]Contender, error) {
	var out []Contender
	err := l.m.during(ctx, func(inc *incarnation) error {
		names, _, err := inc.children(ctx, l.dir)
		if isNoNode(err) {
			out = nil
			return nil
		}
		if err != nil {
			return err
		}
		all, err := l.inOrder(ctx, inc, names)
		if err != nil {
			return err
		}
		names = names[:0]
		for _, c := range all {
			names = append(names, c.name)
		}
		out, err = describe(ctx, inc, l.dir, names, func(i int) (Mode, bool) { return judge(all, i) })
		return err
	})
	return out, err
}

// describe reads the znodes of contenders, below dir; those that have left in
// the meantime are left out. Of one that may not be read the owner is not known.
func describe(ctx context.Context, inc *incarnation, dir string, names []string, judge func(i int) (Mode, bool)) ([]Contender, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = childPath(dir, name)
	}
	nodes, err := inc.getVisible(ctx, paths)
	if err != nil {
		return nil, err
	}
	var out []Contender
	for i, n := range nodes {
		if n.stat == nil {
			continue
		}
		mode, holding := judge(i)
		out = append(out, Contender{
			Owner: string(n.data), Node: names[i], Session: n.stat.EphemeralOwner,
			Mode: mode, Holding: holding, Since: time.UnixMilli(n.stat.Ctime),
		})
	}
	return out, nil
}
