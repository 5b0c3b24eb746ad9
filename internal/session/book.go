package session

import (
	"math"
	"sync"
)

// A book is the pages for receipts that no transaction uses at present.
type book struct {
	mu    sync.Mutex
	pages []*receipt
	none  bool // the servers refuse it
}

// A receipt is what a transaction writes beside what it is for.
type receipt struct {
	path    string
	version int32 // before the transaction; -1 if there is no such znode yet
}

// page takes a page out of the book, or a new one. It is nil if there is no
// book.
func (b *book) page(root string) *receipt {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.none {
		return nil
	}
	if n := len(b.pages); n > 0 {
		r := b.pages[n-1]
		b.pages = b.pages[:n-1]
		return r
	}
	return &receipt{ChildPath(root, ProtectedName(NewGUID(), "txn")), -1}
}

// keep puts a page back, and reports whether there was room.
func (b *book) keep(r *receipt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pages) >= MaxPages || r.version >= lastVersion {
		return false
	}
	b.pages = append(b.pages, r)
	return true
}

// refuse has every transaction of the session write its receipt elsewhere.
func (b *book) refuse() {
	b.mu.Lock()
	b.none = true
	b.mu.Unlock()
}

// MaxPages is how many pages are kept; more are deleted when they have been
// used. lastVersion is the version at which a page is full: it must not become
// -1, which is any.
const (
	MaxPages    = 16
	lastVersion = math.MaxInt32 - 1
)
