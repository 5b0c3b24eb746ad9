package repo

import (
	"context"
	"crypto/tls"
	"io"
	"iter"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
)

// What programs outside this module are compiled against. A signature that
// changes does not compile here.
type (
	doFunc  = func(ctx context.Context) error
	txnFunc = func(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)

	holder interface {
		Lost() <-chan struct{}
		Token(ctx context.Context) (int64, error)
		Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)
		Contenders(ctx context.Context) ([]zsync.Contender, error)
	}
	lock interface {
		zsync.Locker
		holder
		TryLock(ctx context.Context) (bool, error)
		Do(ctx context.Context, f func(ctx context.Context) error) error
	}
)

var (
	_ func(ctx context.Context, servers string, opts ...zsync.Option) (*zsync.Session, error) = zsync.Connect

	_ interface {
		Close() error
		ID() int64
		State() zsync.State
		States(ctx context.Context) <-chan zsync.State
		Stats() zsync.Stats
		Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)
	} = (*zsync.Session)(nil)
	_ = []zsync.State{zsync.StateConnecting, zsync.StateConnected, zsync.StateSuspended, zsync.StateExpired, zsync.StateClosed}

	_ func(d time.Duration) zsync.Option              = zsync.WithSessionTimeout
	_ func(acl []zk.ACL) zsync.Option                 = zsync.WithACL
	_ func(scheme string, auth []byte) zsync.Option   = zsync.WithAuth
	_ func(cfg *tls.Config) zsync.Option              = zsync.WithTLS
	_ func(d zk.Dialer) zsync.Option                  = zsync.WithDialer
	_ func(l *slog.Logger) zsync.Option               = zsync.WithLogger
	_ func(name string) zsync.Option                  = zsync.WithOwner
	_ func(b zsync.Backoff) zsync.Option              = zsync.WithRetry
	_ func(o zsync.Observer) zsync.Option             = zsync.WithObserver
	_ func(t zsync.Tracer) zsync.Option               = zsync.WithTracer
	_ func() zsync.Option                             = zsync.WithLossOnSuspend
	_ func(n int) zsync.LockOption                    = zsync.WithHandoffs
	_ func(d time.Duration) zsync.LockOption          = zsync.WithRetention
	_ func(l zsync.Layout) zsync.LockOption           = zsync.WithLayout
	_ func() zsync.WaitGroupOption                    = zsync.WithPersistentTasks
	_ func(n int) zsync.QueueOption                   = zsync.WithPrefetch
	_ zsync.QueueOption                               = zsync.WithCodec(zsync.JSON)
	_ zsync.ValueOption                               = zsync.WithCodec(zsync.Raw)
	_                                                 = []zsync.Layout{zsync.LayoutCurator, zsync.LayoutKazoo}
	_ func(context.Context, zsync.Locker) sync.Locker = zsync.SyncLocker

	_ lock = (*zsync.Mutex)(nil)
	_ lock = (*zsync.RWMutex)(nil)
	_ interface {
		RLock(ctx context.Context) error
		TryRLock(ctx context.Context) (bool, error)
		RUnlock() error
		RDo(ctx context.Context, f func(ctx context.Context) error) error
		RLocker() zsync.Locker
		Downgrade(ctx context.Context) error
	} = (*zsync.RWMutex)(nil)
	_ func(*zsync.Session, string, ...zsync.LockOption) *zsync.Mutex                                                                            = zsync.NewMutex
	_ func(*zsync.Session, string, ...zsync.LockOption) *zsync.RWMutex                                                                          = zsync.NewRWMutex
	_ func(context.Context, ...zsync.Locker) (func() error, error)                                                                              = zsync.LockAll
	_ func(*zsync.Session, string, ...zsync.WaitGroupOption) *zsync.WaitGroup                                                                   = zsync.NewWaitGroup
	_ func(*zsync.Session, string) *zsync.Once                                                                                                  = zsync.NewOnce
	_ func(*zsync.Session, string, doFunc) doFunc                                                                                               = zsync.OnceFunc
	_ func(*zsync.Session, string, zsync.Locker) *zsync.Cond                                                                                    = zsync.NewCond
	_ func(*zsync.Session, string, ...zsync.ElectionOption) *zsync.Election                                                                     = zsync.NewElection
	_ func(*zsync.Session, string) *zsync.Barrier                                                                                               = zsync.NewBarrier
	_ func(*zsync.Session, string, int64, ...zsync.LockOption) *zsync.Semaphore                                                                 = zsync.NewSemaphore
	_ func(*zsync.Session, string, ...zsync.ValueOption) *zsync.Value[int]                                                                      = zsync.NewValue[int]
	_ func(*zsync.Session, string, ...zsync.QueueOption) *zsync.Queue[int]                                                                      = zsync.NewQueue[int]
	_ func(*zsync.Session, string, func(context.Context) (int, error), ...zsync.ValueOption) func(context.Context) (int, error)                 = zsync.OnceValue[int]
	_ func(*zsync.Session, string, func(context.Context) (int, string, error), ...zsync.ValueOption) func(context.Context) (int, string, error) = zsync.OnceValues[int, string]

	_ interface {
		Add(ctx context.Context, delta int) error
		Done() error
		Wait(ctx context.Context) error
		Go(ctx context.Context, f func()) error
		Count(ctx context.Context) (int, error)
		Enter(ctx context.Context, n int) error
		Leave(ctx context.Context) error
	} = (*zsync.WaitGroup)(nil)
	_ interface {
		Do(ctx context.Context, f func(ctx context.Context) error) error
		Done(ctx context.Context) (bool, error)
		Reset(ctx context.Context) error
	} = (*zsync.Once)(nil)
	_ interface {
		Wait(ctx context.Context) error
		Signal(ctx context.Context) error
		Broadcast(ctx context.Context) error
	} = (*zsync.Cond)(nil)
	_ zsync.Locker = zsync.Cond{}.L
	_ interface {
		Send(ctx context.Context, vs ...string) error
		Recv(ctx context.Context) <-chan string
		In(ctx context.Context) (in chan<- string, done <-chan error)
		Deliveries(ctx context.Context) <-chan zsync.Delivery[string]
		TryRecv(ctx context.Context) (v string, ok bool, err error)
		Len(ctx context.Context) (int, error)
	} = (*zsync.Queue[string])(nil)
	_ interface {
		Ack(ctx context.Context) error
		Nack() error
	} = zsync.Delivery[string]{Value: ""}
	_ interface {
		Marshal(v any) ([]byte, error)
		Unmarshal(data []byte, v any) error
	} = zsync.Codec(nil)
	_ interface {
		holder
		Campaign(ctx context.Context) error
		Resign() error
		Run(ctx context.Context, f func(ctx context.Context) error) error
		Leader(ctx context.Context) (zsync.Contender, error)
		Observe(ctx context.Context) <-chan zsync.Contender
	} = (*zsync.Election)(nil)
	_ interface {
		Close(ctx context.Context) error
		Open(ctx context.Context) error
		Wait(ctx context.Context) error
	} = (*zsync.Barrier)(nil)
	_ interface {
		Acquire(ctx context.Context, n int64) error
		TryAcquire(ctx context.Context, n int64) (bool, error)
		Release(n int64) error
		Lost() <-chan struct{}
	} = (*zsync.Semaphore)(nil)
	_ interface {
		Load(ctx context.Context) (int, zsync.Version, error)
		Store(ctx context.Context, x int) error
		CompareAndSwap(ctx context.Context, old zsync.Version, x int) (bool, error)
		Update(ctx context.Context, f func(int) (int, error)) (int, error)
		Watch(ctx context.Context) <-chan int
	} = (*zsync.Value[int])(nil)

	_ = zsync.Contender{Owner: "", Node: "", Session: int64(0), Mode: zsync.Mode(0), Holding: false, Since: time.Time{}}
	_ = zsync.Error{Op: "", Path: "", Err: error(nil)}

	_ func(context.Context, ...zsync.Locker) (context.Context, func() error, error)                            = zsync.LockAllContext
	_ func(time.Duration) zsync.LockOption                                                                     = zsync.WithMaxHold
	_ func(func(context.Context) error) zsync.LockOption                                                       = zsync.WithHealth
	_ func(int) zsync.ElectionOption                                                                           = zsync.WithPriority
	_ func(*zsync.Session, string, time.Duration, ...zsync.ValueOption) *zsync.Flight[int]                     = zsync.NewFlight[int]
	_ func(*zsync.Flight[int], context.Context, string, func(context.Context) (int, error)) (int, bool, error) = (*zsync.Flight[int]).Do
	_ func(*zsync.Mutex, context.Context) error                                                                = (*zsync.Mutex).Revoke
	_ func(*zsync.Mutex) <-chan struct{}                                                                       = (*zsync.Mutex).Revoked
	_ func(*zsync.Election, context.Context, zsync.Contender) error                                            = (*zsync.Election).Transfer
	_                                                                                                          = zsync.WaitError{Behind: zsync.Contender{}, Place: 0, Waited: time.Duration(0)}

	_ interface {
		Timeout() time.Duration
		Margin() time.Duration
	} = (*zsync.Session)(nil)
	_ func(io.Writer) zsync.Option = zsync.WithTrace
	_ error                        = &zsync.LostError{Reason: zsync.LossExpired, Session: int64(0), Since: time.Time{}}
	_                              = []zsync.LossReason{zsync.LossCutOff, zsync.LossPaused, zsync.LossReplaced, zsync.LossDeleted, zsync.LossClosed, zsync.LossSuspended, zsync.LossGivenUp}
	_ error                        = (*zsync.WaitError)(nil)
	_ error                        = zsync.ErrMixed
	_                              = zsync.Contender{Retained: false}

	_ interface {
		Do(ctx context.Context, n int64, f func(ctx context.Context) error) error
		Resize(ctx context.Context, n int64) error
		Token(ctx context.Context) (int64, error)
		Txn(ctx context.Context, ops ...any) ([]zk.MultiResponse, error)
	} = (*zsync.Semaphore)(nil)

	_ func(*zsync.Session, string, ...zsync.ValueOption) *zsync.Map[int] = zsync.NewMap[int]
	_ interface {
		Load(ctx context.Context, key string) (int, zsync.Version, error)
		Store(ctx context.Context, key string, v int) error
		LoadOrStore(ctx context.Context, key string, v int) (actual int, loaded bool, err error)
		LoadAndDelete(ctx context.Context, key string) (int, bool, error)
		Delete(ctx context.Context, key string) error
		Swap(ctx context.Context, key string, v int) (previous int, loaded bool, err error)
		CompareAndSwap(ctx context.Context, key string, old zsync.Version, v int) (bool, error)
		CompareAndDelete(ctx context.Context, key string, old zsync.Version) (bool, error)
		Len(ctx context.Context) (int, error)
		Clear(ctx context.Context) error
		Range(ctx context.Context, f func(key string, v int) bool) error
		All(ctx context.Context) iter.Seq2[zsync.MapEntry[int], error]
		Watch(ctx context.Context) <-chan map[string]int
	} = (*zsync.Map[int])(nil)
	_ = zsync.MapEntry[int]{Key: "", Value: 0, Version: zsync.Version{}}

	_ func(*zsync.Session, string, ...zsync.ValueOption) *zsync.Int64 = zsync.NewInt64
	_ interface {
		Load(ctx context.Context) (int64, error)
		Store(ctx context.Context, n int64) error
		Add(ctx context.Context, delta int64) (int64, error)
		Swap(ctx context.Context, n int64) (int64, error)
		CompareAndSwap(ctx context.Context, old, new int64) (bool, error)
	} = (*zsync.Int64)(nil)

	_ func(*zsync.Session, string, ...zsync.ScheduleOption) *zsync.Schedule = zsync.NewSchedule
	_ interface {
		Do(ctx context.Context, at time.Time, f func(ctx context.Context) error) (ran bool, err error)
		LastFailure(ctx context.Context) (zsync.ScheduleFailure, error)
		Run(ctx context.Context, next zsync.Timetable, f func(ctx context.Context, at time.Time) error) error
		Last(ctx context.Context) (time.Time, error)
	} = (*zsync.Schedule)(nil)
	_ func(time.Duration) interface{ Next(time.Time) time.Time } = zsync.Every
	_ func(string, *time.Location) (zsync.Timetable, error)      = zsync.Daily
	_ func(string, *time.Location) (zsync.Timetable, error)      = zsync.Cron
	_ func(int, zsync.Backoff) zsync.ScheduleOption              = zsync.WithRetries
	_ func(zsync.MissedPolicy) zsync.ScheduleOption              = zsync.WithMissed
	_                                                            = []zsync.ElectionOption{zsync.WithMaxHold(1), zsync.WithHealth(nil), zsync.WithLayout(zsync.LayoutSelector)}
	_ zsync.GroupOption                                          = zsync.WithLayout(zsync.LayoutKazoo)
	_ func(zsync.Delivery[int]) error                            = zsync.Delivery[int].Return
	_ func(*zsync.Queue[int], ...int) zsync.QueueOp              = (*zsync.Queue[int]).SendOp
	_                                                            = []zsync.EventKind{zsync.EventAcquired, zsync.EventGaveUp, zsync.EventReleased, zsync.EventLost, zsync.EventDead, zsync.EventConnected, zsync.EventSuspended, zsync.EventReconnected, zsync.EventExpired}
	_                                                            = []zsync.OpKind{zsync.OpAcquire, zsync.OpHold, zsync.OpWait, zsync.OpQueue}
	_                                                            = []zsync.MissedPolicy{zsync.MissedLatest, zsync.MissedSkip, zsync.MissedAll}

	_ func(*zsync.Session, string, ...zsync.GroupOption) *zsync.Group[int] = zsync.NewGroup[int]
	_ interface {
		Join(ctx context.Context, id string, info int) (*zsync.Membership[int], error)
		Members(ctx context.Context) ([]zsync.Member[int], error)
		Watch(ctx context.Context) <-chan []zsync.Member[int]
	} = (*zsync.Group[int])(nil)
	_ = zsync.Member[int]{ID: "", Info: 0, Session: int64(0), Since: time.Time{}}
	_ interface {
		Set(ctx context.Context, info int) error
		Leave() error
	} = (*zsync.Membership[int])(nil)
	_ func(*zsync.Session, string, ...zsync.PartitionOption) *zsync.Partition = zsync.NewPartition
	_ interface {
		Run(ctx context.Context, shards []string, f func(ctx context.Context, shard string) error) error
	} = (*zsync.Partition)(nil)
)

func TestErrorsOfTheContractAreDistinct(t *testing.T) {
	seen := make(map[error]bool)
	for _, err := range []error{zsync.ErrLost, zsync.ErrClosed, zsync.ErrNotLocked, zsync.ErrDeadlock, zsync.ErrNegativeCounter,
		zsync.ErrPanicked, zsync.ErrNoLeader, zsync.ErrNoValue} {
		if err == nil || seen[err] {
			t.Errorf("%v is nil or stands for two things", err)
		}
		seen[err] = true
	}
	var _ txnFunc = (*zsync.Session)(nil).Txn
}
