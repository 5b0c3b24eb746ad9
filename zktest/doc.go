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
