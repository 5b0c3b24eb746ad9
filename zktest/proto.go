package zktest

import (
	"slices"
	"strconv"
)

// This file has ZooKeeper's protocol: the kinds of request, the codes, and the decoding of
// requests. wire.go encodes and decodes single fields.

// An Op is the kind of a request. Its value is ZooKeeper's number for that kind.
type Op int32

// The kinds of request. OpConnect is the handshake, for which the protocol has no number.
const (
	OpCreate               Op = 1
	OpDelete               Op = 2
	OpExists               Op = 3
	OpGetData              Op = 4
	OpSetData              Op = 5
	OpGetACL               Op = 6
	OpSetACL               Op = 7
	OpGetChildren          Op = 8
	OpSync                 Op = 9
	OpPing                 Op = 11
	OpGetChildren2         Op = 12
	OpCheck                Op = 13
	OpMulti                Op = 14
	OpCreate2              Op = 15
	OpReconfig             Op = 16
	OpCheckWatches         Op = 17
	OpRemoveWatches        Op = 18
	OpCreateContainer      Op = 19
	OpDeleteContainer      Op = 20
	OpCreateTTL            Op = 21
	OpMultiRead            Op = 22
	OpAuth                 Op = 100
	OpSetWatches           Op = 101
	OpSASL                 Op = 102
	OpGetEphemerals        Op = 103
	OpGetAllChildrenNumber Op = 104
	OpSetWatches2          Op = 105
	OpAddWatch             Op = 106
	OpWhoAmI               Op = 107
	OpConnect              Op = -10
	OpCloseSession         Op = -11

	opError Op = -1 // a failed operation in the reply to a multi
)

var opNames = map[Op]string{
	OpCreate:               "create",
	OpDelete:               "delete",
	OpExists:               "exists",
	OpGetData:              "getData",
	OpSetData:              "setData",
	OpGetACL:               "getACL",
	OpSetACL:               "setACL",
	OpGetChildren:          "getChildren",
	OpSync:                 "sync",
	OpPing:                 "ping",
	OpGetChildren2:         "getChildren2",
	OpCheck:                "check",
	OpMulti:                "multi",
	OpCreate2:              "create2",
	OpReconfig:             "reconfig",
	OpCheckWatches:         "checkWatches",
	OpRemoveWatches:        "removeWatches",
	OpCreateContainer:      "createContainer",
	OpDeleteContainer:      "deleteContainer",
	OpCreateTTL:            "createTTL",
	OpMultiRead:            "multiRead",
	OpAuth:                 "auth",
	OpSetWatches:           "setWatches",
	OpSASL:                 "sasl",
	OpGetEphemerals:        "getEphemerals",
	OpGetAllChildrenNumber: "getAllChildrenNumber",
	OpSetWatches2:          "setWatches2",
	OpAddWatch:             "addWatch",
	OpWhoAmI:               "whoAmI",
	OpConnect:              "connect",
	OpCloseSession:         "closeSession",
}

// The method `proves` reports whether a request of the kind op carries credentials. A server
// answers such a request at once, without a transaction.
func (op Op) proves() bool { return op == OpAuth || op == OpSASL }

// String returns ZooKeeper's name for op, such as "getChildren2".
func (op Op) String() string {
	if name, ok := opNames[op]; ok {
		return name
	}
	return "op" + strconv.Itoa(int(op))
}

// The codes of replies, for [Fail].
const (
	CodeOK                      = 0
	CodeSystemError             = -1
	CodeRuntimeInconsistency    = -2
	CodeConnectionLoss          = -4
	CodeMarshallingError        = -5
	CodeUnimplemented           = -6
	CodeOperationTimeout        = -7
	CodeBadArguments            = -8
	CodeNoNode                  = -101
	CodeNoAuth                  = -102
	CodeBadVersion              = -103
	CodeNoChildrenForEphemerals = -108
	CodeNodeExists              = -110
	CodeNotEmpty                = -111
	CodeSessionExpired          = -112
	CodeInvalidACL              = -114
	CodeAuthFailed              = -115
	CodeSessionMoved            = -118
	CodeNoWatcher               = -121
	CodeReconfigDisabled        = -123
	CodeAuthRequired            = -124
	CodeQuotaExceeded           = -125
	CodeThrottled               = -127
)

// The flags of a create.
const (
	flagEphemeral = 1 << iota
	flagSequence
	flagContainer
	flagTTL               = 5 // persistent
	flagTTLSequence       = 6 // persistent, sequential
	lastFlag        int32 = flagTTLSequence
)

// The xids of packets that a client does not number.
const (
	xidNotification int32 = -1
	xidPing         int32 = -2
)

// The kinds of watch event.
const (
	eventCreated         int32 = 1
	eventDeleted         int32 = 2
	eventDataChanged     int32 = 3
	eventChildrenChanged int32 = 4
)

const stateSyncConnected int32 = 3

// A Request is one request of a client. Fields that the kind of request does not use are zero.
type Request struct {
	Session int64     // the session of the connection; for a connect, the requested session, or 0 for a new one
	Xid     int32     // the client's number of the request
	Op      Op        // the kind of the request
	Path    string    // of the znode; for a sequential create, without the number
	Data    []byte    // of create, setData and auth
	Version int32     // expected version of delete, setData, setACL and check; -1: any
	Flags   int32     // of the creates: 1 ephemeral, 2 sequential, 3 both, 4 container, 5 and 6 with a TTL
	Watch   bool      // whether the request sets a watch
	Ops     []Request // the operations of a multi or multiRead

	RemoteAddr string // the client's address
	Addr       string // the address that the client dialled

	acl       []acl
	ttl       int64
	zxid      int64  // the last zxid that the client has seen; of setWatches and connect
	kind      int32  // mode of addWatch, type of checkWatches and removeWatches
	scheme    string // of auth
	timeout   int32  // of connect, milliseconds
	password  []byte // of connect
	readOnly  bool   // of connect: the client sent the byte for read-only mode
	watches   *watchLists
	malformed bool // the body cannot be decoded
}

// watchLists is the body of setWatches and setWatches2.
type watchLists struct {
	data, exist, child, persistent, recursive []string
}

// decodeConnect decodes the first packet of a connection. It returns false if the packet is too
// short.
func decodeConnect(frame []byte) (Request, bool) {
	d := decoder{b: frame}
	d.int32() // protocol version
	r := Request{Op: OpConnect}
	r.zxid = d.int64()
	r.timeout = d.int32()
	r.Session = d.int64()
	r.password = d.buffer()
	if d.bad {
		return r, false
	}
	// Clients older than 3.4 do not send this byte, and expect none in the reply.
	r.readOnly = len(d.b) > 0
	return r, true
}

// decodeRequest decodes any packet after the first. It returns false if the header is incomplete.
// It uses `spare` as a buffer for the operations of a multi, and returns a copy of the operations.
func decodeRequest(frame []byte, spare *[]Request) (Request, bool) {
	d := decoder{b: frame, spare: spare}
	r := Request{Xid: d.int32(), Op: Op(d.int32())}
	if d.bad {
		return r, false
	}
	r.decodeBody(&d)
	r.malformed = r.malformed || d.bad
	return r, true
}

func (r *Request) decodeBody(d *decoder) {
	switch r.Op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
		r.Path = d.string()
		r.Data = d.buffer()
		r.acl = d.acls()
		r.Flags = d.int32()
		r.ttl = -1
		if r.Op == OpCreateTTL {
			r.ttl = d.int64()
		}
	case OpDelete, OpCheck:
		r.Path = d.string()
		r.Version = d.int32()
	case OpExists, OpGetData, OpGetChildren, OpGetChildren2:
		r.Path = d.string()
		r.Watch = d.bool()
	case OpSetData:
		r.Path = d.string()
		r.Data = d.buffer()
		r.Version = d.int32()
	case OpGetACL, OpSync, OpGetEphemerals, OpGetAllChildrenNumber:
		r.Path = d.string()
	case OpSetACL:
		r.Path = d.string()
		r.acl = d.acls()
		r.Version = d.int32()
	case OpMulti, OpMultiRead:
		r.decodeOps(d)
	case OpAuth:
		d.int32() // not used, as in ZooKeeper
		r.scheme = d.string()
		r.Data = d.buffer()
	case OpSASL:
		r.Data = d.buffer()
	case OpSetWatches, OpSetWatches2:
		r.zxid = d.int64()
		w := &watchLists{data: d.strings(), exist: d.strings(), child: d.strings()}
		if r.Op == OpSetWatches2 {
			w.persistent, w.recursive = d.strings(), d.strings()
		}
		r.watches = w
	case OpCheckWatches, OpRemoveWatches, OpAddWatch:
		r.Path = d.string()
		r.kind = d.int32()
	}
}

// decodeOps decodes the operations of a multi or multiRead.
func (r *Request) decodeOps(d *decoder) {
	ops := (*d.spare)[:0]
	for !d.bad {
		kind := Op(d.int32())
		done := d.bool()
		d.int32() // an error code, which only results use
		if done || d.bad {
			break
		}
		if !kind.within(r.Op) {
			r.malformed = true
			break
		}
		ops = append(ops, Request{Session: r.Session, Xid: r.Xid, Op: kind})
		op := &ops[len(ops)-1]
		op.decodeBody(d)
		switch op.Op {
		case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL:
			// In a multi, ZooKeeper decides by the flags alone.
			if op.Op == OpCreateTTL && op.Flags >= flagTTL {
				break
			}
			op.Op, op.ttl = OpCreate, -1
			if op.Flags == flagContainer {
				op.Op = OpCreateContainer
			}
		}
	}
	if len(ops) > 0 {
		r.Ops = slices.Clone(ops)
	}
	if *d.spare = ops; len(ops) > 4000 {
		*d.spare = nil
	}
}

// The method `within` reports whether `multi`, which is OpMulti or OpMultiRead, can contain op.
func (op Op) within(multi Op) bool {
	switch op {
	case OpCreate, OpCreate2, OpCreateContainer, OpCreateTTL, OpDelete, OpSetData, OpCheck:
		return multi == OpMulti
	case OpGetData, OpGetChildren:
		return multi == OpMultiRead
	}
	return false
}
