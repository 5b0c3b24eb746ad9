package session

// This file has the settings of a session. The public package sets their defaults.

import (
	"cmp"
	"crypto/tls"
	"io"
	"log/slog"
	"math"
	"reflect"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/conn"
	"github.com/zsync/zsync/internal/dice"
	"github.com/zsync/zsync/internal/sasl"
)

// Config has the settings of a session. The root package sets their defaults.
type Config struct {
	Timeout       time.Duration
	ACL           []zk.ACL // of every znode that is created
	Auths         []conn.Auth
	SASL          *sasl.Client // or nil
	TLS           *tls.Config
	Dialer        zk.Dialer
	Log           *slog.Logger
	Owner         string // written into the znodes of a line
	Retry         RetryPolicy
	Observe       func(Report)                                                           // or nil
	Lost          func(why LossCause, session int64, since time.Time, cause error) error // makes an ErrLost; `cause` may be nil
	LossOnSuspend bool
	CloseTimeout  time.Duration                   // how long Close waits for functions; a negative value means the session timeout
	Trace         io.Writer                       // or nil
	Reason        func(error) (string, time.Time) // for the trace: returns the reason of a loss, in one word, and the time of the loss
}

// ApplyEach calls `apply` for each option of a constructor. If an option is nil, it sets *err.
func ApplyEach[O any](what string, opts []O, err *error, apply func(O)) {
	for i, o := range opts {
		if v := reflect.ValueOf(o); !v.IsValid() || v.Kind() == reflect.Func && v.IsNil() {
			*err = Invalid("%s option %d is nil", what, i)
			continue
		}
		apply(o)
	}
}

// A RetryPolicy paces attempts. The first repetition is immediate. The delay before the n'th of the
// following repetitions is `Min` × `Factor`ⁿ⁻¹, but at most `Max`. This delay is reduced at random,
// by up to the fraction `Jitter`.
type RetryPolicy struct {
	Min, Max time.Duration
	Factor   float64 // at least 1; 0 means 2
	Jitter   float64 // from 0 to 1
}

// Delay returns the time to wait before the repetition with the number `try`, counted from 0.
func (b RetryPolicy) Delay(try int) time.Duration {
	if try <= 0 {
		return 0
	}
	d := b.Max
	if g := float64(b.Min) * math.Pow(cmp.Or(b.Factor, 2), float64(try-1)); g < float64(b.Max) {
		d = time.Duration(g)
	}
	// d/2, because d as a float64 may exceed the largest Duration
	return d - time.Duration(float64(d/2)*b.Jitter*dice.Rand().Float64())*2
}
