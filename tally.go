package zsync

import (
	"sync"

	"github.com/zsync/zsync/internal/session"
)

// A tally is the counter of one path as one process sees it. All WaitGroups
// of a Session with the same path share it.
//
// How changes are applied:
//
//  1. Whoever changes the counter puts the change into the queue. If nobody
//     applies changes at present, a goroutine begins to.
//  2. That goroutine takes the whole queue. The changes in it are all under way
//     at once, so any order among them is right; those that add come first.
//  3. If this process has enough open tasks, its own znode is created,
//     written or deleted, once for all of them.
//  4. Otherwise the znodes of others are read, and written or deleted in one
//     transaction with ours. Each is checked to have the version that was read.
//  5. What finds too few tasks anywhere fails.
//  6. If the queue has filled meanwhile go to 2.
type tally struct {
	m    *session.Manager
	all  *shared[tallyKey, tally] // those of the Session
	dir  string                   // the path, as the server knows it
	keep bool                     // tasks outlive their session

	mu    sync.Mutex
	queue []*change            // not taken yet; guarded by mu
	busy  bool                 // a goroutine applies changes; guarded by mu
	lost  int                  // tasks that ended with a session, and whose Done has not been called; guarded by mu
	why   error                // how the last of them ended; guarded by mu
	own   openTasks            // written with mu held, by the goroutine that applies or, if there is none, by submit
	inc   *session.Incarnation // the session of own's znode; nil if it has none; as own
}

type tallyKey struct {
	dir  string
	keep bool
}

// A change is one Add or Done.
type change struct {
	delta     int
	done      chan struct{} // closed when err is set
	err       error
	lost      bool // part of it was for tasks that ended with their session; used by the goroutine that applies
	abandoned bool // its caller has left; guarded by tally.mu
	insist    bool // what the servers refuse is tried again: it gives up a task
	owed      bool // nobody learns of a refusal, so it is tried again; guarded by tally.mu
	tries     int  // how often it was refused; guarded by tally.mu
}

// An openTasks is a znode that says how many tasks are open.
type openTasks struct {
	path    string // "" if there is none
	count   int
	version int32
}
