package main

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/look"
)

// This file is the command's only access to its machine, so that tests can run the command in
// memory.

// A host gives the command its environment, its streams, its signals, the way to the
// servers, and processes. main passes the machine itself; tests pass one in memory.
type host struct {
	args           []string // the command line
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer
	messages       *statusLine         // on stderr
	columns        func(io.Writer) int // of a terminal that zsync may draw on, or 0
	dial           zk.Dialer           // nil: TCP
	lookup         func(ctx context.Context, name string) (addrs []string, err error)
	signals        signals
	lookPath       func(name string) (string, error)
	prepare        func(cmd *exec.Cmd) process
}

// thisHost returns the machine itself.
func thisHost() *host {
	return &host{
		args:     os.Args[1:],
		env:      os.Environ(),
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		columns:  columns,
		lookup:   net.DefaultResolver.LookupHost,
		signals:  ownSignals{},
		lookPath: exec.LookPath,
		prepare:  newProcess,
	}
}

// getenv returns the value of an environment variable; the last one counts.
func (h *host) getenv(name string) (value string) {
	for _, v := range h.env {
		if key, text, ok := strings.Cut(v, "="); ok && key == name {
			value = text
		}
	}
	return value
}

// By withinVariable, a zsync learns that another zsync's command has started it, directly or not. The variable
// lists the sessions of the outer ones, the outermost first.
const withinVariable = "ZSYNC_WITHIN"

// within returns the sessions whose commands have started this process.
func (h *host) within() []string {
	const most = 8 // of nested ones, the innermost
	ids := slices.DeleteFunc(strings.Fields(h.getenv(withinVariable)), func(id string) bool {
		n, err := strconv.ParseUint(id, 0, 64)
		return err != nil || id != look.SessionText(int64(n))
	})
	return ids[max(len(ids)-most, 0):]
}

// signals are the signals that this process receives: see package os/signal.
type signals interface {
	Notify(ch chan<- os.Signal, signals ...os.Signal)
	Stop(ch chan<- os.Signal)
	Ignored(sig os.Signal) bool
}

type ownSignals struct{}

func (ownSignals) Notify(ch chan<- os.Signal, signals ...os.Signal) { signal.Notify(ch, signals...) }
func (ownSignals) Stop(ch chan<- os.Signal)                         { signal.Stop(ch) }

func (ownSignals) Ignored(sig os.Signal) bool {
	s, ok := sig.(syscall.Signal)
	return ok && startedIgnoring(s)
}

// keepIgnoring ignores the signals that the parent process ignores. Go's runtime does that for SIGHUP
// and SIGINT only.
func keepIgnoring() {
	for _, sig := range append([]os.Signal{syscall.SIGPIPE}, passedOn...) {
		if (ownSignals{}).Ignored(sig) {
			signal.Ignore(sig)
		}
	}
}

// keepClosed makes standard input and output fail if the parent had closed them: Go's runtime has
// opened /dev/null in their place, which swallows all output.
func keepClosed() {
	if startedWithout(0) {
		os.Stdin, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if startedWithout(1) {
		os.Stdout, _ = os.Open(os.DevNull)
	}
}

// A process is a command of ours, with all that it has started.
type process interface {
	// start starts the command.
	start() error

	// wait waits for the end of the command and returns its exit status.
	wait() int

	// passOn sends the command a signal that zsync received, and reports whether
	// the command was there to receive it.
	passOn(sig os.Signal) bool

	// terminate asks the command to end, and all that it has started.
	terminate()

	// kill kills the command and all that it has started.
	kill()

	// clear is called after the command has ended. It waits for the end of all that
	// the command had started, and kills the rest when kill fires.
	clear(kill <-chan time.Time)

	// orphaned returns a channel that receives when reap may have something to do.
	orphaned() (_ <-chan os.Signal, stop func())

	// reap reaps the orphans that zsync has adopted.
	reap()

	// beside runs another command, which does not belong to this process.
	beside(cmd *exec.Cmd) (wait func() error, err error)
}

// dialServer connects to a server.
func (h *host) dialServer(ctx context.Context, address string) (net.Conn, error) {
	if h.dial != nil {
		return h.dial("tcp", address, 0)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
