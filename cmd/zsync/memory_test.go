//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/zktest"
)

// This file runs the command in this process, in virtual time: its machine is a
// value, its servers are a zktest.Server in memory, and its commands are functions.

// A machine runs zsync in memory.
type machine struct {
	dial   zk.Dialer                                                // to its servers
	lookup func(ctx context.Context, name string) ([]string, error) // nil: no name has an address

	columns int // of the terminal on standard error, or 0

	mu       sync.Mutex
	programs map[string]program
	running  []*memoryProcess
}

// A program is what a command does; it returns the exit status.
type program func(p *memoryProcess) int

// machines are those of the tests that run at present, by their *testing.T.
var machines sync.Map

// inMemory runs f in a bubble of virtual time, with a server whose sessions last a
// minute unless opts say otherwise. In f start runs zsync in this process.
func inMemory(t *testing.T, f func(t *testing.T, srv *zktest.Server), opts ...zktest.Option) {
	t.Helper()
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		newMachine(t, srv.Dial)
		f(t, srv)
	}, append([]zktest.Option{harness.Patient}, opts...)...)
}

// newMachine returns the machine on which start runs zsync, for the rest of the test.
func newMachine(t *testing.T, dial zk.Dialer) *machine {
	m := &machine{dial: dial, programs: map[string]program{
		"true":  func(*memoryProcess) int { return 0 },
		"false": func(*memoryProcess) int { return 1 },
		"echo": func(p *memoryProcess) int {
			fmt.Fprintln(p.out, strings.Join(p.args[1:], " "))
			return 0
		},
		"cat": func(p *memoryProcess) int {
			io.Copy(p.out, p.in)
			return 0
		},
		"env": func(p *memoryProcess) int {
			fmt.Fprintln(p.out, strings.Join(p.env, "\n"))
			return 0
		},
	}}
	machines.Store(t, m)
	t.Cleanup(func() { machines.Delete(t) })
	return m
}

// does returns the name of a program that does what f does.
func does(t *testing.T, f program) string {
	t.Helper()
	m := machineOf(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	name := fmt.Sprintf("program-%d", len(m.programs))
	m.programs[name] = f
	return name
}

func machineOf(t *testing.T) *machine {
	m, _ := machines.Load(t)
	found, _ := m.(*machine)
	return found
}

// start runs zsync in a goroutine.
func (m *machine) start(t *testing.T, r *run, in io.Reader, env, args []string) {
	s := &memorySignals{heard: map[chan<- os.Signal][]os.Signal{}}
	var cut sync.Once
	dead := make(chan struct{})
	h := &host{
		args: args, env: env, stdin: in, stdout: &r.stdout, stderr: &r.stderr, signals: s,
		columns:  func(io.Writer) int { return m.columns },
		lookPath: m.lookPath, prepare: m.prepare, lookup: m.lookup,
		dial: func(network, addr string, limit time.Duration) (net.Conn, error) {
			select {
			case <-dead:
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ENETDOWN}
			default:
			}
			conn, err := m.dial(network, addr, limit)
			if err == nil {
				go func() {
					select {
					case <-dead:
						conn.Close()
					case <-r.ended:
					}
				}()
			}
			return conn, err
		},
	}
	go func() {
		defer close(r.ended)
		r.code, r.died = execute(t.Context(), h)
	}()
	r.deliver = func(sig os.Signal) {
		if sig == syscall.SIGKILL {
			// Its commands die with it, and the kernel closes its connections.
			m.killAll()
			cut.Do(func() { close(dead) })
			return
		}
		if !s.send(sig) {
			r.t.Errorf("%v: %v would end it", r.args, sig)
		}
	}
	t.Cleanup(func() {
		m.killAll()
		select {
		case <-r.ended:
		default:
			s.send(syscall.SIGTERM)
			<-r.ended
		}
	})
}

func (m *machine) killAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.running {
		p.end(128 + int(syscall.SIGKILL))
	}
}

func (m *machine) find(name string) (program, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.programs[filepath.Base(name)]; f != nil {
		return f, nil
	}
	return nil, &exec.Error{Name: name, Err: exec.ErrNotFound}
}

func (m *machine) lookPath(name string) (string, error) {
	_, err := m.find(name)
	return name, err
}

func (m *machine) prepare(cmd *exec.Cmd) process { return m.process(cmd) }

func (m *machine) process(cmd *exec.Cmd) *memoryProcess {
	return &memoryProcess{
		m: m, args: cmd.Args, env: cmd.Env, in: cmd.Stdin, out: cmd.Stdout, err: cmd.Stderr,
		traps: map[os.Signal]bool{}, signals: make(chan os.Signal, 16), ended: make(chan struct{}),
	}
}

// A memoryProcess is a program that runs.
type memoryProcess struct {
	m    *machine
	args []string
	env  []string
	in   io.Reader
	out  io.Writer
	err  io.Writer

	signals chan os.Signal // those that the program has a trap for
	ended   chan struct{}

	mu     sync.Mutex
	traps  map[os.Signal]bool // guarded by mu
	status int                // guarded by mu; final when ended is closed
}

func (p *memoryProcess) start() error {
	f, err := p.m.find(p.args[0])
	if err != nil {
		return err
	}
	p.m.mu.Lock()
	p.m.running = append(p.m.running, p)
	p.m.mu.Unlock()
	go func() { p.end(f(p)) }()
	return nil
}

// end ends the process, unless it has ended.
func (p *memoryProcess) end(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over() {
		p.status = status
		close(p.ended)
	}
}

func (p *memoryProcess) over() bool { return harness.Closed(p.ended) }

func (p *memoryProcess) wait() int {
	<-p.ended
	return p.status
}

func (p *memoryProcess) passOn(sig os.Signal) bool {
	p.mu.Lock()
	trapped, over := p.traps[sig], p.over()
	p.mu.Unlock()
	switch {
	case over:
		return false
	case trapped:
		p.signals <- sig
	default:
		p.end(128 + int(sig.(syscall.Signal)))
	}
	return true
}

func (p *memoryProcess) terminate()                           { p.passOn(syscall.SIGTERM) }
func (p *memoryProcess) kill()                                { p.passOn(syscall.SIGKILL) }
func (p *memoryProcess) clear(<-chan time.Time)               {}
func (p *memoryProcess) reap()                                {}
func (p *memoryProcess) orphaned() (<-chan os.Signal, func()) { return nil, func() {} }

func (p *memoryProcess) beside(cmd *exec.Cmd) (wait func() error, err error) {
	o := p.m.process(cmd)
	if len(cmd.Args) == 3 && slices.Equal(cmd.Args[:2], shell) {
		o.args = strings.Fields(cmd.Args[2])
	}
	if err := o.start(); err != nil {
		return nil, err
	}
	return func() error {
		if status := o.wait(); status != 0 {
			return fmt.Errorf("exit status %d", status)
		}
		return nil
	}, nil
}

// What programs call.

// trap has signals sent to p.signals, instead of ending the program.
func (p *memoryProcess) trap(signals ...os.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sig := range signals {
		p.traps[sig] = true
	}
}

// say prints a line.
func (p *memoryProcess) say(words ...any) { fmt.Fprintln(p.out, words...) }

// getenv returns a variable of the program's environment.
func (p *memoryProcess) getenv(name string) string { return (&host{env: p.env}).getenv(name) }

// signal waits for a signal that is trapped.
func (p *memoryProcess) signal() os.Signal {
	select {
	case sig := <-p.signals:
		return sig
	case <-p.ended:
		runtime.Goexit()
	}
	return nil
}

// until waits for c.
func (p *memoryProcess) until(c <-chan struct{}) {
	select {
	case <-c:
	case <-p.ended:
		runtime.Goexit()
	}
}

// forever runs until the program is killed.
func (p *memoryProcess) forever() { p.until(nil) }

// memorySignals deliver the signals of a zsync that runs in this process.
type memorySignals struct {
	mu    sync.Mutex
	heard map[chan<- os.Signal][]os.Signal
}

func (s *memorySignals) Notify(ch chan<- os.Signal, signals ...os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[ch] = append(s.heard[ch], signals...)
}

func (s *memorySignals) Stop(ch chan<- os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.heard, ch)
}

func (s *memorySignals) Ignored(os.Signal) bool { return false }

// send sends a signal to those who have asked for it, and reports whether there were any.
func (s *memorySignals) send(sig os.Signal) (heard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch, signals := range s.heard {
		if slices.Contains(signals, sig) {
			heard = true
			select {
			case ch <- sig:
			default:
			}
		}
	}
	return heard
}
