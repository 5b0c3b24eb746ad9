package crash

import (
	"context"
	"errors"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
)

const (
	crashRoom     = crashPath + "/parties"
	partiesLeaves = crashRoom
)

// enterBeside has two more parties enter, once begin allows it, and leave. If
// the child dies before all three are inside they give up.
func enterBeside(begin func(ctx context.Context, s *zsync.Session) error) helper {
	return func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		if err := begin(ctx, s); err != nil {
			return err
		}
		one, two := zsync.NewWaitGroup(s, crashPath), zsync.NewWaitGroup(s, crashPath)
		first := harness.Async(func() error { return one.Enter(ctx, 3) })
		err := errors.Join(two.Enter(ctx, 3), <-first)
		select {
		case <-child.begun: // with Enter done, or to do it
			ready()
		case <-ctx.Done():
		}
		// Who is inside, leaves; the others are not members.
		ctx = context.WithoutCancel(ctx)
		first = harness.Async(func() error { return leaveIfInside(ctx, one) })
		if left := errors.Join(leaveIfInside(ctx, two), <-first); left != nil {
			return left
		}
		return err
	}
}

func leaveIfInside(ctx context.Context, wg *zsync.WaitGroup) error {
	if err := wg.Leave(ctx); !errors.Is(err, zsync.ErrNotLocked) {
		return err
	}
	return nil
}

// roomHas waits until n parties are in the room.
func roomHas(ctx context.Context, n int) error {
	for {
		names, err := childrenOf(ctx, crashRoom)
		if len(names) == n || err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // real time: processes of their own enter and leave
	}
}

// afterParties has the next round enter and leave. As long as the dead are
// taken for alive they count, so it waits for their end.
func afterParties(ctx context.Context, s *zsync.Session) error {
	if err := roomHas(ctx, 0); err != nil {
		return err
	}
	party := func() error {
		wg := zsync.NewWaitGroup(s, crashPath)
		if err := wg.Enter(ctx, 3); err != nil {
			return err
		}
		return wg.Leave(ctx)
	}
	one, two := harness.Async(party), harness.Async(party)
	return errors.Join(party(), <-one, <-two)
}

var partyCrashes = []crash{{
	name: "WaitGroup.Enter",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		begin()
		return zsync.NewWaitGroup(s, crashPath).Enter(ctx, 3)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		ready()
		return enterBeside(func(ctx context.Context, s *zsync.Session) error { child.awaitWait(ctx); return nil })(ctx, s, ready, child)
	},
	after:    afterParties,
	leaves:   partiesLeaves,
	requests: 2,
}, {
	name: "WaitGroup.Enter as the last",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		if err := roomHas(ctx, 2); err != nil {
			return err
		}
		begin()
		return zsync.NewWaitGroup(s, crashPath).Enter(ctx, 3)
	},
	beside: func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error {
		go func() {
			<-child.begun
			ready()
		}()
		return enterBeside(func(context.Context, *zsync.Session) error { return nil })(ctx, s, ready, child)
	},
	after:    afterParties,
	leaves:   partiesLeaves,
	requests: 4,
}, {
	name: "WaitGroup.Leave",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		wg := zsync.NewWaitGroup(s, crashPath)
		if err := wg.Enter(ctx, 3); err != nil {
			return err
		}
		begin()
		return wg.Leave(ctx)
	},
	beside:   enterBeside(func(ctx context.Context, s *zsync.Session) error { return roomHas(ctx, 1) }),
	after:    afterParties,
	leaves:   partiesLeaves,
	requests: 2,
}, {
	name: "WaitGroup.Leave as the keeper",
	child: func(ctx context.Context, s *zsync.Session, begin func()) error {
		if err := roomHas(ctx, 2); err != nil {
			return err
		}
		wg := zsync.NewWaitGroup(s, crashPath)
		if err := wg.Enter(ctx, 3); err != nil {
			return err
		}
		begin()
		return wg.Leave(ctx)
	},
	beside:   enterBeside(func(context.Context, *zsync.Session) error { return nil }),
	after:    afterParties,
	leaves:   partiesLeaves,
	requests: 2,
}}
