package queue

import "sync"

// Listeners are told of errors that keep the consumers of a queue from
// consuming.
type listeners struct {
	site
	mu  sync.Mutex
	all map[chan error]bool // guarded by mu
}

// listen has c told, or no longer told. What does not fit into c is left out.
func (l *listeners) listen(c chan error, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !on {
		delete(l.all, c)
		return
	}
	if l.all == nil {
		l.all = make(map[chan error]bool)
	}
	l.all[c] = true
}

// complain reports an error that keeps the consumers from consuming.
func (l *listeners) complain(err error) {
	l.m.Log.Error("zsync: cannot consume", "path", l.path, "err", err)
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.all {
		select {
		case c <- err:
		default: // it has not read the one before
		}
	}
}
