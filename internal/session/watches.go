package session

import "github.com/zsync/zsync/internal/conn"

// The watches of a session are those of its connections: see [conn.Watches].
type (
	Watch    = conn.Watch
	WatchKey = conn.WatchKey
)

const (
	WatchData     = conn.WatchData
	WatchExists   = conn.WatchExists
	WatchChildren = conn.WatchChildren

	MaxIdleWatches = conn.MaxIdleWatches
)
