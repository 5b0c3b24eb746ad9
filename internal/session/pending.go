package session

// This file has a request and its reply, and the requests that the watchdog sends, too. calls.go has
// the other requests. request.go sends requests and waits for replies.

import (
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// The type `call` is the content of a request and the decoder of its reply.
type call[T any] struct {
	op   int32
	path string                  // "" if the request is not about one znode
	moot bool                    // it does no harm, no matter when the server executes it: it changes nothing, or it only deletes znodes with unique names, and is repeated until they are deleted
	body func(p []byte) []byte   // appends the part after the path; nil: there is none
	ops  []any                   // of a transaction that can delete znodes
	take func(s *wire.Scanner) T // decodes a reply that has no error code; nil: such a reply is empty

	refused func(code int32) // called with the code of a refusal; nil: no function is called

	// If `judge` is not nil, it replaces `take`: the reply can contain an error of its own.
	judge func(s *wire.Scanner) (v T, code int32, err error)
}

// The function `deletion` returns the deletion of the znode at path, if it has this version. Version -1
// means any version.
func deletion(path string, version int32) call[struct{}] {
	return call[struct{}]{op: wire.OpDelete, path: path, body: func(p []byte) []byte { return wire.AppendInt32(p, version) }}
}

// The function `flush` returns a write that changes nothing: it deletes a znode that does not exist.
// A read that follows over the same connection sees the results of all requests of the session that
// the leader has received before. If the client has no permission for the deletion, its server may
// answer without the leader. Then the read is only as new as the sync that the caller sends with it.
func flush(nobody string) call[struct{}] {
	c := deletion(nobody, -1)
	c.moot = true
	return c
}

func syncCall(path string) call[struct{}] { return call[struct{}]{op: wire.OpSync, path: path} }

// The type `pending` is a request whose reply the caller awaits, or leaves to another function.
type pending[T any] struct {
	Done chan struct{} // closed when val and err are set; nil if no caller waits, because the request has an heir from the start
	val  T
	err  error
	call call[T]
	scan wire.Scanner // of the reply; a field to save an allocation

	// The heir is called once after Done is closed, with the error of the request: see `then`. The
	// reading goroutine may call it, so it must not block.
	heir func(err error) // guarded by mu
	mu   sync.Mutex
}

func newPending[T any](c call[T]) *pending[T] {
	return &pending[T]{Done: make(chan struct{}), call: c}
}

func (p *pending[T]) Op() int32    { return p.call.op }
func (p *pending[T]) Path() string { return p.call.path }
func (p *pending[T]) Moot() bool   { return p.call.moot }

func (p *pending[T]) Deletes() (paths []string) {
	if p.call.op == wire.OpDelete {
		return []string{p.call.path}
	}
	for _, op := range p.call.ops {
		if op, ok := op.(*zk.DeleteRequest); ok {
			paths = append(paths, op.Path)
		}
	}
	return paths
}

func (p *pending[T]) Encode(b []byte) []byte {
	if p.call.path != "" {
		b = wire.AppendString(b, p.call.path)
	}
	if p.call.body != nil {
		b = p.call.body(b)
	}
	return b
}

func (p *pending[T]) Reply(code int32, body []byte) (whole int32, ok bool) {
	p.scan.Rest = body
	switch {
	case code != 0:
		p.err = wire.Error(code)
		if p.call.refused != nil {
			p.call.refused(code)
		}
	case p.call.judge != nil:
		p.val, code, p.err = p.call.judge(&p.scan)
	case p.call.take != nil:
		p.val = p.call.take(&p.scan)
	}
	p.scan.Rest = nil // the buffer belongs to the connection
	return code, !p.scan.Bad
}

func (p *pending[T]) Finish() {
	p.mu.Lock()
	if p.Done != nil {
		close(p.Done)
	}
	heir := p.heir
	p.mu.Unlock()
	if heir != nil {
		heir(p.err)
	}
}

func (p *pending[T]) Fail(err error) {
	var zero T
	p.val, p.err = zero, err
	p.Finish()
}

// The method `then` registers the heir, so no goroutine needs to wait for the reply after the caller
// has left. The heir is called at the latest when the session has ended and its connection is down:
// then a request without a reply fails. A request has at most one heir.
func (p *pending[T]) then(heir func(err error)) {
	p.mu.Lock()
	over := IsClosed(p.Done)
	p.heir = heir
	p.mu.Unlock()
	if over {
		heir(p.err)
	}
}
