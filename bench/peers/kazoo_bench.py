#!/usr/bin/env python3
"""Measures kazoo as a peer of bench/compare; see bench/README.md. Exit code 64: no such workload."""
import sys
import threading
import time

from kazoo.client import KazooClient


def connect(servers):
    client = KazooClient(hosts=servers, timeout=20)
    client.start(timeout=15)
    return client


class Meter:
    """Counts operations between the end of the warm-up and the end of the run."""

    def __init__(self, warm, dur):
        self.warm, self.dur = warm, dur
        self.counts = []
        self.over = False

    def loop(self, operation):
        count = [0]
        self.counts.append(count)

        def go():
            while not self.over:
                operation()
                count[0] += 1

        return threading.Thread(target=go, daemon=True)

    def rate(self, threads):
        for t in threads:
            t.start()
        time.sleep(self.warm)
        first, begun = sum(c[0] for c in self.counts), time.perf_counter()
        time.sleep(self.dur)
        done, spent = sum(c[0] for c in self.counts) - first, time.perf_counter() - begun
        self.over = True
        return done / spent


def locks(servers, workload, n, meter):
    path = "/kazoo-bench-%d" % time.time_ns()
    shared = connect(servers)
    threads = []
    for i in range(n):
        client = shared if i == 0 or workload != "lock_sessions" else connect(servers)
        lock = client.Lock(path, str(i))

        def once(lock=lock):
            lock.acquire()
            lock.release()

        threads.append(meter.loop(once))
    yield "kazoo", workload, meter.rate(threads)


def barrier(servers, workload, n, meter):
    """A round is everybody's enter and everybody's leave. Threads meet between the two:
    kazoo's parties can otherwise wait for each other for ever."""
    path = "/kazoo-bench-%d" % time.time_ns()
    client = connect(servers)
    meet = threading.Barrier(n)
    threads = []
    rounds = None
    for i in range(n):
        def once(i=i):
            party = client.DoubleBarrier(path, n, identifier=str(i))
            meet.wait()
            party.enter()
            meet.wait()
            party.leave()

        thread = meter.loop(once)
        rounds = rounds or meter.counts[-1]
        threads.append(thread)
    meter.counts = [rounds]
    yield "kazoo", workload, meter.rate(threads)


def queue(servers, workload, n, meter):
    client = connect(servers)
    q = client.Queue("/kazoo-bench-%d" % time.time_ns())
    element = b"x" * 100
    begun = time.perf_counter()
    for _ in range(n):
        q.put(element)
    put = time.perf_counter()
    for _ in range(n):
        if q.get() != element:
            sys.exit("received something else")
    yield "kazoo", "queue_put", n / (put - begun)
    yield "kazoo", "queue_take", n / (time.perf_counter() - put)


def main(servers, workload, n, dur, warm):
    run = {
        "lock_uncontended": locks, "lock_shared_session": locks, "lock_sessions": locks,
        "barrier": barrier, "queue": queue,
    }.get(workload)
    if run is None:
        sys.stderr.write("kazoo has no workload %s\n" % workload)
        sys.exit(64)
    for peer, name, rate in run(servers, workload, int(n), Meter(float(warm), float(dur))):
        print("%s,%s,%s,%.1f" % (peer, name, n, rate), flush=True)


if __name__ == "__main__":
    import os

    main(*sys.argv[1:])
    os._exit(0)  # threads may be waiting for a lock
