"""Drives kazoo from a test: driver.py SERVERS [TIMEOUT_MS]

Prints "ok" once connected, then answers each line of its input with one line,
"ok [VALUE...]" or "error NAME". Driver.java takes the same commands.

  session                       the session's id, decimal; 0 while there is none
  create PATH DATA MODE         MODE of letters e (ephemeral), s (sequential), c (container), t (TTL of 60 s), or p; the path made
  get PATH                      data and version
  set PATH DATA VERSION         the new version
  delete PATH VERSION
  exists PATH                   true or false
  children PATH                 names, sorted, separated by commas
  multi PATH VERSION            one transaction: check PATH's VERSION, create PATH/a and PATH/b, set PATH to "multi", delete PATH/a
  auth USER PASSWORD            digest authentication, for all that follows
  private PATH                  lets only the authenticated user at PATH
  watch PATH                    sets a watch on data or existence, a one-shot one
  watchchildren PATH            sets one on the children
  event                         the next event of those watches: its type and path
  cache PATH / cached           keep a copy of PATH's tree by a persistent recursive watch / its size (Curator only)

Recipes. NAME is the test's word for one object of the client library; acquiring answers true or false.
  lock NAME PATH SECONDS        also rlock and wlock, of a read-write lock
  acquire NAME PATH N SECONDS   one of N permits of a semaphore
  lead NAME PATH SECONDS        become leader; select is the same with a LeaderSelector (Curator only)
  release NAME                  gives back any of these
  close PATH / open PATH / pass PATH SECONDS   a barrier: set, remove, wait for
  enter NAME PATH N / leave NAME               a double barrier for N parties
  leader PATH                   what the leader calls itself; selected is that of a LeaderSelector (Curator only)
  put PATH VALUE [PRIORITY] / take PATH        a queue; take answers nothing where it is empty
  puts PATH VALUE...                          putMulti: several in one znode (Curator only)
  offer PATH VALUE / poll PATH                 a SimpleDistributedQueue (Curator only)
  count PATH DELTA              adds to a counter, answers the sum
  share PATH DELTA              the same with Curator's SharedCount
  join NAME PATH ID INFO        become a member of a group (kazoo's have no info); release leaves
  members NAME                  whom that member sees: ID=INFO, sorted, separated by commas
"""

import logging
import queue
import sys
import threading

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, LockTimeout, RolledBackError, RuntimeInconsistency
from kazoo.security import make_digest_acl

logging.basicConfig(level=logging.WARNING)

servers = sys.argv[1]
timeout = float(sys.argv[2]) / 1000 if len(sys.argv) > 2 else 10
client = KazooClient(hosts=servers, timeout=timeout)
client.start(timeout=120)

events = queue.Queue()
held = {}
user = []


commands = {}


def command(f):
    """Makes a function answer to its name; a trailing _ keeps it from hiding Python's own."""
    commands[f.__name__.rstrip("_")] = f
    return f


def saw(event):
    """Keeps an event of a znode; those of the session are not the test's concern."""
    if event.type != "NONE":
        events.put(event)


@command
def session():
    return client.client_id[0] if client.client_id else 0


@command
def create(path, data, mode):
    return client.create(path, data.encode(), ephemeral="e" in mode, sequence="s" in mode)


@command
def get(path):
    data, stat = client.get(path)
    return "%s %d" % (data.decode(), stat.version)


@command
def set_(path, data, version):
    return client.set(path, data.encode(), int(version)).version


@command
def delete(path, version):
    client.delete(path, int(version))


@command
def exists(path):
    return boolean(client.exists(path))


@command
def children(path):
    return ",".join(sorted(client.get_children(path)))


@command
def multi(path, version):
    t = client.transaction()
    t.check(path, int(version))
    t.create(path + "/a", b"")
    t.create(path + "/b", b"")
    t.set_data(path, b"multi")
    t.delete(path + "/a")
    for result in t.commit():
        if isinstance(result, Exception) and not isinstance(result, (RolledBackError, RuntimeInconsistency)):
            raise result


@command
def auth(name, password):
    user[:] = name, password
    client.add_auth("digest", "%s:%s" % (name, password))


@command
def private(path):
    client.set_acls(path, [make_digest_acl(*user, all=True)])


@command
def watch(path):
    client.exists(path, saw)


@command
def watchchildren(path):
    client.get_children(path, saw)


@command
def event():
    e = events.get(timeout=60)
    return "%s %s" % (e.type, e.path)


@command
def lock(name, path, seconds, make=client.Lock):
    held[name] = make(path, "driver")
    try:
        return boolean(held[name].acquire(timeout=float(seconds)))
    except LockTimeout:
        return "false"


@command
def rlock(name, path, seconds):
    return lock(name, path, seconds, client.ReadLock)


@command
def wlock(name, path, seconds):
    return lock(name, path, seconds, client.WriteLock)


@command
def acquire(name, path, n, seconds):
    return lock(name, path, seconds, lambda p, who: client.Semaphore(p, who, max_leases=int(n)))


class Leadership:
    """An Election, which kazoo runs as a function, as something to release."""

    def __init__(self, path):
        self.election = client.Election(path, "driver")
        self.leads = threading.Event()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.election.run, args=(self.lead,), daemon=True)

    def lead(self):
        self.leads.set()
        self.over.wait()

    def release(self):
        self.over.set()
        self.election.cancel()
        self.thread.join()


@command
def lead(name, path, seconds):
    held[name] = e = Leadership(path)
    e.thread.start()
    if e.leads.wait(float(seconds)):
        return "true"
    e.release()
    return "false"


@command
def leader(path):
    return client.Election(path).contenders()[0]


@command
def release(name):
    held.pop(name).release()


@command
def close(path):
    client.Barrier(path).create()


@command
def open_(path):
    client.Barrier(path).remove()


@command
def pass_(path, seconds):
    return boolean(client.Barrier(path).wait(float(seconds)))


@command
def enter(name, path, n):
    held[name] = client.DoubleBarrier(path, int(n))
    held[name].enter()


@command
def leave(name):
    held.pop(name).leave()


@command
def put(path, value, priority=100):
    client.Queue(path).put(value.encode(), int(priority))


@command
def take(path):
    value = client.Queue(path).get()
    return value.decode() if value is not None else ""


@command
def count(path, delta):
    return add(client.Counter(path), delta)


@command
def share(path, delta):
    return add(client.Counter(path, support_curator=True), delta)


def add(counter, delta):
    counter += int(delta)
    return counter.value


class Membership:
    """A Party, as something to release."""

    def __init__(self, path, identifier):
        self.party = client.Party(path, identifier)
        self.party.join()

    def release(self):
        self.party.leave()


@command
def join(name, path, identifier, info):
    held[name] = Membership(path, identifier)


@command
def members(name):
    return ",".join(sorted(i + "=" for i in held[name].party))


def boolean(x):
    return "true" if x else "false"


print("ok")
for line in sys.stdin:
    name, *args = line.split()
    try:
        value = commands[name](*args)
        print("ok" if value is None else "ok %s" % value)
    except KazooException as e:
        print("error", type(e).__name__.removesuffix("Error"))
client.stop()
client.close()
