package zsync

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// A bundle reads the data of many znodes with one request, multiRead, which
// go-zookeeper does not know. To go-zookeeper a bundle is a read of one znode,
// whose path is a token that nothing else uses. The link puts the multiRead in
// its place, and hands the whole reply over as that znode's data.

// A node is what was read of a znode.
type node struct {
	data []byte
	stat *zk.Stat // nil if there is no such znode
}

// A bundle must not be so large that it holds up what comes behind it: so many
// znodes at most, and about so many bytes, if the next ones are as large as the
// largest of late.
const (
	bundleMax   = 128
	bundleBytes = 1 << 20
	bundleGuess = 64 << 10 // how large a znode is taken to be before any was read
)

// getAll reads the data of many znodes. It is no snapshot, but each is at least
// as new as what this session has seen before.
func (inc *incarnation) getAll(ctx context.Context, paths []string) ([]node, error) {
	largest := int(inc.largest.Load())
	if largest == 0 {
		largest = bundleGuess
	}
	bundles := slices.Collect(slices.Chunk(paths, min(max(bundleBytes/largest, 1), bundleMax)))
	results := make([][]node, len(bundles))
	err := parallel(len(bundles), func(i int) (err error) {
		results[i], err = inc.getBundle(ctx, bundles[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	return slices.Concat(results...), nil
}

func (inc *incarnation) getBundle(ctx context.Context, paths []string) ([]node, error) {
	if len(paths) == 1 || inc.m.noBundles.Load() {
		return inc.getEach(ctx, paths)
	}
	reply, err := again(ctx, inc, func(c *zk.Conn) ([]byte, error) {
		token := "/bundle-" + newGUID()
		inc.setBundle(token, paths)
		defer inc.setBundle(token, nil)
		reply, _, err := c.Get(token)
		return reply, err
	})
	if isUnimplemented(err) { // before ZooKeeper 3.6
		inc.m.noBundles.Store(true)
		return inc.getEach(ctx, paths)
	}
	if err != nil {
		return nil, err
	}
	nodes, refused, err := parseBundle(reply, len(paths))
	if err != nil {
		return nil, err
	}
	for _, i := range refused { // a single read says why
		n, err := inc.getEach(ctx, paths[i:i+1])
		if err != nil {
			return nil, err
		}
		nodes[i] = n[0]
	}
	var largest int
	for _, n := range nodes {
		largest = max(largest, len(n.data))
	}
	inc.largest.Store(max(int64(largest), inc.largest.Load()/2, 256))
	return nodes, nil
}

// getEach is getAll with one request for each znode.
func (inc *incarnation) getEach(ctx context.Context, paths []string) ([]node, error) {
	nodes := make([]node, len(paths))
	return nodes, parallel(len(paths), func(i int) error {
		data, stat, err := inc.get(ctx, paths[i])
		if isNoNode(err) {
			return nil
		}
		nodes[i] = node{data, stat}
		return err
	})
}

// getVisible is getAll, but of a znode that may not be read it returns the Stat
// alone, which servers give to everybody. One such costs 128 requests, those of
// its bundle one by one.
func (inc *incarnation) getVisible(ctx context.Context, paths []string) ([]node, error) {
	nodes, err := inc.getAll(ctx, paths)
	switch {
	case !isAnswer(err, zk.ErrNoAuth):
		return nodes, err
	case len(paths) > bundleMax:
		nodes = nil
		for some := range slices.Chunk(paths, bundleMax) {
			more, err := inc.getVisible(ctx, some)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, more...)
		}
		return nodes, nil
	}
	nodes = make([]node, len(paths))
	return nodes, parallel(len(paths), func(i int) error {
		data, stat, err := inc.get(ctx, paths[i])
		if isAnswer(err, zk.ErrNoAuth) {
			data = nil
			stat, err = inc.exists(ctx, paths[i])
		}
		if isNoNode(err) {
			return nil
		}
		nodes[i] = node{data, stat}
		return err
	})
}

// setBundle tells the link what a token stands for; nil: nothing any more.
func (inc *incarnation) setBundle(token string, paths []string) {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	if paths == nil {
		delete(inc.bundles, token)
		return
	}
	inc.bundles[token] = paths
}

func (inc *incarnation) bundle(token string) []string {
	inc.mu.Lock()
	defer inc.mu.Unlock()
	return inc.bundles[token]
}

// bundlePacket is the request for a bundle.
func bundlePacket(xid int32, paths []string) []byte {
	header := func(p []byte, op int32, done byte) []byte {
		p = append(binary.BigEndian.AppendUint32(p, uint32(op)), done)
		return append(p, 0xff, 0xff, 0xff, 0xff)
	}
	p := wire.AppendHeader(nil, xid, wire.OpMultiRead)
	for _, path := range paths {
		p = wire.AppendString(header(p, wire.OpGetData, 0), path)
		p = append(p, 0) // no watch
	}
	return wire.EndPacket(header(p, -1, 1))
}

var errBundle = errors.New("zsync: malformed reply to multiRead")

// parseBundle takes the reply for n znodes apart. refused are the places of
// those that the server did not give, for another reason than that they do not
// exist.
func parseBundle(p []byte, n int) (nodes []node, refused []int, err error) {
	s := wire.Scanner{Rest: p}
	for op, more := s.Next(); more; op, more = s.Next() {
		switch op {
		case wire.OpGetData:
			data := bytes.Clone(s.Buffer())
			if stat := s.Take(wire.StatSize); !s.Bad {
				nodes = append(nodes, node{data, wire.ParseStat(stat)})
			}
		case wire.OpFailed:
			if s.Int32() != wire.CodeNoNode {
				refused = append(refused, len(nodes))
			}
			nodes = append(nodes, node{})
		default:
			s.Bad = true
		}
	}
	if s.Bad || len(nodes) != n || len(s.Rest) > 0 {
		return nil, nil, errBundle
	}
	return nodes, refused, nil
}

// parallel calls f for each i below n, many at once, and returns an error of
// one of them, if any, rather NoNode than another.
func parallel(n int, f func(i int) error) error {
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
		if first == nil || isNoNode(err) {
			first = err
		}
		if isNoNode(first) {
			break
		}
	}
	return first
}
