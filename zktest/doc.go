// Package zktest is a ZooKeeper server in memory, for tests, demonstrations
// and development. It speaks the protocol of ZooKeeper 3.8, so any ZooKeeper
// client can use it, over TCP or, from Go, without the network:
//
//	srv := zktest.Start(t)
//	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Second, zk.WithDialer(srv.Dial))
//
// # Faults
//
// A test can cause the faults of real servers here, at a chosen moment:
// [Server.Expire], [Server.Disconnect], [Server.Partition], [Server.Stop],
// [Server.SetLatency], [Server.Freeze]. [Server.Intercept] acts on a single
// request, and can lose either the request or its reply. [Server.Counts] counts
// the requests that a piece of code sends; [Server.Dump] prints the znodes that it
// leaves.
//
// # Ensembles
//
// An [Ensemble] is several such servers that agree as ZooKeeper's do. It can show
// a test the states that a single server never has: a follower that lags, a
// follower that has lost its leader and still answers, a leader that has lost its
// majority and does not know it yet, a new leader.
//
//	e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second))
//	conn, _, err := zk.Connect(e.Addrs(), 10*time.Second, zk.WithDialer(e.Dial))
//	e.Isolate(e.MemberOf(conn.SessionID()))
//
// What is modelled:
//
//   - A follower answers pings and reads from its own tree. Writes, sync and
//     handshakes go to the leader; a client's replies keep their order.
//   - A majority logs every write before it is committed, failed writes too. A
//     member applies a write when the leader reports it as committed. Beginning
//     and ending a session are writes. A sync waits for all earlier proposals;
//     if there are none, it needs no majority.
//   - Only the leader ends sessions, a timeout after it has last heard of the
//     client, rounded up to a tick. It hears of other members' clients in two
//     ways: the members answer its ping, twice a tick, and a client comes to a
//     member with its session. A write that a follower passes on does not
//     count.
//   - A follower that hears nothing from its leader for the sync limit closes
//     its clients' connections and looks for a leader. So does a leader with no
//     majority for that time. A majority whose members reach each other elects
//     the member with the latest log. The new leader gives every session its
//     whole timeout. A member that comes back drops all that only a minority
//     had logged.
//   - A member refuses clients that have seen more than it has. A write through
//     a connection whose session has moved to another member closes it.
//   - The leader looks at requests behind a queue ([Ensemble.SetBacklog]), and
//     checks only then which member the session belongs to. A handshake changes
//     that at once. So a request through a member that the session has left is
//     still carried out if the session has returned to that member by then.
//   - A follower recognises its own requests by session and xid alone. If a
//     client uses an xid twice in a session, a follower may answer the second
//     request with the result of the first.
//   - A member grants session timeouts by its own limits
//     ([Server.SetSessionTimeouts]). With each handshake, the leader begins to
//     count the timeout that this member grants. A new leader begins with the
//     timeout that the session was granted first.
//
// Some parts are simpler than in ZooKeeper. An election takes a fixed time, at
// whose end the new leader and its followers agree in an instant. Only the log
// survives a crash; it is written at once and never fails. A member that comes
// back always gets the whole tree. A thawed member looks at its clocks before
// it looks at its messages.
//
// # Time
//
// The server takes time from package time and is idle when nothing is due, so
// that it works in a testing/synctest bubble. There it does not listen on the
// network; use [Server.Dial].
//
// # Served
//
// Sessions, with expiry on ticks and reconnection by id and password. create,
// create2, createContainer, createTTL, delete, exists, getData, setData,
// getACL, setACL, getChildren, getChildren2, getAllChildrenNumber,
// getEphemerals, sync, check, multi, multiRead, ping, auth (digest and ip), sasl
// (DIGEST-MD5, see [WithSASL]), whoAmI, setWatches, setWatches2, addWatch, checkWatches, removeWatches,
// closeSession. ACLs are enforced, with the schemes world, ip, digest,
// sasl, x509 and auth. The four-letter words ruok, srvr, stat, mntr, cons, conf, wchs, isro,
// envi.
//
// # Different
//
//   - Nothing is stored: [Server.Restart] finds the tree and the sessions in memory.
//   - Sessions may be far shorter; see [WithTick].
//   - Nodes with a TTL are served without a setting that enables them.
//   - If a client has watches of different kinds on a path, they are kept
//     apart. In ZooKeeper 3.8, the latest decides how all behave.
//   - checkWatches looks for watches of its own client only. ZooKeeper 3.8 also
//     finds watches of other clients.
//   - After 2^31 children of a parent, sequence numbers continue at
//     -2147483648, as they did before ZooKeeper 3.6. Newer versions stay at
//     2147483647, and -2147483648 comes up only while that create is under way.
//   - Ephemerals of a session that ends are deleted in the order of their creation.
//   - Latencies in the answers to four-letter words are zero.
//
// # Missing
//
// reconfig answers that it is disabled; deleteContainer answers
// Unimplemented. So do unknown kinds of request, which also end the
// connection. There are no quotas, no super user, no read-only mode, no TLS,
// no observers, no limit on the number of connections.
package zktest
