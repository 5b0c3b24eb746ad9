package session

import (
	"context"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// A Place is where a child is made: a directory, and a name that begins with guid, or
// with that as a protected name has it, up to the number.
type Place struct {
	Dir        Dir
	Name, GUID string
}

// CreateTogether makes an ephemeral, sequential child at each of places, of which no
// two are in one directory, all or none, and lists each directory right behind that.
// Everything is on its way at once: it takes one round trip.
//
// It is tried once, and a second time where directories are missing, which are made
// then. Without an error all were made, and paths and rolls are in the order of
// places; a roll is nil where the listing was lost or does not show what was made.
// Otherwise nothing was, or it is being deleted: whoever goes on chooses other names.
func (inc *Incarnation) CreateTogether(ctx context.Context, places []Place, data []byte) (paths []string, rolls []*Roll, err error) {
	ops, size := make([]any, len(places)), 256
	for i, p := range places {
		full := ChildPath(p.Dir.Path, p.Name)
		size += inc.Manager.SizeOf(full, data)
		ops[i] = &zk.CreateRequest{Path: full, Data: data, Acl: inc.Manager.Config.ACL, Flags: zk.FlagEphemeralSequential}
	}
	if size > MaxPacket {
		return nil, nil, ErrTooLarge
	}
	for _, p := range places {
		if err := inc.Vet(ctx, p.Dir); err != nil {
			return nil, nil, err
		}
		if err := inc.mayTakeBack(ctx, p.Dir.Path); err != nil {
			return nil, nil, err
		}
	}
	paths, rolls, err = inc.createTogether(ctx, places, nil, ops)
	if IsNoNode(err) {
		if missing := inc.missingDirsOf(places); missing != nil {
			paths, rolls, err = inc.createTogether(ctx, places, missing, ops)
		}
	}
	return paths, rolls, err
}

// createTogether is one attempt, behind the creates of the directories that are missing.
func (inc *Incarnation) createTogether(ctx context.Context, places []Place, missing []call[string], ops []any) (paths []string, rolls []*Roll, err error) {
	b := new(Batch)
	for _, d := range missing {
		add(b, d)
	}
	making := add(b, multiCall(ops))
	if err := inc.startBatch(ctx, b); err != nil {
		return nil, nil, err
	}
	for _, p := range places {
		rolls = append(rolls, inc.roll(p.Dir.Path)) // behind it, unless the connection is replaced between the two
	}
	made, err := making.Wait(ctx, inc)
	if err != nil {
		if OutcomeOf(err) == Unknown && inc.Ctx.Err() == nil { // else it was ephemeral
			inc.collectAll(making, places)
		}
		return nil, nil, err
	}
	for i, r := range rolls {
		paths = append(paths, made[i].String)
		if _, err := r.Wait(ctx, inc); err != nil || !r.Has(BaseName(made[i].String)) {
			rolls[i] = nil
		}
	}
	return paths, rolls, nil
}

// missingDirsOf is missingDirs for the directories of all of places, which are made in
// one batch, each behind those above it.
func (inc *Incarnation) missingDirsOf(places []Place) (dirs []call[string]) {
	var seen []string
	for _, p := range places {
		for _, d := range inc.missingDirs(p.Dir.Path, nil) {
			if !slices.Contains(seen, d) {
				seen = append(seen, d)
				dirs = append(dirs, inc.dirCall(d, p.Dir))
			}
		}
	}
	return dirs
}

// collectAll is collect for what an abandoned transaction may have made. It waits for
// that, but not long.
func (inc *Incarnation) collectAll(making *pending[[]zk.MultiResponse], places []Place) {
	rs := make([]*Removal, len(places))
	for i, p := range places {
		rs[i] = inc.removal(&Removal{path: ChildPath(p.Dir.Path, p.GUID), kind: removeOwn, guid: p.GUID})
	}
	making.then(func() {
		for i, r := range rs {
			switch err := making.err; {
			case err == nil:
				r.found(making.val[i].String)
			case OutcomeOf(err) != Unknown:
				r.over(nil) // nothing was made, nor will be
				continue
			}
			r.reaper.wait(r)
		}
	})
	limit := time.Now().Add(Grace)
	for _, r := range rs {
		r.Await(time.Until(limit))
	}
}
