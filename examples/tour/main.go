// The tour shows what a zsync.Mutex is for.
//
// Four worker processes count to 400 together. Each reads the number in a file
// and writes it back with 1 added. Without a lock, additions would be lost.
// Half way, the tour kills the process that holds the lock with SIGKILL, in the
// middle of its round. When its ZooKeeper session has expired, the next waiter
// gets the lock, and the others finish. At the end, the tour checks the
// promises of the lock, and exits with status 1 if one is broken.
//
//	go run ./examples/tour                                # on a server of its own, in memory
//	go run ./examples/tour -servers zk1:2181,zk2:2181     # on an ensemble
//	go run ./examples/tour -unsafe                        # without the lock: see it fail
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// quiet makes the sessions log nothing, because the tour itself prints the events.
var quiet = zsync.WithLogger(slog.New(slog.DiscardHandler))

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := work(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	var t tour
	flag.StringVar(&t.servers, "servers", os.Getenv("ZSYNC_SERVERS"), "ZooKeeper connect `string`; if empty, a server in memory (environment: ZSYNC_SERVERS)")
	flag.Lookup("servers").DefValue = "" // -help does not show the variable's value
	flag.DurationVar(&t.timeout, "session", 2*time.Second, "session `timeout` of the workers; a dead one's lock passes on after it")
	flag.IntVar(&t.goal, "rounds", 400, "how far to count")
	flag.IntVar(&t.workers, "workers", 4, "how many `processes`")
	flag.BoolVar(&t.unsafe, "unsafe", false, "do without the lock, to see that the checks notice")
	flag.Parse()
	if flag.NArg() > 0 || t.workers < 2 || t.goal < 10*t.workers {
		fmt.Fprintln(os.Stderr, "tour: want no arguments, at least 2 workers, and at least 10 rounds for each")
		os.Exit(2)
	}
	// If the reader of its output has ended, the tour must still clean up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ok, err := t.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// patience is the time limit for the tour, which takes seconds.
const patience = 2 * time.Minute

// A tour is one run of the tour.
type tour struct {
	servers string
	timeout time.Duration
	workers int
	unsafe  bool

	dir    string // the directory of the counter
	mutex  *zsync.Mutex
	screen screen
	journal

	running  map[string]*process
	events   chan event
	failed   context.CancelCauseFunc // ends the tour with an error
	victim   string                  // the worker that must stay inside
	inside   time.Time               // the time at which the victim reported that it is inside
	killedAt time.Time               // the time of the kill
	killedOn int                     // the number of the counter at the kill
}

// A process is a running worker.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
}

// An event is a worker's report or its end.
type event struct {
	name   string
	report report
	over   bool  // the process has ended; this is its last event
	err    error // the error of the end
}

// A sighting is a list of the contenders, as the parent read it.
type sighting struct {
	asked      time.Time
	contenders []zsync.Contender
}

// run runs the tour, and reports whether every promise was kept. It leaves no worker and no file
// behind.
func (t *tour) run(ctx context.Context) (ok bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not finished after %v", patience))
	defer cancel()
	if t.dir, err = os.MkdirTemp("", "zsync-tour-"); err != nil {
		return false, err
	}
	defer os.RemoveAll(t.dir)
	if t.servers == "" {
		srv := zktest.NewServer()
		defer srv.Close()
		t.servers = srv.Addr()
	}
	s, err := connect(ctx, t.servers)
	if err != nil {
		return false, err
	}
	defer s.Close()
	t.mutex = zsync.NewMutex(s, "/"+filepath.Base(t.dir))

	if err := t.count(ctx); err != nil {
		return false, err
	}
	if t.counter, err = readCounter(t.dir); err != nil {
		return false, err
	}
	var b bytes.Buffer
	ok = t.print(&b, columns(os.Stdout))
	_, err = fmt.Printf("\n%s", &b)
	return ok, err
}

// connecting is the time limit for reaching a server. After saysSo, the tour prints that it still
// tries.
const (
	connecting = 15 * time.Second
	saysSo     = 3 * time.Second
)

// connect connects the parent's session.
func connect(ctx context.Context, servers string) (*zsync.Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connecting, fmt.Errorf("no server answered within %v", connecting))
	defer cancel()
	hint := time.AfterFunc(saysSo, func() {
		fmt.Fprintf(os.Stderr, "tour: no server answers yet at %s; trying for %v in all\n", servers, connecting)
	})
	defer hint.Stop()
	return zsync.Connect(ctx, servers, zsync.WithOwner("onlooker"), quiet)
}

// count starts the workers, and returns when all of them have ended.
func (t *tour) count(ctx context.Context) error {
	ctx, t.failed = context.WithCancelCause(ctx)
	defer t.failed(nil)
	t.screen = newScreen(os.Stdout, t.goal, t.failed)
	defer t.screen.close()
	t.screen.say("%d processes count to %d in one file, under one zsync.Mutex on %s", t.workers, t.goal, t.servers)

	t.events = make(chan event)
	t.running = map[string]*process{}
	t.reports = map[string][]report{}
	for i := range t.workers {
		if err := t.start(ctx, fmt.Sprintf("worker %d", i+1)); err != nil {
			t.failed(err)
			break
		}
	}
	sightings := make(chan sighting)
	go t.watch(ctx, sightings)
	// The end of ctx kills every worker, so this loop ends.
	for len(t.running) > 0 {
		select {
		case e := <-t.events:
			t.handle(e)
		case s := <-sightings:
			t.screen.line(s.contenders)
			t.killHolder(s)
		}
	}
	return context.Cause(ctx)
}

// start starts a worker process. The end of ctx kills it.
func (t *tour) start(ctx context.Context, name string) error {
	t.names = append(t.names, name)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args, err := json.Marshal(order{
		Name: name, Servers: t.servers, Timeout: t.timeout, Lock: t.mutex.Path(),
		Dir: t.dir, Goal: t.goal, Unsafe: t.unsafe,
	})
	if err != nil {
		return err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, "worker", string(args))}
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	t.running[name] = p
	t.screen.say("%s is process %d", name, p.cmd.Process.Pid)
	go func() {
		lines := json.NewDecoder(stdout)
		for {
			var r report
			if err := lines.Decode(&r); err != nil {
				break // the end of the output; a kill may have cut off the last line, which is then no report
			}
			t.events <- event{name: name, report: r}
		}
		err := p.cmd.Wait()
		p.stdin.Close()
		t.events <- event{name: name, over: true, err: err}
	}()
	return nil
}

// watch reads the contenders repeatedly, until ctx ends.
func (t *tour) watch(ctx context.Context, sightings chan<- sighting) {
	for every := time.NewTicker(50 * time.Millisecond); ; {
		asked := time.Now()
		contenders, err := t.mutex.Contenders(ctx)
		if err != nil {
			t.failed(err) // no effect if ctx has ended
			return
		}
		select {
		case sightings <- sighting{asked, contenders}:
		case <-ctx.Done():
			return
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}

// handle handles an event of a worker.
func (t *tour) handle(e event) {
	p := t.running[e.name]
	switch {
	case e.over:
		delete(t.running, e.name)
		if e.err != nil && e.name != t.killed {
			t.failed(fmt.Errorf("%s: %w: %s", e.name, e.err, strings.TrimSpace(p.stderr.String())))
		}
		return
	case e.report.Kind == inside:
		t.inside = time.Now()
		t.screen.say("%s is inside; it has read the number and has not written it", e.name)
	case e.report.Kind == dropped:
		t.screen.say("%s has lost its session, and with it the lock", e.name)
	}
	t.reports[e.name] = append(t.reports[e.name], e.report)
	if e.report.Kind != done {
		return
	}
	rounds := len(t.rounds())
	t.screen.progress(rounds)
	if rounds >= t.goal/2 && t.victim == "" {
		t.victim = e.name
		io.WriteString(p.stdin, linger)
	}
	if t.killed != "" && t.heir == "" && e.report.Count > t.killedOn {
		t.heir, t.passed = e.name, time.Since(t.killedAt)
		t.screen.say("%s has done the next round, %v after the kill", t.heir, t.passed.Round(10*time.Millisecond))
	}
}

// killHolder kills the victim when a sighting shows that it holds the lock and
// that all others wait. If no sighting shows this for ten seconds, the tour
// still kills the victim, but its check of the promise fails.
func (t *tour) killHolder(s sighting) {
	if t.inside.IsZero() || t.killed != "" || s.asked.Before(t.inside) {
		return
	}
	t.holding = len(s.contenders) == len(t.running)
	for _, c := range s.contenders {
		t.holding = t.holding && c.Holding == (c.Owner == t.victim)
	}
	if !t.holding && len(t.running) > 1 && time.Since(t.inside) < 10*time.Second {
		return
	}
	n, err := readCounter(t.dir)
	if err == nil {
		err = t.running[t.victim].cmd.Process.Kill()
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.failed(err)
		return
	}
	t.killed, t.killedOn, t.killedAt = t.victim, n, time.Now()
	t.screen.say("%s is killed with SIGKILL; its session lives on for up to %v", t.killed, t.timeout)
}
