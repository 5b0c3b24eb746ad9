package txn

// This file runs the real code of transactions in every way that a model of the servers allows. The
// search is the business of package explore.
//
// The model has these assumptions of docs/guarantees.md:
//
//   - zookeeper: The servers execute requests one by one, each at most once, and a transaction whole
//     or not at all. A read is not older than the last reply. The model reads the present data: all
//     that the read could have missed may also happen after it.
//   - logs: Other clients may delete a log, write data of another length into it, and forbid and
//     permit writing it. They do not create it again.
//   - data: The servers keep their data.
//
// A request without a reply was executed, was lost, or was left behind: any server executes it at
// any later time, within or after its session. The session prevents some of these (see trail), and
// a transaction does not need that. Other clients may make and delete the other znodes of a
// transaction.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/explore"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/znodes"
)

// A plan bounds the events of a run.
type plan struct {
	across bool // transactions across sessions
	calls  int  // transactions, one after another
	faults int  // requests without a reply
	acts   int  // of another client
}

// A znode of the model.
type znode struct {
	version  int32
	data     string
	readOnly bool
}

// servers is the model of the servers, and of one client's requests.
type servers struct {
	*explore.Run
	plan
	m      *session.Manager
	pool   *pool
	ctx    context.Context
	cancel func()

	nodes map[string]*znode
	late  []late   // requests that the servers may execute later
	logs  []string // paths, in the order of their first use: names are random
	t     *transaction
	told  []string // the answers to the code since the last attempt
	ended bool     // a session was lost during this call
	acted bool     // another client has acted
	count []int    // how often the transaction of each call was applied
	never []bool   // the caller knows that it was not applied
	call  int
}

type late struct {
	name string
	do   func()
}

var errLoss = fmt.Errorf("%w: the session has ended", session.ErrLost)

// everyWay is the model: see explore.
func (p plan) everyWay(m *session.Manager) func(*explore.Run) {
	return func(r *explore.Run) {
		s := &servers{Run: r, plan: p, m: m, nodes: map[string]*znode{"/gate": {}}}
		if !p.across {
			s.nodes["/"], s.nodes["/dir"] = &znode{readOnly: p.acts > 0 && s.Pick(2) == 1}, &znode{}
		}
		s.pool = s.newPool()
		for s.call < p.calls {
			s.one()
			s.call++
		}
		for len(s.late) > 0 { // requests still under way
			s.at("over")
			s.arrives(s.Pick(len(s.late)))
		}
	}
}

// one makes one transaction, which the servers apply if the znode /gate exists. one checks the
// result for the caller.
func (s *servers) one() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer s.cancel()
	s.count, s.never = append(s.count, 0), append(s.never, false)
	s.ended, s.told = false, nil
	s.pool.swept = true // no goroutine
	ops := []any{&zk.CheckVersionRequest{Path: "/gate", Version: -1}, &zk.SetDataRequest{Path: fmt.Sprint("/", s.call), Version: -1}}
	during := func(f func(*session.Incarnation) error) (err error) {
		for {
			if err = f(nil); !errors.Is(err, session.ErrEnded) {
				return err
			}
			s.told = append(s.told, "ended")
			if !s.across {
				s.pool = s.newPool()
			}
		}
	}
	var err error
	if s.across {
		s.t = &transaction{pool: s.pool, dirs: []string{"/dir"}, ops: ops}
		_, err = s.t.apply(s.ctx, during)
	} else {
		err = during(func(*session.Incarnation) error {
			s.t = &transaction{pool: s.pool, dirs: []string{"/", "/dir"}, ops: ops}
			_, err := s.t.apply(s.ctx, func(f func(*session.Incarnation) error) error { return f(nil) })
			return err
		})
	}
	s.Note("call %d returns %v", s.call, err)
	n := s.count[s.call]
	// The caller learns the outcome, with these exceptions.
	excused := s.acted || s.ctx.Err() != nil || s.ended && !s.across
	switch unknown := s.ctx.Err() != nil || errors.Is(err, session.ErrLost) || err != nil && strings.Contains(err.Error(), "may have been applied"); {
	case err == nil && n != 1:
		s.Fail("applied %d times, and the caller learns that it was applied", n)
	case err != nil && !unknown && n != 0:
		s.Fail("applied, and the caller learns that it was not: %v", err)
	case err != nil && !excused:
		s.Fail("not known, without a reason: %v", err)
	}
	for _, l := range s.pool.idle {
		if name := "delete " + s.log(l.path); slices.ContainsFunc(s.late, func(l late) bool { return l.name == name }) {
			s.Fail("a log is in the pool, and its deletion is under way")
		}
	}
	s.never[s.call] = err != nil && !strings.Contains(err.Error(), "may have been applied") && s.ctx.Err() == nil && !errors.Is(err, session.ErrLost)
}

// at names the state: the data of the servers, and the knowledge of the code.
func (s *servers) at(where string) { s.At(func() string { return s.state(where) }) }

func (s *servers) state(where string) string {
	var b strings.Builder
	fmt.Fprint(&b, where, s.call, s.faults, s.acts, s.ended, s.acted, s.count, s.never, s.ctx.Err(), s.told)
	for _, path := range slices.Sorted(maps.Keys(s.nodes)) {
		if !strings.HasPrefix(znodes.BaseName(path), "_c_") {
			fmt.Fprint(&b, " ", path, s.nodes[path])
		}
	}
	for i, path := range s.logs {
		fmt.Fprint(&b, " log", i, s.nodes[path])
	}
	var late []string
	for _, l := range s.late {
		late = append(late, l.name)
	}
	slices.Sort(late)
	fmt.Fprint(&b, late)
	for _, dir := range []string{"/", "/dir"} {
		for _, l := range s.pool.idle {
			if l.dir == dir {
				fmt.Fprint(&b, " idle ", s.log(l.path), l.version)
			}
		}
		shut, _ := s.pool.shut.Load(dir)
		fmt.Fprint(&b, shut)
	}
	return b.String()
}

// log returns a name for the log at path that is the same in each run.
func (s *servers) log(path string) string {
	if !strings.HasPrefix(znodes.BaseName(path), "_c_") {
		return path
	}
	i := slices.Index(s.logs, path)
	if i < 0 {
		i = len(s.logs)
		s.logs = append(s.logs, path)
	}
	return fmt.Sprint("log", i)
}

// arrives executes a request that was late.
func (s *servers) arrives(i int) {
	l := s.late[i]
	s.late = slices.Delete(s.late, i, i+1)
	s.Note("late: %s", l.name)
	l.do()
}

// others lets late requests arrive and another client act, before the client's next request.
func (s *servers) others() {
	for {
		s.at("free")
		i := s.Pick(1 + len(s.late) + min(s.acts, 1)*4)
		switch {
		case i == 0:
			return
		case i <= len(s.late):
			s.arrives(i - 1)
		default:
			s.another(i - len(s.late) - 1)
		}
	}
}

// another lets another client act.
func (s *servers) another(act int) {
	s.acts--
	s.acted = true
	s.Note("another client: act %d", act)
	if act == 0 {
		if s.nodes["/gate"] == nil {
			s.nodes["/gate"] = &znode{}
		} else {
			delete(s.nodes, "/gate")
		}
		return
	}
	if len(s.logs) == 0 {
		s.End()
	}
	path := s.logs[len(s.logs)-1]
	switch l := s.nodes[path]; {
	case l == nil:
		s.End()
	case act == 1:
		delete(s.nodes, path)
	case act == 2:
		l.version, l.data = l.version+1, "another's"
	case act == 3:
		l.readOnly = !l.readOnly
	}
}

// ask sends a request, and chooses its fate. do executes it.
func (s *servers) ask(name string, do func() string) (answer string, err error) {
	s.others()
	if err := s.ctx.Err(); err != nil {
		return "", err
	}
	fate := 0
	if s.faults > 0 {
		fate = s.Pick(10)
	}
	if fate == 0 {
		answer := do()
		s.Note("%s: %s", name, answer)
		s.told = append(s.told, name+answer)
		return answer, nil
	}
	s.faults--
	why := []string{"no reply", "the session ends", "the context ends"}[(fate-1)/3]
	switch (fate - 1) % 3 {
	case 0:
		do()
		s.Note("%s: executed; %s", name, why)
	case 1:
		s.late = append(s.late, late{name, func() { do() }})
		s.Note("%s: left behind; %s", name, why)
	case 2:
		s.Note("%s: not executed; %s", name, why)
	}
	s.told = append(s.told, name+why)
	switch (fate - 1) / 3 {
	case 0:
		return "", zk.ErrConnectionClosed
	case 1:
		s.ended = true
		return "", session.ErrEnded
	}
	s.cancel()
	return "", s.ctx.Err()
}

// retry is ask until there is an answer, as the session repeats requests.
func (s *servers) retry(name string, do func() string) (answer string, err error) {
	for {
		if answer, err = s.ask(name, do); err != zk.ErrConnectionClosed {
			return answer, err
		}
	}
}

// execute applies ops, all or none. It returns the index of the refused operation, and its error.
func (s *servers) execute(ops []any) (failed int, err error) {
	for i, op := range ops {
		switch op := op.(type) {
		case *zk.CheckVersionRequest:
			err = s.check(op.Path, op.Version)
		case *zk.DeleteRequest:
			err = s.check(op.Path, op.Version)
		case *zk.SetDataRequest:
			if s.counts(op.Path) < 0 {
				if err = s.check(op.Path, op.Version); s.nodes[op.Path] != nil && s.nodes[op.Path].readOnly {
					err = zk.ErrNoAuth
				}
			}
		}
		if err != nil {
			return i, err
		}
	}
	for _, op := range ops {
		switch op := op.(type) {
		case *zk.DeleteRequest:
			delete(s.nodes, op.Path)
		case *zk.SetDataRequest:
			if i := s.counts(op.Path); i >= 0 {
				if s.count[i]++; s.count[i] > 1 {
					s.Fail("applied twice")
				} else if s.never[i] {
					s.Fail("applied after the caller has learned that it was not")
				}
				continue
			}
			n := s.nodes[op.Path]
			n.version, n.data = n.version+1, string(op.Data)
		}
	}
	return -1, nil
}

// counts returns the number of the call that writes the znode at path, or -1.
func (s *servers) counts(path string) int {
	var i int
	if _, err := fmt.Sscanf(path, "/%d", &i); err != nil {
		return -1
	}
	return i
}

func (s *servers) check(path string, version int32) error {
	switch n := s.nodes[path]; {
	case n == nil:
		return zk.ErrNoNode
	case version != -1 && n.version != version:
		return zk.ErrBadVersion
	}
	return nil
}

// newPool returns a pool whose client is the model.
func (s *servers) newPool() *pool {
	return &pool{m: s.m, across: s.across, client: client{
		attemptMulti: s.attemptMulti, attemptCreate: s.attemptCreate, multi: s.retryMulti, set: s.set, exists: s.exists, makeDir: s.makeDir, drop: s.drop,
		recall: func(context.Context, *session.Incarnation, []any, int64) []zk.MultiResponse { return nil },
		vet:    func(context.Context, *session.Incarnation, znodes.Dir) error { return nil },
		pause:  func(*session.Incarnation, context.Context, int) error { return nil },
		loss:   func(*session.Incarnation) error { return errLoss },
	}}
}

func (s *servers) multi(send func(string, func() string) (string, error), ops []any) (rs []zk.MultiResponse, err error) {
	name := "multi"
	for _, op := range ops {
		switch op := op.(type) {
		case *zk.SetDataRequest:
			name += fmt.Sprint(" set ", s.log(op.Path), op.Version)
		case *zk.DeleteRequest:
			name += fmt.Sprint(" delete ", s.log(op.Path), op.Version)
		}
	}
	_, lost := send(name, func() string {
		var failed int
		failed, err = s.execute(ops)
		rs = make([]zk.MultiResponse, len(ops))
		if err != nil {
			rs[failed].Error = err
		}
		return fmt.Sprint(failed, err)
	})
	if lost != nil {
		return nil, lost
	}
	return rs, err
}

func (s *servers) attemptMulti(_ context.Context, _ *session.Incarnation, ops []any) (rs []zk.MultiResponse, open bool, err error) {
	// Between two attempts, the code remembers only this.
	t := s.t
	s.told = []string{fmt.Sprint(t.log != nil && t.log.used.IsZero(), t.open, t.why, znodes.FailedOp(t.whyRs) == 0)}
	rs, err = s.multi(s.ask, ops)
	return rs, session.OutcomeOf(err) == session.Unknown, err
}

func (s *servers) retryMulti(_ context.Context, _ *session.Incarnation, ops ...any) ([]zk.MultiResponse, error) {
	return s.multi(s.retry, ops)
}

func (s *servers) set(_ *session.Incarnation, _ context.Context, path string, data []byte, version int32) (stat *zk.Stat, err error) {
	op := &zk.SetDataRequest{Path: path, Data: data, Version: version}
	_, lost := s.retry(fmt.Sprint("set ", s.log(path), version), func() string {
		if _, err = s.execute([]any{op}); err == nil {
			stat = s.stat(path)
		}
		return fmt.Sprint(err)
	})
	if lost != nil {
		return nil, lost
	}
	return stat, err
}

func (s *servers) stat(path string) *zk.Stat {
	n := s.nodes[path]
	if n == nil {
		return nil
	}
	return &zk.Stat{Version: n.version, DataLength: int32(len(n.data))}
}

func (s *servers) exists(_ *session.Incarnation, _ context.Context, path string) (stat *zk.Stat, err error) {
	_, lost := s.retry("exists "+s.log(path), func() string {
		stat = s.stat(path)
		return fmt.Sprint(s.nodes[path])
	})
	if lost != nil {
		return nil, lost
	}
	return stat, nil
}

func (s *servers) attemptCreate(_ context.Context, _ *session.Incarnation, path string, _ []byte, _ int32, _ []zk.ACL) (open bool, err error) {
	_, lost := s.ask("create "+s.log(path), func() string {
		switch dir := s.nodes[znodes.ParentPath(path)]; {
		case dir == nil:
			err = zk.ErrNoNode
		case dir.readOnly:
			err = zk.ErrNoAuth
		default:
			s.nodes[path] = &znode{}
			err = nil
		}
		return fmt.Sprint(err)
	})
	if lost != nil {
		return session.OutcomeOf(lost) == session.Unknown, lost
	}
	return false, err
}

func (s *servers) makeDir(_ context.Context, _ *session.Incarnation, dir znodes.Dir) error {
	_, err := s.retry("makedir", func() string {
		if s.nodes[dir.Path] == nil {
			s.nodes[dir.Path] = &znode{}
		}
		return ""
	})
	return err
}

// drop lets the deletion arrive at any later time.
func (s *servers) drop(_ *pool, _ *session.Incarnation, l *log, _ bool) {
	path := l.path
	s.late = append(s.late, late{"delete " + s.log(path), func() { delete(s.nodes, path) }})
}

func TestEveryWayOfATransactionAppliesItOnce(t *testing.T) {
	m := new(session.Manager)
	plans := []plan{
		{calls: 2, faults: 1, acts: 1}, {calls: 1, faults: 1, acts: 2}, {calls: 1, faults: 3},
		{across: true, calls: 1, faults: 1, acts: 2}, {across: true, calls: 2, faults: 2}, {across: true, calls: 1, faults: 2, acts: 1},
	}
	if harness.Long() {
		plans = []plan{
			{calls: 2, faults: 3}, {calls: 2, faults: 2, acts: 1}, {calls: 1, faults: 1, acts: 3},
			{across: true, calls: 2, faults: 3}, {across: true, calls: 2, faults: 2, acts: 1}, {across: true, calls: 1, faults: 2, acts: 2},
		}
	}
	for _, p := range plans {
		t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) {
			found := explore.All(400_000, p.everyWay(m))
			t.Log(found)
			if found.Fault != "" || found.Cut {
				t.Error(found.Fault)
			}
		})
	}
}
