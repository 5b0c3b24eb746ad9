// Package zktest is a ZooKeeper server in memory, for tests, demonstrations
// and development. It speaks the protocol of ZooKeeper 3.8, so any ZooKeeper
// client can use it, over TCP or, from Go, without the network:
//
//	srv := zktest.Start(t)
//	conn, _, err := zk.Connect([]string{srv.Addr()}, time.Second, zk.WithDialer(srv.Dial))
//
// # Faults
//
// What goes wrong with real servers can be made to go wrong here, at a chosen
// moment: [Server.Expire], [Server.Disconnect], [Server.Partition],
// [Server.Stop], [Server.SetLatency], [Server.Freeze] and, request by request,
// [Server.Intercept], which tells a lost request from a lost reply.
// [Server.Counts] says what a piece of code asked of the server, and
// [Server.Dump] what the server is left with.
//
// # Ensembles
//
// An [Ensemble] is several such servers that agree as ZooKeeper's do, so that a
// test can have what one server never does: a follower that is behind, one
// that has lost its leader and goes on answering, a leader that has lost its
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
//   - Every write, one that fails too, is logged by a majority before it is
//     committed, and applied by each member when it hears of that. Beginning
//     and ending a session are writes. A sync waits for what was proposed
//     before it, and needs no majority if that is nothing.
//   - The leader alone ends sessions, a timeout after it has last heard of the
//     client, rounded up to a tick. Of the clients of others it hears when they
//     answer its ping, twice a tick, and when a client comes to a member with
//     its session; a write that a follower passes on does not count.
//   - A follower that hears nothing from its leader for the sync limit, or a
//     leader with no majority for that time, closes its clients' connections and
//     looks for a leader. A majority whose members reach each other elects the
//     one with the latest log. The new leader gives every session its whole
//     timeout. What was logged by a minority is forgotten by those who come back.
//   - A member refuses clients that have seen more than it has. A write through
//     a connection whose session has moved to another member closes it.
//   - The leader looks at requests behind a queue ([Ensemble.SetBacklog]), and
//     sees only then which member the session belongs to. A handshake changes
//     that at once. So a request that its session has left behind is carried
//     out if the session has come back to the same member by then.
//   - A follower recognises its own requests by session and xid alone. If a
//     client uses an xid twice in a session, a follower may answer the second
//     request with the result of the first.
//   - A member grants session timeouts by its own limits
//     ([Server.SetSessionTimeouts]). With each handshake the leader begins to
//     count the timeout that this member grants. A new leader begins with the
//     timeout that the session was granted first.
//
// What is simpler than in ZooKeeper: an election takes a fixed time, at whose
// end the new leader and its followers agree in an instant; only the log is
// kept over a crash, at once and without fail; a member that comes back always
// gets the whole tree; a thawed member looks at its clocks before it looks at what
// was sent to it.
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
// getEphemerals, sync, check, multi, multiRead, ping, auth (digest and ip),
// whoAmI, setWatches, setWatches2, addWatch, checkWatches, removeWatches,
// closeSession. ACLs are enforced, with the schemes world, ip, digest and
// auth. The four-letter words ruok, srvr, stat, mntr, cons, conf, wchs, isro,
// envi.
//
// # Different
//
//   - Nothing is stored: [Server.Restart] finds the tree and the sessions in memory.
//   - Sessions may be far shorter; see [WithTick].
//   - Nodes with a TTL are served without a setting that enables them.
//   - Watches of different kinds that one client has on one path are kept
//     apart; in ZooKeeper 3.8 the last one left decides how all behave.
//   - checkWatches looks for watches of its own client only; in ZooKeeper 3.8
//     it finds those of others too.
//   - When a parent has had 2^31 children, sequence numbers go on at -2147483648,
//     as they did before ZooKeeper 3.6. Since then a parent's number stays at
//     2147483647, and -2147483648 comes up only while that create is under way.
//   - Ephemerals of a session that ends are deleted in the order of their creation.
//   - Latencies in the answers to four-letter words are zero.
//
// # Missing
//
// reconfig answers that it is disabled; sasl and deleteContainer answer
// Unimplemented. Kinds of request that do not exist are answered so too, and
// end the connection. There are no quotas, no super user, no read-only mode,
// no TLS, no observers, no limit on the number of connections.
package zktest
