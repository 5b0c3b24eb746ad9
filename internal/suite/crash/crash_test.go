package crash

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// A crash is an operation in the middle of which a process is killed. The
// process is this test binary, in which TestCrashChild runs the operation; it
// is connected to a server in the parent, which sees each of its requests.
// Several operations share a process, each with a server of its own: see
// [crashProcess].
//
// The path of whatever is tested is [crashPath].
type crash struct {
	name string

	// child prepares the operation, calls begin, and does it.
	child func(ctx context.Context, s *zsync.Session, begin func()) error

	// beside, if there is one, runs in the parent meanwhile. It prepares what
	// the operation is to meet and calls ready, which lets it begin. Then it
	// does what the operation needs to come to its end, and gives up what it
	// holds. ctx ends when the child has.
	beside func(ctx context.Context, s *zsync.Session, ready func(), child *crashChild) error

	// after is the operation with its counterparts, for a process that was not
	// there before. It must not wait longer than the dead session lives.
	after func(ctx context.Context, s *zsync.Session) error

	// sweep, if there is one, is the next use of the path, of which it is promised
	// that it removes what nobody was left to remove.
	sweep func(ctx context.Context, s *zsync.Session) error

	// leaves matches the znodes that may be left, besides crashPath and its
	// parents.
	leaves string

	// requests is how many the operation makes at least.
	requests int

	// expires says that beside waits, before it is ready, for the end of the dead
	// process's session: the test ends it then.
	expires bool
}

const (
	crashPath  = "/crash/p"
	crashEnv   = "ZSYNC_CRASH"
	crashBound = 5 * time.Minute // for what takes milliseconds, with dozens at a time on a busy machine

	// No session ends because the machine stands still. The test ends that of the dead.
	crashSession = 20 * time.Second
)

// TestCrashLeavesNothingThatBlocksAnyone kills a process with SIGKILL at each
// request that each operation makes, when it is carried out and not answered,
// and at the first also before it is carried out. When the dead process's
// session has expired, nothing of it is left that is not meant to last, others
// can do the same, and what was done is done or not done, but nothing between.
//
// A process that is killed when its k'th request is carried out leaves the
// servers as one that is killed before the next one is, unless these are under
// way together. With ZSYNC_TEST_LONG, the test does both. Each kill costs time.
// So without ZSYNC_TEST_LONG, and under the race detector, the test kills at the first
// two requests and at each third of the others.
func TestCrashLeavesNothingThatBlocksAnyone(t *testing.T) {
	harness.InMemory(t)
	if _, err := os.Executable(); err != nil {
		t.Fatal("cannot run the test binary again: ", err)
	}
	// Most of the time, a child waits, and only a few subtests run at a time. So goroutines of their
	// own do each operation once, ahead of its subtest.
	var ahead sync.WaitGroup
	t.Cleanup(ahead.Wait) // t's context has ended
	var wholes []*crashRun
	for _, c := range crashes() {
		wholes = append(wholes, newCrashRun(c, crashPoint{}))
	}
	for some := range slices.Chunk(wholes, crashTogether) {
		ahead.Go(func() { runTogether(t.Context(), some) })
	}
	for _, whole := range wholes {
		c := whole.crash
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, err := whole.result()
			if err != nil {
				t.Fatal(err)
			}
			every := harness.Long() && !harness.UnderRace
			points := []crashPoint{{1, crashDropped}}
			for k := 1; k <= n; k++ {
				if !every && k > 2 && k%3 != 0 {
					continue
				}
				points = append(points, crashPoint{k, crashApplied})
				if k > 1 && every {
					points = append(points, crashPoint{k, crashDropped})
				}
			}
			kills := c.atEach(t, points)
			// If this time it came through with fewer requests than before, the
			// last one has had no kill, and if it made more neither.
			for last := n; every && kills[crashPoint{last, crashApplied}]; {
				last++
				maps.Copy(kills, c.atEach(t, []crashPoint{{last, crashApplied}}))
			}
			if n < c.requests {
				t.Errorf("it makes %d requests, want at least %d", n, c.requests)
			}
			if every && len(kills) <= c.requests {
				t.Errorf("killed at %v; it makes at least %d requests", slices.Collect(maps.Keys(kills)), c.requests)
			}
			t.Logf("killed %d times", len(kills))
		})
	}
}

// A crashPoint says at which request the child is killed, and what becomes of
// it. The zero value lets the child live on until its operation is over.
type crashPoint struct {
	request int // counted from 1
	action  crashAction
}

type crashAction string

const (
	crashDropped crashAction = "before it is carried out"
	crashApplied crashAction = "after it is carried out"
)

func (p crashPoint) String() string {
	if p.request == 0 {
		return "in the end"
	}
	return fmt.Sprintf("at request %d %s", p.request, p.action)
}

const crashTogether = 8 // children in a process

// crashSlots bounds how many processes there are at a time. Their children wait most of
// the time, for the server and for each other.
var crashSlots = make(chan struct{}, 2*runtime.GOMAXPROCS(0))

// A crashRun is one operation with one point at which its child is killed.
type crashRun struct {
	crash
	point crashPoint

	over chan struct{} // closed when n and err are known
	n    int           // how many requests the child has made
	err  error
}

func newCrashRun(c crash, p crashPoint) *crashRun {
	return &crashRun{crash: c, point: p, over: make(chan struct{})}
}

// result waits until the run is over.
func (r *crashRun) result() (n int, err error) {
	<-r.over
	return r.n, r.err
}

// runTogether does several runs, with the children in one process, and returns when all
// are over.
func runTogether(ctx context.Context, runs []*crashRun) {
	crashSlots <- struct{}{}
	defer func() { <-crashSlots }()
	ctx, cancel := context.WithTimeout(ctx, crashBound)
	defer cancel()
	proc, err := startCrashProcess(ctx, len(runs))
	if err != nil {
		for _, r := range runs {
			r.err = err
			close(r.over)
		}
		return
	}
	defer proc.end()
	var wg sync.WaitGroup
	for i, r := range runs {
		wg.Go(func() {
			defer close(r.over)
			r.n, r.err = r.at(ctx, r.point, proc.children[i])
		})
	}
	wg.Wait()
}

// atEach kills a child at each of points, and reports at which it came to that.
func (c crash) atEach(t *testing.T, points []crashPoint) (kills map[crashPoint]bool) {
	t.Helper()
	var wg sync.WaitGroup
	var runs []*crashRun
	for _, p := range points {
		runs = append(runs, newCrashRun(c, p))
	}
	for some := range slices.Chunk(runs, crashTogether) {
		wg.Go(func() { runTogether(t.Context(), some) })
	}
	wg.Wait()
	kills = make(map[crashPoint]bool)
	for _, r := range runs {
		n, err := r.result()
		if err != nil {
			t.Error(err)
		}
		if n == r.point.request {
			kills[r.point] = true
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return kills
}

// at runs the operation once, with the child killed at p or when it is done,
// and returns how many requests the child has made.
func (c crash) at(ctx context.Context, p crashPoint, place *crashPlace) (n int, err error) {
	srv := zktest.NewServer()
	defer srv.Close()
	defer place.done() // before Close, which waits for intercept
	defer func() {
		if err != nil {
			var dump strings.Builder
			srv.Dump(&dump)
			err = fmt.Errorf("killed %v: %w\n%s", p, err, dump.String())
		}
	}()
	ctx, closeTree := withTree(ctx, srv.Addr())
	defer closeTree()
	connect := func() (*zsync.Session, error) {
		return zsync.Connect(ctx, srv.Addr(), zsync.WithSessionTimeout(crashSession)) // over TCP, as a child does
	}

	child := newCrashChild(c.name, p, place)
	child.expires = c.expires
	srv.Intercept(child.intercept)
	besideCtx, besideEnd := context.WithCancel(ctx)
	defer besideEnd()
	beside := harness.Async(func() error { return nil })
	living := []*zsync.Session{}
	defer func() {
		for _, s := range living {
			s.Close()
		}
	}()
	if c.beside == nil {
		child.ready()
	} else {
		s, err := connect()
		if err != nil {
			return 0, err
		}
		living = append(living, s)
		beside = harness.Async(func() error {
			defer child.ready()
			return c.beside(besideCtx, s, child.ready, child)
		})
	}
	if err := child.run(ctx, srv); err != nil {
		return 0, fmt.Errorf("the child: %w", err)
	}
	besideEnd()
	n, killed := child.result()
	if place.process.death != "signal: killed" || killed != (n == p.request) {
		return n, fmt.Errorf("the child ended with %q after %d requests", place.process.death, n)
	}

	// Others begin while the servers still take the dead for alive. (Those who wait
	// for its end first do not begin.)
	fresh, err := connect()
	if err != nil {
		return n, err
	}
	living = append(living, fresh)
	before := fresh.Stats().Requests
	done := harness.Async(func() error { return c.after(ctx, fresh) })
	for began := time.Now(); len(done) == 0 && fresh.Stats().Requests == before && time.Since(began) < 50*time.Millisecond; {
		time.Sleep(100 * time.Microsecond) // real time: a poll; a session does not say when it sends
	}
	srv.Expire(child.session)
	if err := <-done; err != nil {
		return n, fmt.Errorf("after the child's death: %w", err)
	}
	if err := <-beside; err != nil && !errors.Is(err, context.Canceled) {
		return n, fmt.Errorf("beside: %w", err)
	}
	if c.sweep != nil {
		if err := c.sweep(ctx, fresh); err != nil {
			return n, fmt.Errorf("the next: %w", err)
		}
	}
	if left := c.left(ctx, isOfTheLiving); len(left) > 0 {
		return n, fmt.Errorf("left behind: %v", left)
	}
	for _, s := range living {
		if err := s.Close(); err != nil {
			return n, err
		}
	}
	if left := c.left(ctx, nothing); len(left) > 0 {
		return n, fmt.Errorf("left behind when all sessions have ended: %v", left)
	}
	return n, nil
}

// left returns the znodes that should not exist when each session has done its work, except those
// that allow accepts. It waits for deletions that a session does in the background.
func (c crash) left(ctx context.Context, allow func(ctx context.Context, path string) bool) (left []string) {
	allowed := regexp.MustCompile(`^(/|/zookeeper|/crash|` + crashPath + `|` + c.leaves + `)$`)
	for {
		left = left[:0]
		for paths := []string{"/"}; len(paths) > 0; paths = paths[1:] {
			if !allowed.MatchString(paths[0]) && !allow(ctx, paths[0]) {
				left = append(left, paths[0])
			}
			names, err := childrenOf(ctx, paths[0])
			if err != nil {
				return append(left, err.Error())
			}
			for _, name := range names {
				if p := path.Join(paths[0], name); p != "/zookeeper" {
					paths = append(paths, p)
				}
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return left
		}
	}
}

// isOfTheLiving reports whether a living session keeps path for its next operation: its log of
// transactions, or the mark of a consumer of a queue. They are ephemeral, and the dead process's
// session has ended.
func isOfTheLiving(ctx context.Context, path string) bool {
	if !strings.HasSuffix(path, "-txn") && !strings.Contains(path, "-live/") {
		return false
	}
	c, err := treeOf(ctx)
	if err != nil {
		return false
	}
	_, stat, err := c.Exists(path)
	return err == nil && stat.EphemeralOwner != 0
}

func nothing(context.Context, string) bool { return false }

// A tree is what the servers have, as a client of go-zookeeper's own sees it,
// whose requests are not among those that are counted. It connects when it is
// first asked.
type tree struct {
	connect func() (*zk.Conn, error)
}

type treeKey struct{}

// withTree returns a context for the functions of a crash, with the tree of the
// server at addr.
func withTree(ctx context.Context, addr string) (_ context.Context, end func()) {
	var conn *zk.Conn
	t := &tree{sync.OnceValues(func() (c *zk.Conn, err error) {
		conn, _, err = zk.Connect([]string{addr}, crashSession, zk.WithDialer(harness.Dial), zk.WithLogInfo(false),
			zk.WithMaxBufferSize(64<<10)) // the default of 1.5 MB costs more than all requests
		return conn, err
	})}
	return context.WithValue(ctx, treeKey{}, t), func() {
		if conn != nil {
			conn.Close()
		}
	}
}

func treeOf(ctx context.Context) (*zk.Conn, error) {
	return ctx.Value(treeKey{}).(*tree).connect()
}

// childrenOf returns what is below path: nothing if it does not exist.
func childrenOf(ctx context.Context, path string) ([]string, error) {
	c, err := treeOf(ctx)
	if err := cmp.Or(err, ctx.Err()); err != nil {
		return nil, err
	}
	names, _, err := c.Children(path)
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return names, err
}

// A crashProcess is a process that is killed. Several children run in it, each with a
// session of its own to a server of its own. A child that has come to its point, or
// whose operation is over, waits for the others: its server holds its request back. When
// all wait, the process is killed.
type crashProcess struct {
	cmd      *exec.Cmd
	children []*crashPlace
	gone     chan struct{} // closed when it has ended
	death    string        // how it ended; to be read when gone is closed

	mu   sync.Mutex
	in   io.Writer // the process reads lines from it; guarded by mu
	busy int       // how many children have not come to their end; guarded by mu
}

// A crashPlace is what a crashProcess has for one child.
type crashPlace struct {
	process *crashProcess
	i       int
	says    chan string // the lines of the child; closed when the process has ended
	done    func()      // tells process that the child is to be killed
}

// startCrashProcess starts a process for n children. The process is killed when ctx ends.
func startCrashProcess(ctx context.Context, n int) (*crashProcess, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &crashProcess{gone: make(chan struct{}), busy: n}
	for i := range n {
		p.children = append(p.children, &crashPlace{process: p, i: i, says: make(chan string, 8), done: sync.OnceFunc(p.oneLess)})
	}
	p.cmd = exec.CommandContext(ctx, exe, "-test.run=^TestCrashChild$", "-test.count=1")
	p.cmd.Env = append(os.Environ(), crashEnv+"=1")
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, outEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout = outEnd
	err = p.cmd.Start()
	outEnd.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	go func() {
		defer out.Close()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			i, rest, _ := strings.Cut(lines.Text(), " ")
			if i, err := strconv.Atoi(i); err == nil && i < n {
				p.children[i].says <- rest
			}
		}
		for _, c := range p.children {
			close(c.says)
		}
		p.cmd.Wait()
		p.death = p.cmd.ProcessState.String()
		close(p.gone)
	}()
	return p, nil
}

// oneLess kills the process if no child is left that has something to do.
func (p *crashProcess) oneLess() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if p.busy == 0 {
		p.cmd.Process.Kill()
	}
}

// end kills the process, and returns when it is dead.
func (p *crashProcess) end() {
	p.cmd.Process.Kill()
	<-p.gone
}

// tell writes a line that the child reads.
func (c *crashPlace) tell(words ...string) {
	c.process.mu.Lock()
	defer c.process.mu.Unlock()
	fmt.Fprintf(c.process.in, "%d %s\n", c.i, strings.Join(words, " "))
}

// await returns the rest of the next line of the child that begins with `what`. It returns
// an error if the child has failed, or the process has ended.
func (c *crashPlace) await(what string) (string, error) {
	for line := range c.says {
		if rest, ok := strings.CutPrefix(line, what+" "); ok {
			return rest, nil
		}
		if rest, ok := strings.CutPrefix(line, "failed "); ok {
			return "", errors.New(rest)
		}
	}
	return "", fmt.Errorf("ended before it said %q", what)
}

// A crashChild is the operation in the process that is killed, as the parent sees it.
type crashChild struct {
	*crashPlace
	op      string
	at      crashPoint
	expires bool          // see crash
	begun   chan struct{} // closed when it has prepared its operation
	able    chan struct{} // closed when it may go on
	ready   func()        // closes able
	waits   chan struct{} // closed when it has left a watch

	mu      sync.Mutex
	session int64     // its ZooKeeper session, once it has begun; guarded by mu
	seen    int       // requests since then; guarded by mu
	heard   time.Time // of the last of them; guarded by mu
	waiting bool      // waits is closed; guarded by mu
	killed  bool      // at its point; guarded by mu
}

func newCrashChild(op string, at crashPoint, place *crashPlace) *crashChild {
	c := &crashChild{
		crashPlace: place,
		op:         op, at: at,
		begun: make(chan struct{}), able: make(chan struct{}), waits: make(chan struct{}),
	}
	c.ready = sync.OnceFunc(func() { close(c.able) })
	return c
}

// intercept counts the child's requests, and kills it at its point. It returns
// only when the child is dead, so that nothing it could still do counts.
func (c *crashChild) intercept(r zktest.Request) zktest.Action {
	switch r.Op {
	case zktest.OpConnect, zktest.OpPing, zktest.OpAuth:
		return zktest.Pass
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == 0 || r.Session != c.session {
		return zktest.Pass
	}
	if r.Watch && !c.waiting {
		c.waiting = true
		close(c.waits)
	}
	if c.killed {
		return zktest.DropRequest
	}
	c.seen++
	c.heard = time.Now()
	if c.seen != c.at.request {
		return zktest.Pass
	}
	c.done()
	<-c.process.gone
	c.killed = true
	if c.at.action == crashDropped {
		return zktest.DropRequest
	}
	return zktest.DropReply
}

func (c *crashChild) result() (seen int, killed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen, c.killed
}

// run has the child do the operation, and returns when it is dead.
func (c *crashChild) run(ctx context.Context, srv *zktest.Server) error {
	c.tell("run", srv.Addr(), c.op)
	session, err := c.await("begin")
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.session, err = strconv.ParseInt(session, 10, 64)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	close(c.begun)
	select {
	case <-c.able:
	case <-c.process.gone:
		if c.expires {
			srv.Expire(c.session)
		}
		<-c.able
	}
	c.tell("go")
	_, err = c.await("done")
	if _, killed := c.result(); killed {
		return nil // intercept holds mu from before the kill until it says so
	}
	if err != nil {
		return err
	}
	c.settle()
	c.done()
	<-c.process.gone
	return nil
}

// settle waits until the child, whose operation is over, has nothing left to do
// in the background.
func (c *crashChild) settle() {
	const quiet = 100 * time.Millisecond
	for began := time.Now(); ; {
		c.mu.Lock()
		idle := time.Since(c.heard) > quiet && time.Since(began) > quiet
		killed := c.killed
		c.mu.Unlock()
		if idle || killed {
			return
		}
		time.Sleep(2 * time.Millisecond) // real time: another process is idle if it sends nothing for a while
	}
}

// TestCrashChild is the process that is killed. It reads which operations it is to do, and
// does them beside each other. Of each, it says "begin" and its session's id, waits to be told
// to go, and says "done" when the operation is.
func TestCrashChild(t *testing.T) {
	if os.Getenv(crashEnv) == "" {
		t.Skip(crashEnv + " is not set: TestCrashLeavesNothingThatBlocksAnyone runs this in processes of its own")
	}
	goes := map[string]chan struct{}{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); { // for ever, or until the parent is gone
		i, what, _ := strings.Cut(in.Text(), " ")
		if what == "go" {
			close(goes[i])
			continue
		}
		words := strings.SplitN(what, " ", 3) // run, the address, the operation
		able := make(chan struct{})
		goes[i] = able
		go func() {
			err := runCrashChild(words[1], words[2], func(s *zsync.Session) {
				fmt.Printf("%s begin %d\n", i, s.ID())
				<-able
			})
			if err != nil {
				fmt.Printf("%s failed %v\n", i, err)
				return
			}
			fmt.Printf("%s done .\n", i)
		}()
	}
	os.Exit(1)
}

// runCrashChild does the operation op with a session to the server at addr.
func runCrashChild(addr, op string, begin func(s *zsync.Session)) error {
	all := crashes()
	i := slices.IndexFunc(all, func(c crash) bool { return c.name == op })
	if i < 0 {
		return fmt.Errorf("no operation %q", op)
	}
	ctx, _ := withTree(context.Background(), addr)
	s, err := zsync.Connect(ctx, addr, zsync.WithSessionTimeout(crashSession))
	if err != nil {
		return err
	}
	return all[i].child(ctx, s, func() {
		settleSession(s)
		begin(s)
	})
}

// settleSession waits until s has nothing left to do in the background, so that
// the requests that follow are those of the operation.
func settleSession(s *zsync.Session) {
	// real time: a session is idle if it sends nothing for a while
	for last := int64(-1); last != s.Stats().Requests; time.Sleep(5 * time.Millisecond) {
		last = s.Stats().Requests
	}
}
