package look

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/kinds"
	"github.com/zsync/zsync/internal/marks"
	"github.com/zsync/zsync/internal/spread"
)

// This file finds the primitives at a single path, and the state of each, through zsync's own
// types. look.go searches for paths.

type rawJSON = json.RawMessage

// At looks for primitives of every kind at path, including kinds that the names of the children do
// not show. This search costs about twenty requests. If At fails, it returns the lines that it has
// found, and the error.
func At(ctx context.Context, s *zsync.Session, path string) ([]Line, error) {
	names, _, err := s.Children(ctx, path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	a := &asker{s: s, path: path, names: names, all: true}
	entry, err := inMap(ctx, s, path)
	if err != nil {
		return nil, err
	}
	if !entry || len(names) > 0 {
		if a.isMap, err = isMap(ctx, s, path); err != nil {
			return nil, err
		}
	}
	if entry && !a.isMap { // the znodes beside an entry are other entries, so they do not show its kind
		if a.all, a.kinds = false, kinds.Of(names); len(a.kinds) == 0 {
			a.kinds = []kinds.Kind{kinds.Entry}
		}
	}
	return a.ask(ctx)
}

// The method `look` reads the primitives at a place. It sends only the requests that the kinds of
// the place need.
func (p *Place) look(ctx context.Context, s *zsync.Session) ([]Line, error) {
	if len(p.Kinds) == 0 && !p.Data {
		return nil, nil
	}
	a := &asker{s: s, path: p.Path, names: p.Names, kinds: p.Kinds, isMap: slices.Contains(p.Kinds, kinds.Map), gated: p.Gated}
	return a.ask(ctx)
}

// The type `asker` reads the primitives at a path.
type asker struct {
	s     *zsync.Session
	path  string
	names []string // of the children
	kinds []kinds.Kind
	all   bool // ask for everything
	isMap bool // the children of the path are entries, except for contenders
	gated bool // the path has the neighbour that only kazoo's semaphore has
}

func (a *asker) wants(of ...kinds.Kind) bool {
	return a.all || slices.ContainsFunc(of, func(k kinds.Kind) bool { return slices.Contains(a.kinds, k) })
}

func (a *asker) ask(ctx context.Context) (lines []Line, err error) {
	asks := []func(context.Context) ([]Line, error){a.contenders, a.tasks, a.once, a.schedule, a.queue, a.partition}
	if a.isMap {
		asks = []func(context.Context) ([]Line, error){a.contenders, a.keys}
	}
	if slices.Contains(a.kinds, kinds.Group) {
		asks = append(asks, a.members)
	}
	lines, err = together(ctx, asks)
	if a.all && !a.isMap && len(lines) == 0 && err == nil && !slices.ContainsFunc(a.names, func(name string) bool { return kinds.Certain(name, a.names) }) {
		lines, err = a.members(ctx) // the ephemeral children belong to no other primitive
	}
	if len(lines) == 0 && err == nil {
		return a.value(ctx)
	}
	return lines, err
}

// The function `together` calls all asks at the same time, because the servers may be far away. It
// returns their lines in order. If some asks fail, it returns the first of their errors, in order,
// and the lines of the others.
func together(ctx context.Context, asks []func(context.Context) ([]Line, error)) (lines []Line, err error) {
	answers, errs := make([][]Line, len(asks)), make([]error, len(asks))
	var wg sync.WaitGroup
	for i, ask := range asks {
		wg.Go(func() { answers[i], errs[i] = ask(ctx) })
	}
	wg.Wait()
	for i := range asks {
		lines = append(lines, answers[i]...)
		if err == nil {
			err = errs[i]
		}
	}
	return lines, err
}

// The method `contenders` describes the holders and the waiters.
func (a *asker) contenders(ctx context.Context) ([]Line, error) {
	s, path := a.s, a.path
	var asks []func(context.Context) ([]Line, error)
	for _, kind := range []struct {
		name       kinds.Kind
		contenders func(context.Context) ([]zsync.Contender, error)
		holders    *regexp.Regexp // if not nil, it matches the nodes of holders
	}{
		{kinds.Lock, zsync.NewMutex(s, path).Contenders, nil},
		{kinds.RWLock, zsync.NewRWMutex(s, path).Contenders, nil},
		{kinds.KazooLock, zsync.NewRWMutex(s, path, zsync.WithLayout(zsync.LayoutKazoo)).Contenders, nil},
		{kinds.Election, zsync.NewElection(s, path).Contenders, nil},
		{kinds.DoubleBarrier, zsync.NewWaitGroup(s, path).Contenders, nil},
		{kinds.Cond, zsync.NewCond(s, path, nil).Contenders, nil},
		{kinds.Semaphore, zsync.NewSemaphore(s, path, 1).Contenders, nil},
		{kinds.KazooPermits, permits(s, path), kazooPermit},
	} {
		if !a.wants(kind.name) {
			continue
		}
		asks = append(asks, func(ctx context.Context) (lines []Line, err error) {
			contenders, err := kind.contenders(ctx)
			if err != nil && !other(err) {
				return nil, err
			}
			for _, c := range contenders {
				if c.Holding && kind.holders != nil && !kind.holders.MatchString(c.Node) {
					continue
				}
				if c.Session == 0 && (a.isMap || kind.name == kinds.KazooPermits || marks.IsDir([]byte(c.Owner))) {
					continue // despite its name, it is no contender: it is an entry of a map, or the znode of another primitive
				}
				mode := c.Mode.String()
				if kind.name == kinds.Cond {
					mode = ""
				}
				lines = append(lines, lineOf(path, string(kind.name), mode, c))
			}
			return lines, nil
		})
	}
	return together(ctx, asks)
}

// The function `other` reports whether err means that the path has another primitive, with a znode
// of the same name.
func other(err error) bool {
	var noTime *time.ParseError
	return errors.Is(err, zsync.ErrMixed) || errors.Is(err, zsync.ErrInvalid) || errors.As(err, &noTime)
}

// The map `states` has the words for a waiter and for a holder. It leaves out each kind in which a
// long wait is a problem.
var states = map[string][]string{string(kinds.Election): {"standby", "leads"}, "queue": {"idle", "holds"}}

// lineOf describes a contender.
func lineOf(path, kind, mode string, c zsync.Contender) Line {
	states := states[kind]
	if states == nil {
		states = []string{"waits", "holds"}
	}
	state := states[0]
	switch {
	case c.Retained:
		state = "holds, or only keeps its place"
	case c.Holding:
		state = states[1]
	}
	owner, within := marks.Outer(c.Owner)
	l := Line{
		Path: path, Kind: kind, Mode: mode, State: state, Holding: c.Holding, Retained: c.Retained, Owner: owner, Within: within,
		Since: &c.Since, Session: SessionText(c.Session), Node: c.Node,
	}
	if !c.HeldSince.IsZero() {
		l.Held = &c.HeldSince
	}
	return l
}

// NoSession is the text for the session of a contender whose znode the client may not read.
const NoSession = "unknown"

// SessionText returns a session's id as ZooKeeper's own tools show it, or NoSession.
func SessionText(id int64) string {
	if id == -1 {
		return NoSession
	}
	return fmt.Sprintf("%#x", uint64(id))
}

// The function `permits` returns a function that lists the contenders at a path as kazoo's
// semaphore does: each child is the permit of a holder, and the waiters come after the holders.
func permits(s *zsync.Session, path string) func(context.Context) ([]zsync.Contender, error) {
	return zsync.NewSemaphore(s, path, 1, zsync.WithLayout(zsync.LayoutKazoo)).Contenders
}

// kazooPermit matches a permit of a kazoo semaphore. kazoo itself accepts any name. But other names
// may belong to another primitive at the path.
var kazooPermit = regexp.MustCompile(`^[0-9a-f]{32}$`)

// The method `tasks` describes a wait group.
func (a *asker) tasks(ctx context.Context) ([]Line, error) {
	if !a.wants(kinds.WaitGroup) {
		return nil, nil
	}
	tasks, err := zsync.NewWaitGroup(a.s, a.path).Count(ctx)
	if err != nil || tasks == 0 {
		return nil, unlessOther(err)
	}
	return []Line{{Path: a.path, Kind: "wait group", State: Count(tasks, "open task"), Count: &tasks}}, nil
}

// The method `once` describes a once.
func (a *asker) once(ctx context.Context) ([]Line, error) {
	if !a.wants(kinds.Once) {
		return nil, nil
	}
	// Once.Done would leave a watch.
	data, stat, err := a.s.Get(ctx, path.Join(a.path, "done"))
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil || stat.EphemeralOwner != 0 || marks.IsDir(data) {
		return nil, err
	}
	return []Line{{Path: a.path, Kind: "once", State: "done"}}, nil
}

// The method `schedule` describes a schedule.
func (a *asker) schedule(ctx context.Context) ([]Line, error) {
	if !a.wants(kinds.Schedule) {
		return nil, nil
	}
	schedule := zsync.NewSchedule(a.s, a.path)
	last, err := schedule.Last(ctx)
	var states []string
	if err == nil {
		states = append(states, "last done: that of "+last.Local().Format(time.DateTime))
	} else if !errors.Is(err, zsync.ErrNoValue) {
		return nil, unlessOther(err)
	}
	failure, err := schedule.LastFailure(ctx)
	if err == nil && failure.At.After(last) {
		states = append(states, fmt.Sprintf("failed: that of %s, attempt %d, %s: %s", failure.At.Local().Format(time.DateTime), failure.Attempts, failure.Owner, failure.Err))
	} else if err = unlessOther(err); err != nil {
		return nil, err
	}
	if len(states) == 0 {
		return nil, nil
	}
	l := Line{Path: a.path, Kind: "schedule", State: strings.Join(states, "; ")}
	if len(states) > 1 || last.IsZero() {
		l.Failure = states[len(states)-1]
	}
	return []Line{l}, nil
}

// queueConsumer matches a consumer that waits for elements.
var queueConsumer = regexp.MustCompile(`-turn--?\d+$`)

// queueLayouts has the layouts of queues, by their names in flags.
var queueLayouts = map[string]zsync.QueueLayout{
	"zsync": zsync.LayoutZsync, "simple": zsync.LayoutSimpleQueue, "distributed": zsync.LayoutDistributedQueue, "kazoo": zsync.LayoutKazooQueue,
}

// The method `queue` describes a queue. A queue in another library's layout is recognized only by
// its elements.
func (a *asker) queue(ctx context.Context) (lines []Line, err error) {
	if !a.wants(kinds.Queue, kinds.ForeignQueue) {
		return nil, nil
	}
	waiting, err := permits(a.s, a.path+"-consumers")(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range waiting {
		if queueConsumer.MatchString(c.Node) {
			c.Holding = false
			lines = append(lines, lineOf(a.path, "queue", "consumer", c))
		}
	}
	_, _, err = a.s.Get(ctx, a.path+"-live")
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return nil, err
	}
	isQueue := err == nil || len(lines) > 0 || slices.Contains(kinds.Of(a.names), kinds.Queue)
	dead, err := deadLetters(ctx, a.s, a.path)
	if err != nil {
		return lines, err
	}
	var asks []func(context.Context) ([]Line, error)
	for _, name := range []string{"zsync", "simple", "distributed", "kazoo"} {
		layout := queueLayouts[name]
		if layout == zsync.LayoutZsync && !a.wants(kinds.Queue) || layout != zsync.LayoutZsync && !a.wants(kinds.ForeignQueue) {
			continue
		}
		asks = append(asks, func(ctx context.Context) ([]Line, error) {
			n, err := zsync.NewQueue[[]byte](a.s, a.path, zsync.WithQueueLayout(layout)).Len(ctx)
			if err != nil || n == 0 && (!isQueue || layout != zsync.LayoutZsync) {
				return nil, err
			}
			state := Count(n, "element")
			if layout != zsync.LayoutZsync {
				state += ", as of " + layout.String()
			} else if slices.Contains(a.names, "paused") {
				state += ", paused"
			}
			return []Line{{Path: a.path, Kind: "queue", State: state, Count: &n, Layout: name}}, nil
		})
	}
	elements, err := together(ctx, asks)
	if lines = append(lines, elements...); err != nil {
		return lines, err
	}
	if dead > 0 {
		lines = append(lines, Line{Path: a.path, Kind: "queue", State: Count(dead, "dead letter"), Dead: &dead})
	}
	return lines, nil
}

// deadLetter matches the name of a dead letter.
var deadLetter = regexp.MustCompile(`^dead-.*-[0-9a-f]{16}-\d{10}$`)

// deadLetters counts the dead letters of the queue at path. It reads only their names, because
// there may be many. All layouts have them at the same path.
func deadLetters(ctx context.Context, s *zsync.Session, path string) (n int, err error) {
	names, _, err := s.Children(ctx, path+"-dead")
	if errors.Is(err, zk.ErrNoNode) {
		return 0, nil
	}
	for _, name := range names {
		if deadLetter.MatchString(name) {
			n++
		}
	}
	return n, err
}

// The method `members` describes the members of a group.
func (a *asker) members(ctx context.Context) (lines []Line, err error) {
	layout := zsync.LayoutCurator
	if slices.ContainsFunc(a.names, func(name string) bool { return strings.Contains(name, "__party__") }) {
		layout = zsync.LayoutKazoo
	}
	ms, err := zsync.NewGroup[[]byte](a.s, a.path, zsync.WithCodec(zsync.Raw), zsync.WithLayout(layout)).Members(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range ms {
		lines = append(lines, Line{
			Path: a.path, Kind: "group", Mode: "member", State: "is there", Holding: true,
			Owner: m.ID, Info: string(m.Info), Since: &m.Since, Session: SessionText(m.Session),
		})
	}
	return lines, nil
}

// The method `partition` describes the members of a partition, and its shards. The locks of the
// shards have paths of their own.
func (a *asker) partition(ctx context.Context) (lines []Line, err error) {
	if !slices.Contains(kinds.Of(a.names), kinds.Partition) {
		return nil, nil
	}
	// If Members fails, its result has the members that Members could decode, or the result is nil.
	members, err := zsync.NewGroup[[]string](a.s, path.Join(a.path, "members")).Members(ctx)
	if members == nil {
		return nil, unlessOther(err)
	}
	plan, _, err := zsync.NewValue[map[string]string](a.s, path.Join(a.path, "plan"), zsync.WithCodec(spread.PlanCodec{})).Load(ctx)
	if err != nil {
		return nil, unlessOther(err)
	}
	shards, owned := map[string]bool{}, 0
	for shard := range plan {
		shards[shard] = true
	}
	for _, m := range members {
		var own []string
		for _, shard := range m.Info {
			if shards[shard] = true; plan[shard] == m.ID {
				own = append(own, shard)
			}
		}
		owned += len(own)
		slices.Sort(own)
		lines = append(lines, Line{
			Path: a.path, Kind: string(kinds.Partition), Mode: "member", State: "owns " + Count(len(own), "shard"), Holding: true,
			Owner: m.ID, Info: strings.Join(own, ", "), Since: &m.Since, Session: SessionText(m.Session),
		})
	}
	n := len(shards)
	if n == 0 {
		return nil, nil // most likely another znode that only has that name
	}
	state := Count(n, "shard")
	if n > owned {
		state += fmt.Sprintf(", %d without an owner", n-owned)
	}
	return append(lines, Line{Path: a.path, Kind: string(kinds.Partition), State: state, Count: &n}), nil
}

// unlessOther returns nil if err means that the path has another primitive or no primitive. It
// returns every other err unchanged.
func unlessOther(err error) error {
	if errors.Is(err, zsync.ErrNoValue) || other(err) {
		return nil
	}
	return err
}

// The method `keys` describes a map.
func (a *asker) keys(ctx context.Context) ([]Line, error) {
	n, err := zsync.NewMap[[]byte](a.s, a.path, zsync.WithCodec(zsync.Raw)).Len(ctx)
	if err != nil {
		return nil, err
	}
	return []Line{{Path: a.path, Kind: string(kinds.Map), State: Count(n, "key"), Count: &n}}, nil
}

// The method `idle` describes a semaphore without contenders: its znode has the limit, and the
// parent znodes for contenders exist.
func (a *asker) idle(ctx context.Context, data []byte) ([]Line, error) {
	limit, err := strconv.ParseInt(strings.TrimSpace(string(marks.Unmark(data))), 10, 64)
	if err != nil || limit <= 0 {
		return nil, nil
	}
	has := func(name string) bool { return slices.Contains(a.names, name) }
	kind := kinds.Semaphore
	if !has("resized") && !(has("leases") && has("locks")) {
		if kind = kinds.KazooPermits; a.all {
			_, _, err := a.s.Children(ctx, a.path+"-__lock__")
			if err != nil && !errors.Is(err, zk.ErrNoNode) {
				return nil, err
			}
			a.gated = err == nil
		}
		if !a.gated {
			return nil, nil
		}
	}
	return []Line{{Path: a.path, Kind: string(kind), State: "free, " + Count(int(limit), "permit")}}, nil
}

// The method `value` describes the data at a path that has no primitive.
func (a *asker) value(ctx context.Context) ([]Line, error) {
	entry := slices.Contains(a.kinds, kinds.Entry)
	data, stat, err := a.s.Get(ctx, a.path)
	if marks.IsDir(data) && !entry { // the znode has no data, or has the limit of a semaphore
		if lines, err := a.idle(ctx, data); len(lines) > 0 || err != nil {
			return lines, err
		}
		data = nil
	}
	switch {
	case entry && err == nil && len(data) == 0:
		return []Line{{Path: a.path, Kind: string(kinds.Entry), State: "empty"}}, nil
	case errors.Is(err, zk.ErrNoNode), err == nil && len(data) == 0:
		return []Line{{Path: a.path, State: "free"}}, nil
	case err != nil:
		return nil, err
	}
	kind := "data"
	if entry {
		kind = string(kinds.Entry)
	} else if lines, err := a.idle(ctx, data); len(lines) > 0 || err != nil {
		return lines, err
	}
	if json.Valid(data) {
		return []Line{{Path: a.path, Kind: kind, State: Printable(string(data)), Value: data}}, nil
	}
	value, err := json.Marshal(string(data))
	l := Line{Path: a.path, Kind: kind, State: Printable(string(data)), Value: value}
	// A closed gate is created with this data and never written, so its version is 0.
	if owner, ok := strings.CutPrefix(string(data), marks.Gate); ok && !entry && len(a.names) == 0 && stat.Version == 0 {
		l.Kind, l.State = string(kinds.Gate), "closed"
		l.Owner, _ = marks.Outer(owner)
	}
	return []Line{l}, err
}

// Count returns a number of things in words, such as "2 permits".
func Count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return strconv.Itoa(n) + " " + of + "s"
}
