// Measures Apache Curator as a peer of bench/compare; see bench/README.md. Exit code 64: no such workload.
// CuratorBench SERVERS WORKLOAD N DUR WARM, times in seconds.
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.barriers.DistributedDoubleBarrier;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.retry.RetryNTimes;

public class CuratorBench {
    private final String servers;
    private final String workload;
    private final int n;
    private final double seconds;
    private final double warm;
    private final LongAdder done = new LongAdder();

    private CuratorBench(String[] args) {
        servers = args[0];
        workload = args[1];
        n = Integer.parseInt(args[2]);
        seconds = Double.parseDouble(args[3]);
        warm = Double.parseDouble(args[4]);
    }

    public static void main(String[] args) throws Exception {
        CuratorBench bench = new CuratorBench(args);
        switch (bench.workload) {
            case "lock_uncontended":
            case "lock_shared_session":
            case "lock_sessions":
                bench.locks();
                break;
            case "barrier":
                bench.barrier();
                break;
            case "queue":
                bench.queue();
                break;
            default:
                System.err.println("curator has no workload " + bench.workload);
                System.exit(64);
        }
        System.exit(0); // threads may be waiting for a lock
    }

    private CuratorFramework connect() throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(servers, 20_000, 15_000, new RetryNTimes(5, 200));
        client.start();
        if (!client.blockUntilConnected(15, TimeUnit.SECONDS)) {
            throw new IllegalStateException("cannot connect to " + servers);
        }
        return client;
    }

    private String path() {
        return "/curator-bench-" + System.nanoTime();
    }

    private void print(String name, double rate) {
        System.out.printf(Locale.ROOT, "curator,%s,%d,%.1f%n", name, n, rate);
    }

    /** Runs each of loops again and again; those of them that count say so by done. */
    private void drive(List<Callable<Void>> loops) throws Exception {
        for (Callable<Void> loop : loops) {
            Thread thread = new Thread(() -> {
                try {
                    while (true) {
                        loop.call();
                    }
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(1);
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
        Thread.sleep((long) (warm * 1000));
        long first = done.sum();
        long begun = System.nanoTime();
        Thread.sleep((long) (seconds * 1000));
        long count = done.sum() - first;
        print(workload, count * 1e9 / (System.nanoTime() - begun));
    }

    private void locks() throws Exception {
        CuratorFramework shared = connect();
        String path = path();
        List<Callable<Void>> loops = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            boolean own = i > 0 && workload.equals("lock_sessions");
            InterProcessMutex mutex = new InterProcessMutex(own ? connect() : shared, path);
            loops.add(() -> {
                mutex.acquire();
                mutex.release();
                done.increment();
                return null;
            });
        }
        drive(loops);
    }

    /** A round is everybody's enter and everybody's leave; threads meet between the two. */
    private void barrier() throws Exception {
        CuratorFramework client = connect();
        String path = path();
        CyclicBarrier meet = new CyclicBarrier(n);
        List<Callable<Void>> loops = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            boolean counts = i == 0;
            loops.add(() -> {
                DistributedDoubleBarrier party = new DistributedDoubleBarrier(client, path, n);
                meet.await();
                party.enter();
                meet.await();
                party.leave();
                if (counts) {
                    done.increment();
                }
                return null;
            });
        }
        drive(loops);
    }

    private void queue() throws Exception {
        SimpleDistributedQueue queue = new SimpleDistributedQueue(connect(), path());
        byte[] element = new byte[100];
        long begun = System.nanoTime();
        for (int i = 0; i < n; i++) {
            queue.offer(element);
        }
        long put = System.nanoTime();
        for (int i = 0; i < n; i++) {
            queue.take();
        }
        long taken = System.nanoTime();
        print("queue_put", n * 1e9 / (put - begun));
        print("queue_take", n * 1e9 / (taken - put));
    }
}
