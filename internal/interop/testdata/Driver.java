import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBase;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.framework.recipes.shared.VersionedValue;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.data.Stat;

/** Drives Curator from a test: Driver SERVERS [TIMEOUT_MS]. The commands are those of driver.py. */
public class Driver {
    final CuratorFramework client;
    final BlockingQueue<WatchedEvent> events = new LinkedBlockingQueue<>();
    final Map<String, Callable<?>> held = new HashMap<>(); // by name, how to release it
    final Map<String, DistributedDoubleBarrier> barriers = new HashMap<>();
    final Map<String, GroupMember> members = new HashMap<>();
    final Map<String, BlockingQueue<String>> queues = new HashMap<>(); // by path, what was consumed
    CuratorCache cache;

    Driver(String servers, int timeout) throws Exception {
        client = CuratorFrameworkFactory.builder()
            .connectString(servers)
            .sessionTimeoutMs(timeout)
            .connectionTimeoutMs(timeout)
            .retryPolicy(new ExponentialBackoffRetry(50, 8))
            .build();
        client.start();
        client.blockUntilConnected();
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("serve")) {
            serve();
        } else {
            converse(args, new BufferedReader(new InputStreamReader(System.in)), System.out);
        }
        System.exit(0); // a consumer thread may be left
    }

    /** Holds a conversation on each connection; the first line has the arguments. The port is printed. Ends with the input. */
    static void serve() throws Exception {
        var listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        System.out.println(listener.getLocalPort());
        var accepting = new Thread(() -> {
            while (true) {
                try {
                    Socket s = listener.accept();
                    new Thread(() -> serve(s)).start();
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
            }
        });
        accepting.setDaemon(true);
        accepting.start();
        while (System.in.read() >= 0) {}
    }

    static void serve(Socket socket) {
        try (socket) {
            var in = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            converse(in.readLine().split(" "), in, new PrintStream(socket.getOutputStream(), true));
        } catch (Exception e) {
            e.printStackTrace(); // the test sees its connection end
        }
    }

    static void converse(String[] args, BufferedReader in, PrintStream out) throws Exception {
        Driver driver = new Driver(args[0], args.length > 1 ? Integer.parseInt(args[1]) : 10000);
        try {
            out.println("ok");
            for (String line; (line = in.readLine()) != null; ) {
                try {
                    Object value = driver.run(line.split(" "));
                    out.println(value == null ? "ok" : "ok " + value);
                } catch (KeeperException e) {
                    out.println("error " + e.getClass().getSimpleName().replace("Exception", ""));
                }
            }
        } finally {
            driver.client.close();
        }
    }

    Object run(String[] a) throws Exception {
        switch (a[0]) {
            case "session": return client.getZookeeperClient().getZooKeeper().getSessionId();
            case "create": return create(a[1], bytes(a[2]), a[3]);
            case "get": {
                var stat = new Stat();
                String data = text(client.getData().storingStatIn(stat).forPath(a[1]));
                return data + " " + stat.getVersion();
            }
            case "set": return client.setData().withVersion(Integer.parseInt(a[3])).forPath(a[1], bytes(a[2])).getVersion();
            case "delete": return client.delete().withVersion(Integer.parseInt(a[2])).forPath(a[1]);
            case "exists": return client.checkExists().forPath(a[1]) != null;
            case "children": {
                List<String> names = client.getChildren().forPath(a[1]);
                Collections.sort(names);
                return String.join(",", names);
            }
            case "multi": return multi(a[1], Integer.parseInt(a[2]));
            case "auth":
                client.getZookeeperClient().getZooKeeper().addAuthInfo("digest", bytes(a[1] + ":" + a[2]));
                return null;
            case "private": return client.setACL().withACL(ZooDefs.Ids.CREATOR_ALL_ACL).forPath(a[1]).getAversion();
            case "watch": return client.checkExists().usingWatcher((Watcher) this::saw).forPath(a[1]) != null;
            case "watchchildren": return client.getChildren().usingWatcher((Watcher) this::saw).forPath(a[1]).size();
            case "event": {
                WatchedEvent e = events.poll(60, TimeUnit.SECONDS);
                return e == null ? "none" : name(e) + " " + e.getPath();
            }
            case "cache":
                cache = CuratorCache.build(client, a[1]);
                cache.start();
                return null;
            case "cached": return cache.size();

            case "lock": return lock(a[1], new InterProcessMutex(client, a[2]), a[3]);
            case "rlock": return lock(a[1], new InterProcessReadWriteLock(client, a[2]).readLock(), a[3]);
            case "wlock": return lock(a[1], new InterProcessReadWriteLock(client, a[2]).writeLock(), a[3]);
            case "acquire": {
                var semaphore = new InterProcessSemaphoreV2(client, a[2], Integer.parseInt(a[3]));
                Lease lease = semaphore.acquire(millis(a[4]), TimeUnit.MILLISECONDS);
                return lease != null && hold(a[1], () -> { lease.close(); return null; });
            }
            case "lead": {
                var latch = new LeaderLatch(client, a[2], "driver");
                latch.start();
                Callable<?> resign = () -> { latch.close(); return null; };
                if (latch.await(millis(a[3]), TimeUnit.MILLISECONDS)) return hold(a[1], resign);
                resign.call();
                return false;
            }
            case "select": return select(a[1], a[2], a[3]);
            case "leader": return new LeaderLatch(client, a[1]).getLeader().getId();
            case "selected": return new LeaderSelector(client, a[1], new Office()).getLeader().getId();
            case "release": return held.remove(a[1]).call();

            case "close": new DistributedBarrier(client, a[1]).setBarrier(); return null;
            case "open": new DistributedBarrier(client, a[1]).removeBarrier(); return null;
            case "pass": return new DistributedBarrier(client, a[1]).waitOnBarrier(millis(a[2]), TimeUnit.MILLISECONDS);
            case "enter":
                barriers.put(a[1], new DistributedDoubleBarrier(client, a[2], Integer.parseInt(a[3])));
                barriers.get(a[1]).enter();
                return null;
            case "leave": barriers.remove(a[1]).leave(); return null;

            case "put": {
                QueueBase<String> queue;
                if (a.length > 3) {
                    DistributedPriorityQueue<String> q = QueueBuilder.builder(client, null, new Text(), a[1]).buildPriorityQueue(0);
                    q.start();
                    q.put(a[2], Integer.parseInt(a[3]));
                    queue = q;
                } else {
                    DistributedQueue<String> q = QueueBuilder.builder(client, null, new Text(), a[1]).buildQueue();
                    q.start();
                    q.put(a[2]);
                    queue = q;
                }
                queue.flushPuts(60, TimeUnit.SECONDS);
                queue.close();
                return null;
            }
            case "puts": {
                try (DistributedQueue<String> q = QueueBuilder.builder(client, null, new Text(), a[1]).buildQueue()) {
                    var values = java.util.Arrays.asList(a).subList(2, a.length).iterator();
                    q.start();
                    q.putMulti(() -> values.hasNext() ? values.next() : null);
                    q.flushPuts(60, TimeUnit.SECONDS);
                }
                return null;
            }
            case "take": return take(a[1]);
            case "offer": return new SimpleDistributedQueue(client, a[1]).offer(bytes(a[2]));
            case "poll": {
                byte[] data = new SimpleDistributedQueue(client, a[1]).poll();
                return data == null ? "" : text(data);
            }
            case "count": {
                var counter = new DistributedAtomicLong(client, a[1], new ExponentialBackoffRetry(10, 8));
                return counter.add(Long.parseLong(a[2])).postValue();
            }
            case "share": {
                try (var counter = new SharedCount(client, a[1], 0)) {
                    counter.start();
                    while (true) {
                        VersionedValue<Integer> seen = counter.getVersionedValue();
                        int sum = seen.getValue() + Integer.parseInt(a[2]);
                        if (counter.trySetCount(seen, sum)) return sum;
                    }
                }
            }
            case "join": {
                var member = new GroupMember(client, a[2], a[3], bytes(a[4]));
                member.start();
                members.put(a[1], member);
                hold(a[1], () -> { member.close(); return null; });
                return null;
            }
            case "members": {
                var sorted = new TreeMap<String, byte[]>(members.get(a[1]).getCurrentMembers());
                return sorted.entrySet().stream().map(e -> e.getKey() + "=" + text(e.getValue())).collect(Collectors.joining(","));
            }
            default: throw new IllegalArgumentException(a[0]);
        }
    }

    String create(String path, byte[] data, String mode) throws Exception {
        if (mode.contains("t")) {
            return client.create().withTtl(60_000).withMode(mode.contains("s")
                ? CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL : CreateMode.PERSISTENT_WITH_TTL).forPath(path, data);
        }
        CreateMode m = mode.contains("c") ? CreateMode.CONTAINER
            : mode.contains("e") ? (mode.contains("s") ? CreateMode.EPHEMERAL_SEQUENTIAL : CreateMode.EPHEMERAL)
            : mode.contains("s") ? CreateMode.PERSISTENT_SEQUENTIAL : CreateMode.PERSISTENT;
        return client.create().withMode(m).forPath(path, data);
    }

    Object multi(String path, int version) throws Exception {
        var op = client.transactionOp();
        client.transaction().forOperations(
            op.check().withVersion(version).forPath(path),
            op.create().forPath(path + "/a", new byte[0]),
            op.create().forPath(path + "/b", new byte[0]),
            op.setData().forPath(path, bytes("multi")),
            op.delete().forPath(path + "/a"));
        return null;
    }

    boolean lock(String name, InterProcessLock lock, String seconds) throws Exception {
        return lock.acquire(millis(seconds), TimeUnit.MILLISECONDS)
            && hold(name, () -> { lock.release(); return null; });
    }

    boolean hold(String name, Callable<?> release) {
        held.put(name, release);
        return true;
    }

    boolean select(String name, String path, String seconds) throws Exception {
        var office = new Office();
        var selector = new LeaderSelector(client, path, office);
        selector.setId("driver");
        selector.start();
        if (office.taken.await(millis(seconds), TimeUnit.MILLISECONDS)) {
            return hold(name, () -> { office.over.countDown(); selector.close(); return null; });
        }
        selector.close();
        return false;
    }

    /** A leadership that lasts until it is over. */
    static class Office extends LeaderSelectorListenerAdapter {
        final CountDownLatch taken = new CountDownLatch(1);
        final CountDownLatch over = new CountDownLatch(1);

        public void takeLeadership(CuratorFramework client) throws Exception {
            taken.countDown();
            over.await();
        }
    }

    /** The next element; the consumer begins with the first call and goes on. */
    String take(String path) throws Exception {
        BlockingQueue<String> taken = queues.get(path);
        if (taken == null) {
            BlockingQueue<String> fresh = new LinkedBlockingQueue<>();
            QueueBuilder.builder(client, new QueueConsumer<String>() {
                public void consumeMessage(String value) { fresh.add(value); }
                public void stateChanged(CuratorFramework c, ConnectionState s) {}
            }, new Text(), path).buildQueue().start();
            queues.put(path, taken = fresh);
        }
        String value = taken.poll(2, TimeUnit.SECONDS);
        return value == null ? "" : value;
    }

    /** Keeps an event of a znode; those of the session are not the test's concern. */
    void saw(WatchedEvent e) {
        if (e.getType() != Watcher.Event.EventType.None) events.add(e);
    }

    /** kazoo's word for the type of an event. */
    static String name(WatchedEvent e) {
        switch (e.getType()) {
            case NodeCreated: return "CREATED";
            case NodeDeleted: return "DELETED";
            case NodeDataChanged: return "CHANGED";
            case NodeChildrenChanged: return "CHILD";
            default: return e.getType().toString();
        }
    }

    static long millis(String seconds) { return Math.round(1000 * Double.parseDouble(seconds)); }

    static byte[] bytes(String s) { return s.getBytes(StandardCharsets.UTF_8); }

    static String text(byte[] b) { return new String(b, StandardCharsets.UTF_8); }

    static class Text implements QueueSerializer<String> {
        public byte[] serialize(String s) { return bytes(s); }
        public String deserialize(byte[] b) { return text(b); }
    }
}
