package probe

// This file has a method for each kind of request, for programs that check a server. It does not
// judge the replies.

import (
	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/wire"
)

// Create creates a znode. With zk.FlagContainer, the znode is a container.
func (c *Conn) Create(path string, data []byte, acl []zk.ACL, flags int32) error {
	op := int32(wire.OpCreate)
	if flags == zk.FlagContainer {
		op = wire.OpCreateContainer
	}
	_, err := c.Call(op, wire.AppendCreate(wire.AppendString(nil, path), data, acl, flags))
	return err
}

// Get returns the data and the Stat of a znode.
func (c *Conn) Get(path string) ([]byte, *zk.Stat, error) {
	s, err := c.Call(wire.OpGetData, Read(path, false))
	if err != nil {
		return nil, nil, err
	}
	data, stat := s.Data(), s.Stat()
	if s.Bad {
		return nil, nil, errMalformed
	}
	return data, stat, nil
}

// Exists returns an error with code wire.CodeNoNode if the znode does not exist.
func (c *Conn) Exists(path string) error {
	_, err := c.Call(wire.OpExists, Read(path, false))
	return err
}

// Set writes the data of a znode of any version.
func (c *Conn) Set(path string, data []byte) error {
	_, err := c.Call(wire.OpSetData, Write(path, data))
	return err
}

// Delete deletes a znode of any version. If the znode does not exist, Delete returns no error.
func (c *Conn) Delete(path string) error {
	_, err := c.Call(wire.OpDelete, wire.AppendInt32(wire.AppendString(nil, path), -1))
	if Code(err) == wire.CodeNoNode {
		return nil
	}
	return err
}

// Children returns the names of the children of a znode. If the znode does not exist, Children
// returns no names.
func (c *Conn) Children(path string) ([]string, error) {
	s, err := c.Call(wire.OpGetChildren2, Read(path, false))
	if Code(err) == wire.CodeNoNode {
		return nil, nil
	}
	return s.Strings(), err
}

// Sync makes the server catch up: later reads of this connection see all earlier writes.
func (c *Conn) Sync(path string) error {
	_, err := c.Call(wire.OpSync, wire.AppendString(nil, path))
	return err
}

// Multi applies ops in one transaction. If the server refuses the transaction, the error has the
// code of the first operation that failed.
func (c *Conn) Multi(ops ...any) error {
	s, err := c.Call(wire.OpMulti, wire.AppendOps(nil, ops))
	if err != nil {
		return err
	}
	_, code := s.Results(len(ops), func(code int32) error { return &RefusedError{code} })
	switch {
	case s.Bad:
		return errMalformed
	case code != 0:
		return &RefusedError{code}
	}
	return nil
}

// MultiRead returns the data of several znodes.
func (c *Conn) MultiRead(paths ...string) (all [][]byte, err error) {
	s, err := c.Call(wire.OpMultiRead, wire.AppendReads(nil, paths))
	if err != nil {
		return nil, err
	}
	for op, more := s.Next(); more; op, more = s.Next() {
		if op != wire.OpGetData {
			return nil, &RefusedError{s.Int32()}
		}
		all = append(all, s.Data())
		s.Stat()
	}
	if s.Bad {
		return nil, errMalformed
	}
	return all, nil
}

// WhoAmI returns the identities of the client, each as SCHEME:ID.
func (c *Conn) WhoAmI() (ids []string, err error) {
	s, err := c.Call(wire.OpWhoAmI, nil)
	if err != nil {
		return nil, err
	}
	for n := s.Int32(); n > 0 && !s.Bad; n-- {
		ids = append(ids, s.String()+":"+s.String())
	}
	return ids, nil
}

// Read returns the body of a request that reads a znode, for the method Send.
func Read(path string, watch bool) []byte {
	p := append(wire.AppendString(nil, path), 0)
	if watch {
		p[len(p)-1] = 1
	}
	return p
}

// Write returns the body of a request that writes the data of a znode, for the method Send.
func Write(path string, data []byte) []byte {
	return wire.AppendInt32(wire.AppendBuffer(wire.AppendString(nil, path), data), -1)
}
