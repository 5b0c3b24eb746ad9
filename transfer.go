package zsync

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/lock"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A wish is a znode that names the heir: the candidate that leads next, whatever the order of arrival
// and the priorities.

// Transfer hands the leadership to a waiting candidate from [Election.Contenders], the heir. If the
// heir does not wait, e still leads. Otherwise, e resigns, and Transfer returns when the heir is
// the first in the line: after 4 round trips if the heir is the next. In a Run, f's context ends,
// and the heir leads when f has returned. Called with that context, Transfer returns at once. If
// the heir leaves the line after e resigned, or ctx ends, the next candidate leads. Candidates of
// zsync ahead of the heir move to the back; candidates of Curator and kazoo lead first.
func (e *Election) Transfer(ctx context.Context, to Contender) (err error) {
	defer e.wrap("transfer", &err)
	g, err := e.current(nil)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return session.CtxErr(ctx)
	}
	heir, ok := lock.ParseChild(to.Node, e.local.Line.Bases...)
	if !ok {
		return session.Invalid("%q is no candidate of this election", to.Node)
	}
	c := g.Claim
	inc := c.Incarnation
	names, _, err := inc.ChildrenFresh(ctx, e.local.Line.Dir)
	switch {
	case err != nil:
		return c.Explain(err)
	case c.Child.Name == heir.Name:
		return c.Err() // e leads already
	case !slices.Contains(names, heir.Name):
		return fmt.Errorf("%w: %q does not wait", ErrNoCandidate, heir.Name)
	}
	wish := znodes.ChildPath(e.local.Line.Dir, lock.WishFor(heir))
	made := znodes.Creation{Dir: e.local.Line.SessionDir(), Paths: []string{wish}, Data: e.local.Line.Data, Holds: []*zk.CheckVersionRequest{{Path: c.Znode(), Version: -1}}}
	if err := znodes.CreateEphemeral(ctx, inc, &made); err != nil {
		return c.Explain(err)
	}
	resigning, within := ctx, e.within(ctx) != nil
	if within { // Run's function has called us, so we cannot wait for the end of that function, or for the heir
		var end context.CancelFunc
		resigning, end = context.WithCancel(resigning)
		end()
	}
	err = e.resign(resigning, g)
	if err == nil && !within {
		err = e.s.m.WhileOpen(ctx, func(ctx context.Context) error { return e.awaitHeir(ctx, inc, heir) })
		if errors.Is(err, session.ErrEnded) {
			err = inc.Loss() // the wish has ended with its session
		}
	}
	if err != nil {
		dropWish(inc, wish, "") // this call fails, so the heir must not be preferred
		return err
	}
	// In the background, keep the wish until the heir's znode is deleted. Do not delete it as soon as
	// the heir is the first in the line: the heir may read the line much later, and without the wish,
	// it would let a candidate with a higher priority lead first. An heir that is a zsync program
	// deletes the wish itself when it leads. The wish also ends with its session, so Close waits for a
	// while for the heir to lead.
	leaving, stay := inc.Manager.BeforeClose()
	d := dropWish(inc, wish, znodes.ChildPath(e.local.Line.Dir, heir.Name))
	inc.Manager.Spawn(func() {
		defer stay()
		// If several cases are ready, any choice is right: the wish is deleted, or this process cannot help.
		select {
		case <-d.Done:
		case <-inc.Ctx.Done():
		case <-leaving:
			inc.AwaitGone(inc.Ctx, wish)
		}
	})
	return nil
}

// dropWish deletes a wish in the background, as soon as the znode at `heir` is deleted. Until the
// deletion, the wish blocks no candidate. If `heir` is empty, dropWish waits for no znode.
func dropWish(inc *session.Incarnation, wish, heir string) *znodes.Deletion {
	return znodes.Delete(inc, &znodes.Deletion{Paths: []string{wish}, MayStay: true, By: func() error {
		if heir != "" {
			if err := inc.AwaitGone(inc.Ctx, heir); err != nil {
				return err
			}
		}
		return znodes.RemoveNow(inc.Ctx, inc, wish)
	}})
}

func (e *Election) awaitHeir(ctx context.Context, inc *session.Incarnation, heir lock.Child) error {
	for {
		all, err := e.local.Line.List(ctx, inc, inc.Names)
		switch {
		case err != nil:
			return err
		case !slices.ContainsFunc(all, func(c lock.Child) bool { return c.Name == heir.Name }):
			return fmt.Errorf("%w: %q has left, and the next candidate leads", ErrNoCandidate, heir.Name)
		case all[0].Name == heir.Name:
			return nil
		}
		if err := inc.AwaitGone(ctx, znodes.ChildPath(e.local.Line.Dir, all[0].Name)); err != nil {
			return err
		}
	}
}
