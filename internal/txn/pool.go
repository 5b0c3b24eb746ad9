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
)

// The type `client` is a session, with the methods that a transaction needs. Tests have a model of
// a client.
type client interface {
	AttemptMulti(ctx context.Context, ops []any) ([]zk.MultiResponse, error)
	AttemptCreate(ctx context.Context, path string, data []byte, flags int32, acl []zk.ACL) (string, error)
	Multi(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)
	Set(ctx context.Context, path string, data []byte, version int32) (*zk.Stat, error)
	Exists(ctx context.Context, path string) (*zk.Stat, error)
	Recall(ctx context.Context, ops []any, zxid int64) []zk.MultiResponse
	Vet(ctx context.Context, dir session.Dir) error
	MakeDir(ctx context.Context, dir session.Dir) error
	Pause(ctx context.Context, try int) error
	Loss() error
}

// The type `log` is a znode that only this client writes.
type log struct {
	path    string
	version int32     // of the znode, before the transaction writes it
	used    time.Time // when it was put into a pool
}

// logACL returns the ACL of a log. It is the session's ACL, but every client with the permission to
// create also has the permission to write.
func logACL(cfg session.Config) []zk.ACL {
	acl := slices.Clone(cfg.ACL)
	lacks := func(e zk.ACL) bool { return e.Perms&zk.PermCreate != 0 && e.Perms&zk.PermWrite == 0 }
	switch {
	case !slices.ContainsFunc(acl, lacks):
	case len(cfg.Auths) > 0: // only this client gets the permission
		acl = append(acl, zk.ACL{Scheme: "auth", Perms: zk.PermWrite})
	default:
		for i, e := range acl {
			if lacks(e) {
				acl[i].Perms |= zk.PermWrite
			}
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
	m     *session.Manager
	flags int32 // of its znodes

	drop func(inc client, l *log, later bool) // the method `delete`, or its model

	shut shared.Cache[bool] // true for directories in which the servers do not let us make or write logs

	mu    sync.Mutex
	idle  map[string][]*log // by directory; the logs of a directory are in the order of their last use
	n     int               // the number of logs in `idle`
	swept bool              // whether the function `sweep` is running
}

func poolOf(m *session.Manager, attached *sync.Map, flags int32) *pool {
	return shared.Attached(attached, func() *pool { return newPool(m, flags) })
}

func newPool(m *session.Manager, flags int32) *pool {
	p := &pool{m: m, flags: flags, idle: make(map[string][]*log)}
	p.drop = p.delete
	return p
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

func (p *pool) ephemeral() bool { return p.flags == zk.FlagEphemeral }

// The method `take` removes a log in `dir` from p, and returns the log, or nil if p has none there.
func (p *pool) take(dir string) *log {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle[dir])
	if n == 0 {
		return nil
	}
	l := p.idle[dir][n-1]
	p.idle[dir] = p.idle[dir][:n-1]
	p.n--
	return l
}

// The method `keep` puts l into the pool for another transaction, or deletes l. It deletes an ephemeral
// log that is not at the root, because the directory of the log could not be deleted.
func (p *pool) keep(inc client, l *log) {
	dir := session.ParentPath(l.path)
	if p.ephemeral() && dir != p.m.Full("/") {
		p.drop(inc, l, false)
		return
	}
	p.mu.Lock()
	kept := len(p.idle[dir]) < MaxIdle && p.n < MaxIdleAll && l.version < lastVersion
	sweep := kept && !p.swept && !p.ephemeral()
	if kept {
		l.used = time.Now()
		p.idle[dir] = append(p.idle[dir], l)
		p.n++
	}
	p.swept = p.swept || sweep
	p.mu.Unlock()
	switch {
	case !kept:
		p.drop(inc, l, false)
	case sweep:
		leaving, done := p.m.BeforeClose() // called before Spawn, so that a Close at this moment waits for the sweep
		p.m.Spawn(func() {
			defer done()
			p.sweep(leaving)
		})
	}
}

// The function `old` removes from p, and returns, the logs that were last used at the time `until`
// or before. If `more` is true, logs remain, and `next` is their earliest time of last use.
func (p *pool) old(until time.Time) (paths []string, next time.Time, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for dir, ls := range p.idle {
		n := 0
		for n < len(ls) && !ls[n].used.After(until) {
			paths = append(paths, ls[n].path)
			n++
		}
		p.n -= n
		if p.idle[dir] = ls[n:]; n == len(ls) {
			delete(p.idle, dir)
		} else if !more || ls[n].used.Before(next) {
			next, more = ls[n].used, true
		}
	}
	p.swept = more
	return paths, next, more
}

// The method `sweep` deletes each log that no transaction has used for IdleTime. It returns when
// the pool is empty. When the Session closes, sweep deletes all logs.
func (p *pool) sweep(leaving <-chan struct{}) {
	m := p.m
	for over := false; ; {
		until := time.Now().Add(-IdleTime)
		if over {
			until = until.Add(time.Hour)
		}
		paths, next, more := p.old(until)
		for some := range slices.Chunk(paths, 128) {
			f := func() error {
				return m.During(session.Finishing, func(inc *session.Incarnation) error { return inc.RemoveNow(session.Finishing, some...) })
			}
			if over {
				f() // in this goroutine, because Close waits for it
			} else if inc, err := m.Incarnation(session.Finishing); err == nil {
				inc.Tidy(&session.Deletion{Paths: some, By: f})
			}
		}
		if !more || over {
			return
		}
		select {
		case <-time.After(time.Until(next.Add(IdleTime))):
		case <-leaving:
			over = true
		case <-m.Over:
			return
		}
	}
}

// The method `delete` deletes l in the background. If `later` is true, a request that creates l may
// still arrive, and delete first waits until it cannot. If this session ends first, the next session
// deletes a persistent log. If the servers refuse that deletion, only this session tries it again.
func (p *pool) delete(client client, l *log, later bool) {
	inc, m := client.(*session.Incarnation), p.m
	if p.ephemeral() {
		// If the servers refuse the deletion, the client tries it again, because the session may live long.
		d := inc.Tidy(&session.Deletion{Paths: []string{l.path}, By: func() error { return inc.RemoveNow(inc.Ctx, l.path) }})
		if session.ParentPath(l.path) != m.Full("/") {
			d.Await(session.ReleaseTime)
		}
		return
	}
	d := &session.Deletion{Paths: []string{l.path}, MayStay: true, By: func() error {
		return m.During(session.Finishing, func(inc *session.Incarnation) error { return inc.RemoveNow(session.Finishing, l.path) })
	}}
	if !later {
		inc.Tidy(d)
		return
	}
	leaving, done := m.BeforeClose()
	m.Spawn(func() {
		defer done()
		select {
		case <-time.After(2 * time.Duration(inc.Timeout.Load())):
			inc.Delete(d)
		case <-leaving: // the request that creates the znode has most likely arrived by now
			d.By()
		case <-m.Over:
		}
	})
}
