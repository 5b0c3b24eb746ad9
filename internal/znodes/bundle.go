package znodes

// This file reads the data of many znodes with few requests.

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/session"
	"github.com/zsync/zsync/internal/wire"
)

// The client reads znodes in bundles: a single request reads all znodes of a bundle. A server
// assembles the whole reply in memory, and crashes if its memory is too small. The client cannot know
// the size of a znode before it receives the data. So each call begins with small bundles, which grow
// with each round while all znodes are small. If the connection broke during a bundle, the client
// reads it in two halves.
//
// Several bundles are read at once. The total of their bytes stays below roundBytes even if every
// znode has the size of the largest recent znode.
const (
	bundleFirst = 16
	bundleMax   = 128
	bundleBytes = 1 << 20
	roundBytes  = 8 << 20
)

// GetAll reads the data of many znodes. The result is no snapshot, but no znode is older than the
// state that this session has seen before.
func GetAll(ctx context.Context, inc *session.Incarnation, paths []string) ([]session.Node, error) {
	return getAll(ctx, inc, paths, bundleFirst, inc.Get)
}

// GetChildren is GetAll for children of dir. The result has the znodes that exist, by name.
func GetChildren(ctx context.Context, inc *session.Incarnation, dir string, names []string) (map[string]session.Node, error) {
	paths := make([]string, len(names))
	for i, name := range names {
		paths[i] = ChildPath(dir, name)
	}
	all, err := GetAll(ctx, inc, paths)
	nodes := make(map[string]session.Node, len(all))
	for i, n := range all {
		if n.Stat != nil {
			nodes[names[i]] = n
		}
	}
	return nodes, err
}

// getAll is GetAll with two more arguments. The first bundles have at most `size` paths. If a server
// refuses a znode of a bundle, getAll calls `read` for each znode of the bundle.
func getAll(ctx context.Context, inc *session.Incarnation, paths []string, size int, read func(ctx context.Context, path string) ([]byte, *zk.Stat, error)) ([]session.Node, error) {
	nodes := make([]session.Node, 0, len(paths))
	for limit := size; len(paths) > 0; {
		largest := max(int(of(inc).largest.Load()), 1)
		if largest > 1 && len(paths) <= bundleMax {
			limit = bundleMax // few enough znodes to read at once, whatever their size
		}
		size = max(min(size, bundleBytes/largest), 1)
		round := paths[:min(len(paths), limit, max(roundBytes/largest, 1))]
		paths = paths[len(round):]
		bundles := bundlesOf(round, size)
		results := make([][]session.Node, len(bundles))
		err := Parallel(len(bundles), func(i int) (err error) {
			results[i], err = getBundle(ctx, inc, bundles[i], 0, read)
			return err
		})
		if err != nil {
			return nil, err
		}
		largest = max(largest/2, 256) // large znodes that are behind us count less and less
		for _, n := range slices.Concat(results...) {
			nodes, largest = append(nodes, n), max(largest, len(n.Data))
		}
		of(inc).largest.Store(int64(largest))
		size, limit = min(4*size, bundleMax), 4*len(round)
	}
	return nodes, nil
}

// bundlesOf divides `paths` into bundles of at most n paths. It also limits the size of the
// requests, because other clients may choose long names.
func bundlesOf(paths []string, n int) (bundles [][]string) {
	for len(paths) > 0 {
		k, size := 0, 0
		for k < min(n, len(paths)) && (k == 0 || size+len(paths[k])+16 <= MaxPacket/2) {
			size += len(paths[k]) + 16
			k++
		}
		bundles = append(bundles, paths[:k])
		paths = paths[k:]
	}
	return bundles
}

// getBundle reads a bundle, or its two halves if there is no reply. The argument `try` counts the
// earlier attempts at larger bundles with these znodes.
func getBundle(ctx context.Context, inc *session.Incarnation, paths []string, try int, read func(ctx context.Context, path string) ([]byte, *zk.Stat, error)) (nodes []session.Node, err error) {
	if len(paths) == 1 || inc.Manager.NoBundles.Load() {
		return getEach(ctx, paths, read)
	}
	nodes, err = session.Attempt(ctx, inc, bundleCall(paths))
	switch size := len(paths); {
	case session.IsUnimplemented(err): // before ZooKeeper 3.6
		inc.Manager.NoBundles.Store(true)
		return getEach(ctx, paths, read)
	case err == nil, errors.Is(err, session.ErrEnded), errors.Is(err, ctx.Err()):
		return nodes, err
	case session.OutcomeOf(err) == session.Answered: // a single read returns the reason
		return getEach(ctx, paths, read)
	default:
		if session.OutcomeOf(err) == session.Unknown {
			size = (size + 1) / 2
		}
		if err := inc.Pause(ctx, try); err != nil {
			return nil, err
		}
		nodes = nil // of a reply that refuses only one of them
		for part := range slices.Chunk(paths, size) {
			some, err := getBundle(ctx, inc, part, try+1, read)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, some...)
		}
		return nodes, nil
	}
}

// getEach is getAll with a call of `read` for each znode.
func getEach(ctx context.Context, paths []string, read func(ctx context.Context, path string) ([]byte, *zk.Stat, error)) ([]session.Node, error) {
	nodes := make([]session.Node, len(paths))
	return nodes, Parallel(len(paths), func(i int) error {
		data, stat, err := read(ctx, paths[i])
		if session.IsNoNode(err) {
			return nil
		}
		nodes[i] = session.Node{Data: data, Stat: stat}
		return err
	})
}

// GetVisible is GetAll, with one difference. For a znode that the client cannot read, it returns
// only the Stat. ZooKeeper 3.8.4 and 3.9.2 and newer versions refuse the Stat, too: then it is a
// Stat for which Concealed returns true. Such a znode costs up to 128 requests.
func GetVisible(ctx context.Context, inc *session.Incarnation, paths []string) ([]session.Node, error) {
	return getAll(ctx, inc, paths, bundleFirst, visible(inc))
}

// GetSmall is GetVisible for znodes that have short data and that only zsync writes. It sends fewer
// requests.
func GetSmall(ctx context.Context, inc *session.Incarnation, paths []string) ([]session.Node, error) {
	return getAll(ctx, inc, paths, bundleMax, visible(inc))
}

// The function `visible` returns the function that reads a znode for GetVisible.
func visible(inc *session.Incarnation) func(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
	return func(ctx context.Context, path string) ([]byte, *zk.Stat, error) {
		data, stat, err := inc.Get(ctx, path)
		if session.IsAnswer(err, zk.ErrNoAuth) {
			data = nil
			if stat, err = inc.Exists(ctx, path); session.IsAnswer(err, zk.ErrNoAuth) {
				// Servers look for a znode before its ACL, so it exists. It never looks old.
				now := time.Now().UnixMilli()
				stat, err = &zk.Stat{Ctime: now, Mtime: now, EphemeralOwner: secret, DataLength: secret}, nil
			}
		}
		return data, stat, err
	}
}

// The constant `secret` is the EphemeralOwner and the DataLength of a znode whose Stat the client
// cannot read.
const secret = -1

// Concealed returns true if the znode exists and the client cannot read its Stat.
func Concealed(n session.Node) bool { return n.Stat != nil && n.Stat.DataLength == secret }

// parseBundle decodes the reply for n znodes. The error is the server's error for one of the znodes,
// unless that is NoNode.
func parseBundle(s *wire.Scanner, n int) (nodes []session.Node, err error) {
	for op, more := s.Next(); more; op, more = s.Next() {
		switch op {
		case wire.OpGetData:
			data := bytes.Clone(s.Buffer())
			nodes = append(nodes, session.Node{Data: data, Stat: s.Stat()})
		case wire.OpFailed:
			if code := s.Int32(); code != wire.CodeNoNode {
				err = wire.Error(code)
			}
			nodes = append(nodes, session.Node{})
		default:
			s.Bad = true
		}
	}
	s.Bad = s.Bad || len(nodes) != n || len(s.Rest) > 0
	return nodes, err
}

// Parallel calls f(i) for each i below n. Many of these calls run at once. Parallel returns one of
// their errors, preferably NoNode.
func Parallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	limit := make(chan struct{}, 128)
	for i := range n {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	var first error
	for _, err := range errs {
		if first == nil || session.IsNoNode(err) {
			first = err
		}
	}
	return first
}

func bundleCall(paths []string) session.Call[[]session.Node] {
	return session.Call[[]session.Node]{
		Op:   wire.OpMultiRead,
		Body: func(p []byte) []byte { return wire.AppendReads(p, paths) },
		Judge: func(s *wire.Scanner) (nodes []session.Node, code int32, err error) {
			nodes, err = parseBundle(s, len(paths))
			return nodes, 0, err
		},
	}
}
