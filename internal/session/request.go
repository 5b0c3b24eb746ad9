package session

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// A call is what a request says and what its reply means.
type call[T any] struct {
	op   int32
	path string                  // "" if it is not of one znode
	moot bool                    // it changes nothing, whenever it is carried out
	body func(p []byte) []byte   // appends what follows the path; nil: nothing
	take func(s *wire.Scanner) T // takes the reply apart, which is no error; nil: there is nothing in it

	// judge, if it is not nil, is take for a reply that can tell of an error of
	// its own.
	judge func(s *wire.Scanner) (v T, code int32, err error)
}

// A pending is a request whose reply may be awaited, or left to someone else.
type pending[T any] struct {
	Done chan struct{} // closed when val and err are set
	val  T
	err  error
	call call[T]
	scan wire.Scanner // of the reply; here so that it is not allocated anew
	heir atomic.Pointer[func()]
}

func newPending[T any](c call[T]) *pending[T] {
	return &pending[T]{Done: make(chan struct{}), call: c}
}

func (p *pending[T]) opcode() int32 { return p.call.op }
func (p *pending[T]) moot() bool    { return p.call.moot }

func (p *pending[T]) encode(b []byte) []byte {
	if p.call.path != "" {
		b = wire.AppendString(b, p.call.path)
	}
	if p.call.body != nil {
		b = p.call.body(b)
	}
	return b
}

func (p *pending[T]) key() (key WatchKey, ok bool) {
	switch p.call.op {
	case wire.OpGetData, wire.OpExists, wire.OpGetChildren2:
		return WatchKey{kindOfRead(p.call.op), p.call.path}, true
	}
	return key, false
}

func (p *pending[T]) answer(code int32, body []byte) (whole int32, ok bool) {
	p.scan.Rest = body
	switch {
	case code != 0:
		p.err = codeError(code)
	case p.call.judge != nil:
		p.val, code, p.err = p.call.judge(&p.scan)
	case p.call.take != nil:
		p.val = p.call.take(&p.scan)
	}
	p.scan.Rest = nil // it is the link's
	return code, !p.scan.Bad
}

func (p *pending[T]) done() {
	close(p.Done)
	p.handOn()
}

func (p *pending[T]) fail(err error) {
	var zero T
	p.val, p.err = zero, err
	p.done()
}

// then has f called once, when Done is closed: so nobody needs a goroutine to wait
// for what a caller who has left would have waited for. f must not wait itself, as
// it may be called by the goroutine that reads from the network. It is called once
// at the latest when the session has ended and its connection is down, as what has
// no reply then fails. There is one f for a request.
func (p *pending[T]) then(f func()) {
	p.heir.Store(&f)
	if IsClosed(p.Done) {
		p.handOn()
	}
}

// handOn calls what then was given. It is called behind the close of Done, and
// behind the store of heir where Done is closed already: so the later of the two
// finds both, and where both do one of them takes it.
func (p *pending[T]) handOn() {
	if f := p.heir.Swap(nil); f != nil {
		(*f)()
	}
}

// Wait waits for the reply. When ctx or the incarnation ends first it returns
// their error, and the request is of unknown outcome.
func (p *pending[T]) Wait(ctx context.Context, inc *Incarnation) (T, error) {
	var zero T
	select {
	case <-p.Done:
	case <-inc.Ctx.Done():
		if !IsClosed(p.Done) {
			return zero, ErrEnded
		}
	case <-ctx.Done():
		return zero, CtxErr(ctx)
	}
	// The reply may have come at the instant in which the incarnation
	// ended. A result is still a fact about the past; whether something is
	// held on the strength of it is asked of inc.alive by whoever says so.
	if OutcomeOf(p.err) == Unknown && inc.Ctx.Err() != nil {
		return zero, ErrEnded
	}
	return p.val, p.err
}

// start sends a request of this incarnation as soon as there is a connection, and
// returns without waiting for the reply. What was sent may be executed whatever
// becomes of the caller, so a caller that leaves passes the pending on to someone
// who collects its effect.
//
// Requests have their places in the order when start returns: if two are on one
// connection, the one that was started first is executed first.
func start[T any](ctx context.Context, inc *Incarnation, c call[T]) (*pending[T], error) {
	l, err := inc.openLink(ctx)
	if err != nil {
		return nil, err
	}
	p := newPending(c)
	l.sendOrFail(p)
	return p, nil
}

// openLink waits for a connection.
func (inc *Incarnation) openLink(ctx context.Context) (*link, error) {
	if ctx.Err() != nil {
		return nil, CtxErr(ctx)
	}
	if err := inc.Connection(ctx); err != nil {
		return nil, err
	}
	if inc.Ctx.Err() != nil {
		return nil, ErrEnded
	}
	return inc.newestLink(), nil
}

// attempt makes a single attempt at a request. An error of unknown outcome is
// passed on as it is.
func attempt[T any](ctx context.Context, inc *Incarnation, c call[T]) (T, error) {
	p, err := start(ctx, inc, c)
	if err != nil {
		var zero T
		return zero, err
	}
	return p.Wait(ctx, inc)
}

// retry makes attempts at a request that may safely be applied twice, until it
// is answered. It is for reads, and for writes that name what they expect.
func retry[T any](ctx context.Context, inc *Incarnation, c call[T]) (v T, err error) {
	err = inc.repeat(ctx, func(*attempts) (err error) {
		v, err = attempt(ctx, inc, c)
		return err
	})
	return v, err
}

// attempts are those that were made so far at something.
type attempts struct {
	// open is that one of them was sent and has no answer: it may have been applied,
	// or may be yet, unless something that was answered since says that it cannot.
	open bool
	over bool // no other is made, whatever came of the last
}

// outcome notes what came of an attempt that was sent, and returns it.
func (a *attempts) outcome(err error) error {
	a.open = a.open || OutcomeOf(err) == Unknown
	return err
}

// last says that no other attempt is made, as err is not about one: something
// that had to be done in between has failed.
func (a *attempts) last(err error) error {
	a.over = true
	return err
}

// errAgain is returned by an attempt that is to be made again, at once: it was
// refused, for a reason that is none any more.
var errAgain = errors.New("zsync: BUG: to be tried again")

// repeat is how everything is tried again that has no answer. It calls f, which
// makes an attempt, until that is answered, and returns the answer: nil, or an error
// of the server's. When ctx or the incarnation ends first it is CtxErr or ErrEnded.
//
// Whoever does what must not be applied twice has f note the outcome of each attempt
// in a. Then a.open tells f that a refusal may be the work of an attempt before; and
// its caller, when all is over without success, that something has to be undone.
func (inc *Incarnation) repeat(ctx context.Context, f func(a *attempts) error) error {
	a := new(attempts)
	for try := 0; ; try++ {
		err := f(a)
		switch {
		case err == errAgain:
			continue
		case a.over, errors.Is(err, ErrEnded), OutcomeOf(err) == Answered:
			return err
		case ctx.Err() != nil:
			return CtxErr(ctx)
		}
		if err := inc.Pause(ctx, try); err != nil {
			return err
		}
	}
}

// Pause waits before the next attempt at something: not at all the first time,
// as a dropped connection is usually replaced at once.
func (inc *Incarnation) Pause(ctx context.Context, try int) error {
	d := inc.Manager.Config.Retry.Delay(try)
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return CtxErr(ctx)
	case <-inc.Ctx.Done():
		return ErrEnded
	}
}
