package session

// This file has a request and its reply, and the requests that the watchdog sends, too. verbs.go has
// the requests that read and write a znode. request.go sends requests and waits for replies.

import (
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A Call is the content of a request and the decoder of its reply.
type Call[T any] struct {
	Op   int32
	Path string                  // "" if the request is not about one znode
	Moot bool                    // it does no harm, no matter when the server executes it: it changes nothing, or it only deletes znodes with unique names, and is repeated until they are deleted
	Body func(p []byte) []byte   // appends the part after the path; nil: there is none
	Ops  []any                   // of a transaction that can delete znodes
	Take func(s *wire.Scanner) T // decodes a reply that has no error code; nil: such a reply is empty

	Refused func(code int32) // called with the code of a refusal; nil: no function is called

	// If Judge is not nil, it replaces Take: the reply can contain an error of its own.
	Judge func(s *wire.Scanner) (v T, code int32, err error)
}

// DeleteCall returns the deletion of the znode at path, if it has this version. Version -1
// means any version.
func DeleteCall(path string, version int32) Call[struct{}] {
	return Call[struct{}]{Op: wire.OpDelete, Path: path, Body: func(p []byte) []byte { return wire.AppendInt32(p, version) }}
}

// SyncCall returns a sync: a read that follows over the same connection is as new as the sync.
func SyncCall(path string) Call[struct{}] { return Call[struct{}]{Op: wire.OpSync, Path: path} }

// A Pending is a request whose reply the caller awaits, or leaves to another function.
type Pending[T any] struct {
	Done chan struct{} // closed when Val and Err are set; nil if no caller waits, because the request has an heir from the start
	Val  T
	Err  error
	Call Call[T]
	scan wire.Scanner // of the reply; a field to save an allocation

	// The heir is called once after Done is closed, with the error of the request: see Then. The
	// reading goroutine may call it, so it must not block.
	heir func(err error) // guarded by mu
	mu   sync.Mutex
}

// NewPending returns a request that can be sent and then awaited.
func NewPending[T any](c Call[T]) *Pending[T] {
	return &Pending[T]{Done: make(chan struct{}), Call: c}
}

func (p *Pending[T]) Op() int32    { return p.Call.Op }
func (p *Pending[T]) Path() string { return p.Call.Path }
func (p *Pending[T]) Moot() bool   { return p.Call.Moot }

func (p *Pending[T]) Deletes() (paths []string) {
	if p.Call.Op == wire.OpDelete {
		return []string{p.Call.Path}
	}
	for _, op := range p.Call.Ops {
		if op, ok := op.(*zk.DeleteRequest); ok {
			paths = append(paths, op.Path)
		}
	}
	return paths
}

func (p *Pending[T]) Encode(b []byte) []byte {
	if p.Call.Path != "" {
		b = wire.AppendString(b, p.Call.Path)
	}
	if p.Call.Body != nil {
		b = p.Call.Body(b)
	}
	return b
}

func (p *Pending[T]) Reply(code int32, body []byte) (whole int32, ok bool) {
	p.scan.Rest = body
	switch {
	case code != 0:
		p.Err = wire.Error(code)
		if p.Call.Refused != nil {
			p.Call.Refused(code)
		}
	case p.Call.Judge != nil:
		p.Val, code, p.Err = p.Call.Judge(&p.scan)
	case p.Call.Take != nil:
		p.Val = p.Call.Take(&p.scan)
	}
	p.scan.Rest = nil // the buffer belongs to the connection
	return code, !p.scan.Bad
}

func (p *Pending[T]) Finish() {
	p.mu.Lock()
	if p.Done != nil {
		close(p.Done)
	}
	heir := p.heir
	p.mu.Unlock()
	if heir != nil {
		heir(p.Err)
	}
}

func (p *Pending[T]) Fail(err error) {
	var zero T
	p.Val, p.Err = zero, err
	p.Finish()
}

// Then registers the heir, so no goroutine needs to wait for the reply after the caller
// has left. The heir is called at the latest when the session has ended and its connection is down:
// then a request without a reply fails. A request has at most one heir.
func (p *Pending[T]) Then(heir func(err error)) {
	p.mu.Lock()
	over := IsClosed(p.Done)
	p.heir = heir
	p.mu.Unlock()
	if over {
		heir(p.Err)
	}
}
