package zsync

import "context"

// Lost returns a channel that is closed when the membership is lost that
// [WaitGroup.Enter] has given wg, and that Leave would end next: the session has
// ended, or may have. While wg has none, the channel is closed already. It is
// not closed by Leave. The counter is nobody's, so it has no Lost.
func (wg *WaitGroup) Lost() <-chan struct{} {
	if wg.err != nil {
		return closedChan
	}
	d := wg.double
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.inside) == 0 || d.inside[0].hold.err() != nil {
		return closedChan
	}
	return d.inside[0].hold.lost
}

// Contenders returns the parties of the double barrier, in their order: who is
// inside, which is Holding, and who waits to enter. It costs two requests and
// one read for each.
func (wg *WaitGroup) Contenders(ctx context.Context) ([]Contender, error) {
	if wg.err != nil {
		return nil, opError("contenders", wg.path, wg.err)
	}
	var out []Contender
	err := wg.s.during(ctx, func(inc *incarnation) (err error) {
		out, err = wg.double.parties(ctx, inc)
		if isNoNode(err) {
			return nil // there is no room
		}
		return err
	})
	return out, opError("contenders", wg.path, err)
}

// parties describes everyone in the room.
func (d *doubleBarrier) parties(ctx context.Context, inc *incarnation) ([]Contender, error) {
	names, _, err := inc.children(ctx, d.room)
	if err != nil {
		return nil, err
	}
	all := parseChildren(names, partyBase)
	if len(all) == 0 {
		return nil, nil // and perhaps the room has no data yet
	}
	data, _, err := inc.get(ctx, d.room) // after the listing, so that nobody who is inside seems to wait
	if err != nil {
		return nil, err
	}
	state, err := parseRoomState(data)
	if err != nil {
		return nil, err
	}
	names = names[:0]
	for _, c := range all {
		names = append(names, c.name)
	}
	return describe(ctx, inc, d.room, names, func(i int) (Mode, bool) {
		_, inside := state.find(func(r round) bool { return r.has(all[i].seq) })
		return ModeParty, inside
	})
}
