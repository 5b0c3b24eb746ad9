package fence

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
)

// This file fences an HTTP service within one process. It does not fence a
// service of several processes: these must check the write itself, see sql.go.

// Header is the header field of a request that has the token, in decimal
// digits. A response that refuses a stale token has the newest token in this
// field.
const Header = "Fencing-Token"

// SetToken puts a token into the header of a request.
func SetToken(h http.Header, token int64) { h.Set(Header, strconv.FormatInt(token, 10)) }

// Token returns the token in the header of a request.
func Token(h http.Header) (int64, error) {
	values := h.Values(Header)
	if len(values) != 1 {
		return 0, fmt.Errorf("%w: %d %s fields, want one", ErrInvalid, len(values), Header)
	}
	token, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || token <= 0 {
		return 0, fmt.Errorf("%w: %s %q, want a positive number", ErrInvalid, Header, values[0])
	}
	return token, nil
}

// NewHandler returns a handler that lets next serve the requests whose token is
// not stale:
//
//	http.Handle("/accounts/", fence.NewHandler(accounts, fence.Dir("/var/lib/accounts/fences"), nil))
//
// It refuses the other requests:
//
//   - 412 Precondition Failed: the resource has seen a greater token;
//   - 428 Precondition Required: the request has no token;
//   - 400 Bad Request: the token is not a positive number, or the resource's
//     name has more than 255 bytes;
//   - 503 Service Unavailable: the store has failed.
//
// It serves a GET, HEAD or OPTIONS request without a token, because reads do no
// harm.
//
// If a greater token arrives while next serves requests with smaller tokens,
// the handler ends their contexts with the cause [ErrStale], and the new
// request waits until next has returned from them. So next never serves two
// tokens of one resource at once, and never a token after a greater one.
//
// The store keeps the greatest tokens. If store is nil, the handler keeps them
// in memory, until the process ends. resource returns the name of the resource
// that a request writes to. If resource is nil, the name is the path of the
// request's URL.
//
// All this holds within one process. Several processes that serve the same
// resource can share a store, but a request that one process has admitted can
// still write after another process has served a greater token. In this case,
// check the write itself with [Table.Do].
func NewHandler(next http.Handler, store Store, resource func(*http.Request) string) http.Handler {
	if store == nil {
		store = new(Memory)
	}
	if resource == nil {
		resource = func(r *http.Request) string { return r.URL.Path }
	}
	return &handler{next: next, store: store, resource: resource, doors: make(map[string]*door)}
}

type handler struct {
	next     http.Handler
	store    Store
	resource func(*http.Request) string

	mu    sync.Mutex
	doors map[string]*door // by resource, if there are requests for it; guarded by mu
}

// The type `door` admits the requests for one resource. The handler's mu guards its fields.
type door struct {
	requests int // number of requests that wait or are inside
	newest   int64
	inside   int
	serving  int64             // the token of the requests inside
	end      func(cause error) // ends the contexts of the requests inside
	empty    chan struct{}     // closed when the last request has left
	ctx      context.Context   // of the requests inside
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.Header.Values(Header)) == 0 {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			h.next.ServeHTTP(w, r)
		default:
			http.Error(w, "fence: this needs a "+Header, http.StatusPreconditionRequired)
		}
		return
	}
	token, err := Token(r.Header)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := h.resource(r)
	d := h.come(name)
	defer h.leave(name, d)
	// Ask the store first. Before this request enters, a request with a greater
	// token may have entered and left. Then enter refuses this request: the
	// door remembers the greater token, and exists as long as this request.
	err = h.store.Advance(r.Context(), name, token)
	if err == nil {
		err = h.enter(r.Context(), name, d, token)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	defer h.exit(d)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	inside := d.ctx // when the last request inside has left, d gets another context
	stop := context.AfterFunc(inside, func() { cancel(context.Cause(inside)) })
	defer stop()
	h.next.ServeHTTP(w, r.WithContext(ctx))
}

func refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	var stale *StaleError
	switch {
	case errors.As(err, &stale):
		status = http.StatusPreconditionFailed
		if stale.Newest > 0 {
			SetToken(w.Header(), stale.Newest)
		}
	case errors.Is(err, ErrInvalid):
		status = http.StatusBadRequest
	}
	http.Error(w, err.Error(), status)
}

// The method `come` counts a request for a resource.
func (h *handler) come(resource string) *door {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.doors[resource]
	if d == nil {
		d = new(door)
		h.doors[resource] = d
	}
	d.requests++
	return d
}

// The method `leave` deletes the door when its last request has left.
func (h *handler) leave(resource string, d *door) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.requests--; d.requests == 0 {
		delete(h.doors, resource)
	}
}

// The method `enter` waits until no request with a smaller token is inside, and enters. It fails if
// a greater token comes first, or ctx ends.
func (h *handler) enter(ctx context.Context, resource string, d *door, token int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		if token < d.newest {
			return &StaleError{resource, token, d.newest}
		}
		d.newest = token
		if d.inside == 0 || d.serving == token {
			break
		}
		// The requests inside have a smaller token: no request inside has a
		// greater token than newest.
		d.end(&StaleError{resource, d.serving, token})
		empty := d.empty
		h.mu.Unlock()
		select {
		case <-empty:
			// Another request may have entered, or come with a greater token:
			// check again.
		case <-ctx.Done():
			// The door may be empty at the same time. But it is right to stop:
			// the client no longer waits for this request, and nothing was
			// written.
			h.mu.Lock()
			return context.Cause(ctx)
		}
		h.mu.Lock()
	}
	if d.inside++; d.inside == 1 {
		d.serving, d.empty = token, make(chan struct{})
		d.ctx, d.end = context.WithCancelCause(context.Background())
	}
	return nil
}

// The method `exit` notes that a request has left.
func (h *handler) exit(d *door) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.inside--; d.inside == 0 {
		d.end(nil)
		close(d.empty)
	}
}
