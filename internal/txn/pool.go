package txn

// This file keeps the unused logs of transactions for later transactions, or deletes them.

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/shared"
	"github.com/zsync/zsync/internal/znodes"
)

// The type `client` has the functions by which a transaction uses a session. Tests have a model of
// them.
type client struct {
	attemptMulti  func(ctx context.Context, inc *session.Incarnation, ops []any) (rs []zk.MultiResponse, open bool, err error)
	attemptCreate func(ctx context.Context, inc *session.Incarnation, path string, data []byte, flags int32, acl []zk.ACL) (open bool, err error)
	multi         func(ctx context.Context, inc *session.Incarnation, ops ...any) ([]zk.MultiResponse, error)
	set           func(inc *session.Incarnation, ctx context.Context, path string, data []byte, version int32) (*zk.Stat, error)
	exists        func(inc *session.Incarnation, ctx context.Context, path string) (*zk.Stat, error)
	recall        func(ctx context.Context, inc *session.Incarnation, ops []any, zxid int64) []zk.MultiResponse
	vet, makeDir  func(ctx context.Context, inc *session.Incarnation, dir znodes.Dir) error
	pause         func(inc *session.Incarnation, ctx context.Context, try int) error
	loss          func(inc *session.Incarnation) error
	drop          func(p *pool, inc *session.Incarnation, l *log, later bool) // the method `delete`
}

var actual = client{
	attemptMulti: znodes.AttemptMulti, attemptCreate: znodes.AttemptCreate, multi: znodes.Multi, recall: znodes.Recall,
	set: (*session.Incarnation).Set, exists: (*session.Incarnation).Exists, vet: znodes.Vet, makeDir: znodes.MakeDir,
	pause: (*session.Incarnation).Pause, loss: (*session.Incarnation).Loss, drop: (*pool).delete,
}

// The type `log` is a znode that only this client writes.
type log struct {
	dir     string
	path    string    // in dir
	version int32     // of the znode, before the transaction writes it
	used    time.Time // when it was last put into a pool; zero if it is new
}

// logACL returns the ACL of a log. It is the session's ACL, but every client with the permission to
// create also has the permission to write.
func logACL(cfg session.Config) []zk.ACL {
	acl := slices.Clone(cfg.ACL)
	for i, e := range cfg.ACL {
		switch {
		case e.Perms&zk.PermCreate == 0 || e.Perms&zk.PermWrite != 0:
		case len(cfg.Auths) > 0: // only this client gets the permission
			return append(acl, zk.ACL{Scheme: "auth", Perms: zk.PermWrite})
		default:
			acl[i].Perms |= zk.PermWrite
		}
	}
	return acl
}

// The function `holds` makes the data for the next write to the log. The argument says whether a
// transaction makes that write. If another write comes first, the transaction is barred: its own
// write then fails.
func (l *log) holds(transaction bool) []byte {
	data := strconv.AppendInt(nil, int64(l.version), 10)
	if !transaction {
		data = append(data, " barred"...)
	}
	return data
}

// The method `write` returns the operation by which a transaction writes the log l.
func (l *log) write() any {
	return &zk.SetDataRequest{Path: l.path, Data: l.holds(true), Version: l.version}
}

// The method `wrote` reports whether the latest write to the log was our write at l.version, with the
// transaction or without it. The two writes, and a write by another client, leave data of different
// lengths, which the Stat shows.
func (l *log) wrote(transaction bool, stat *zk.Stat) bool {
	return stat.Version == l.version+1 && int(stat.DataLength) == len(l.holds(transaction))
}

// IsLogName reports whether name is the name of a persistent log.
func IsLogName(name string) bool {
	guid, ok := strings.CutPrefix(name, "_c_")
	guid, ok2 := strings.CutSuffix(guid, "-receipt")
	return ok && ok2 && len(guid) == 36 && uuid.Validate(guid) == nil
}

// IsLog reports whether a znode with the name of a log also has the data of a log.
func IsLog(data []byte, stat *zk.Stat) bool {
	l := log{version: stat.Version - 1}
	return stat.EphemeralOwner == 0 && (stat.Version == 0 && len(data) == 0 || bytes.Equal(data, l.holds(true)) || bytes.Equal(data, l.holds(false)))
}

// The type `pool` has the logs that no transaction uses now: the ephemeral logs of one session, or
// all persistent logs of a Session.
type pool struct {
	client
	m      *session.Manager
	across bool // its logs are persistent

	shut shared.Cache[bool] // true for directories in which the servers do not let us make or write logs

	mu    sync.Mutex
	idle  []*log // in the order of their last use
	swept bool   // whether the method `sweep` is running
}

func poolOf(m *session.Manager, attached *sync.Map, across bool) *pool {
	return shared.Attached(attached, func() *pool { return &pool{client: actual, m: m, across: across} })
}

// A pool keeps at most MaxIdle logs in a directory, and at most MaxIdleAll in all. After use,
// further logs are deleted. A persistent log is kept for IdleTime. A log at lastVersion is not used
// again: its version must not become -1, which means any version.
const (
	MaxIdle     = 16
	MaxIdleAll  = 1024
	IdleTime    = time.Minute
	lastVersion = math.MaxInt32 - 1
)

// The method `take` removes the log in `dir` that was used last from p, and returns it, or nil if p has
// none there.
func (p *pool) take(dir string) *log {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range slices.Backward(p.idle) {
		if l.dir == dir {
			p.idle = slices.Delete(p.idle, i, i+1)
			return l
		}
	}
	return nil
}

// The method `put` puts l into the pool for another transaction, or deletes l. It keeps no ephemeral
// log that is not at the root, because the directory of the log could not be deleted.
func (p *pool) put(inc *session.Incarnation, l *log, again bool) {
	p.mu.Lock()
	beside := 0
	for _, other := range p.idle {
		if other.dir == l.dir {
			beside++
		}
	}
	kept := again && beside < MaxIdle && len(p.idle) < MaxIdleAll && l.version < lastVersion && (p.across || l.dir == p.m.Full("/"))
	sweep := kept && !p.swept && p.across
	if kept {
		l.used = time.Now()
		p.idle = append(p.idle, l)
	}
	p.swept = p.swept || sweep
	p.mu.Unlock()
	switch {
	case !kept:
		p.drop(p, inc, l, false)
	case sweep:
		leaving, done := p.m.BeforeClose() // called before Spawn, so that a Close at this moment waits for the sweep
		p.m.Spawn(func() {
			defer done()
			p.sweep(leaving)
		})
	}
}

// The method `sweep` deletes each log that no transaction has used for IdleTime. It returns when
// the pool is empty. When the Session closes, sweep deletes all logs.
func (p *pool) sweep(leaving <-chan struct{}) {
	for more := true; more; {
		closing := session.IsClosed(leaving)
		var paths []string
		var next time.Time
		p.mu.Lock()
		for len(p.idle) > 0 && (closing || time.Since(p.idle[0].used) >= IdleTime) {
			paths = append(paths, p.idle[0].path)
			p.idle = p.idle[1:]
		}
		if more = len(p.idle) > 0; more {
			next = p.idle[0].used.Add(IdleTime)
		}
		p.swept = more
		p.mu.Unlock()
		for some := range slices.Chunk(paths, 128) {
			if inc, err := p.m.Incarnation(session.Finishing); err == nil {
				p.remove(inc, some...)
			}
		}
		if more {
			select {
			case <-time.After(time.Until(next)):
			case <-leaving:
			case <-p.m.Over:
				return
			}
		}
	}
}

// The method `remove` deletes logs in the background. If this session ends first, the next session
// deletes them. If the servers refuse the deletion, only this session tries it again.
func (p *pool) remove(inc *session.Incarnation, paths ...string) *znodes.Deletion {
	return znodes.Tidy(inc, &znodes.Deletion{Paths: paths, By: func() error {
		return p.m.During(session.Finishing, func(inc *session.Incarnation) error { return znodes.RemoveNow(session.Finishing, inc, paths...) })
	}})
}

// The method `delete` deletes l in the background. If `later` is true, a request that creates l may
// still arrive, and delete first waits until it cannot, unless l is ephemeral.
func (p *pool) delete(inc *session.Incarnation, l *log, later bool) {
	m := p.m
	if !p.across || !later {
		d := p.remove(inc, l.path)
		if !p.across && l.dir != m.Full("/") {
			d.Await(session.ReleaseTime)
		}
		return
	}
	leaving, done := m.BeforeClose()
	m.Spawn(func() {
		defer done()
		select {
		case <-time.After(2 * time.Duration(inc.Timeout.Load())):
		case <-leaving: // the request that creates the znode has most likely arrived by now
		case <-m.Over:
			return
		}
		p.remove(inc, l.path)
	})
}
