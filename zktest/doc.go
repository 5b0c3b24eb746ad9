// Package zktest is a ZooKeeper server in memory, for tests, demonstrations and development. It
// speaks the protocol of ZooKeeper 3.8, so any ZooKeeper client can use it: over TCP, or from Go
// without the network:
//
//	srv := zktest.Start(t)
//	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Second, zk.WithDialer(srv.Dial))
//
// # Faults
//
// A test can cause the faults of real servers at a chosen moment: [Server.Expire],
// [Server.Disconnect], [Server.Partition], [Server.Stop], [Server.SetLatency], [Server.Freeze].
// [Server.Intercept] acts on a single request: it can lose the request or only its reply.
// [Server.Counts] counts the requests of a piece of code, and [Server.Dump] prints the znodes that
// the code has left behind.
//
// # Ensembles
//
// An [Ensemble] is several such servers that agree on their writes, as
// ZooKeeper's servers do. A test can see states that a single server never has: a
// follower that lags, a follower that has lost its leader and still answers, a
// leader that has lost its majority without having noticed, and a new leader.
//
//	e := zktest.StartEnsemble(t, 3, zktest.WithTick(2*time.Second))
//	conn, _, err := zk.Connect(e.Addrs(), 10*time.Second, zk.WithDialer(e.Dial))
//	e.Isolate(e.MemberOf(conn.SessionID()))
//
// The ensemble behaves like ZooKeeper's in these ways:
//
//   - A follower answers pings and reads from its own tree. It sends writes, syncs and handshakes
//     to the leader. A client receives its replies in the order of its requests.
//   - A majority logs every write, even a failed write, before the leader commits the write. A
//     member applies a write when the leader reports the write as committed. The begin and the end
//     of a session are writes. A sync waits for all earlier proposals. If there are no such
//     proposals, the sync needs no majority.
//   - Only the leader ends sessions: one session timeout after the client's last sign of life,
//     rounded up to a tick. The leader learns of signs of life at other members from handshakes
//     and, twice a tick, from the answers of these members to its pings. A write that a follower
//     sends to the leader is no sign of life.
//   - If no message from the leader reaches a follower for the time of the sync limit, the follower
//     closes its clients' connections and looks for a leader. A leader without a majority for that
//     time does the same. A majority whose members reach each other elects the member with the
//     latest log. The new leader gives every session its whole timeout. A member that joins a
//     leader drops all transactions that the leader does not have.
//   - A member refuses a client that has seen a newer transaction than the member. If a session has
//     moved to another member, a write through its old connection closes that connection.
//   - Requests wait in the leader's queue ([Ensemble.SetBacklog]). Only at the end of the wait does
//     the leader check that the request came through the session's current member. A handshake
//     changes the current member at once. So if a session moves to another member and returns in
//     time, the leader carries out the session's old requests.
//   - A follower identifies its own requests only by session and xid. If a
//     client uses an xid twice in a session, a follower may answer the second
//     request with the result of the first.
//   - A member grants session timeouts by its own limits ([Server.SetSessionTimeouts]). After each
//     handshake, the leader uses the timeout that the client's member has granted. A new leader
//     uses the first timeout of the session.
//
// Some parts are simpler than in ZooKeeper. An election takes a fixed time, and
// at its end the followers have the leader's tree at once. A write to the log
// takes no time and never fails. A member that joins a leader always gets the
// whole tree. A thawed member runs its timers before it reads its messages.
//
// # Time
//
// The server uses package time and sleeps between its tasks, so it works in a
// testing/synctest bubble. There it does not listen on the network; use
// [Server.Dial].
//
// # Served
//
// The server has sessions. They expire on ticks, and a client continues a session by its id and
// password. It serves these requests: create, create2, createContainer, createTTL, delete, exists,
// getData, setData, getACL, setACL, getChildren, getChildren2, getAllChildrenNumber, getEphemerals,
// sync, check, multi, multiRead, ping, auth (digest and ip), sasl (DIGEST-MD5, see [WithSASL]),
// whoAmI, setWatches, setWatches2, addWatch, checkWatches, removeWatches, closeSession. It enforces
// ACLs with the schemes world, ip, digest, sasl, x509 and auth. As in ZooKeeper since 3.8.4 and
// 3.9.2, exists needs the permission to read. The server answers the four-letter words ruok, srvr,
// stat, mntr, cons, conf, wchs, isro and envi.
//
// # Different
//
//   - The server stores nothing on disk. [Server.Restart] uses the tree and the sessions in memory.
//   - Session timeouts may be far shorter; see [WithTick].
//   - Nodes with a TTL need no setting that enables them.
//   - If a client has watches of different kinds on a path, each watch behaves by its own kind. In
//     ZooKeeper 3.8, all these watches behave like the latest.
//   - An ACL may have the schemes sasl and x509 even if the server authenticates no client with
//     them.
//   - checkWatches finds only watches of its own client. ZooKeeper 3.8 also finds watches of other
//     clients.
//   - After 2^31 children of a parent, sequence numbers continue at
//     -2147483648, as they did before ZooKeeper 3.6. In newer versions the
//     number remains 2147483647, and -2147483648 appears only while that create
//     is in progress.
//   - The end of a session deletes its ephemerals in the order of their creation.
//   - Latencies in the answers to four-letter words are zero.
//
// # Missing
//
// The answer to reconfig is that reconfiguration is disabled. The answer to deleteContainer is
// Unimplemented. An unknown kind of request gets the same answer and ends the connection. There are
// no quotas, no super user, no read-only mode, no TLS, no observers, no limit on the number of
// connections.
package zktest
