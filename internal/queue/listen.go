package queue

import "sync"

// Listeners are told of errors that keep the consumers of a queue from
// consuming.
type listeners struct {
	site
	all sync.Map // of chan error
}

// listen has c told, or no longer told. What does not fit into c is left out.
func (l *listeners) listen(c chan error, on bool) {
	if on {
		l.all.Store(c, true)
	} else {
		l.all.Delete(c)
	}
}

// complain reports an error that keeps the consumers from consuming.
func (l *listeners) complain(err error) {
	l.m.Log.Error("zsync: cannot consume", "path", l.path, "err", err)
	l.all.Range(func(c, _ any) bool {
		select {
		case c.(chan error) <- err:
		default: // it has not read the one before
		}
		return true
	})
}
