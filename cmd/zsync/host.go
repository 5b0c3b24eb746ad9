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
// memory. child_unix.go runs processes on Unix.

// The type `host` gives the command its environment, its streams, its signals, connections to the
// servers, and processes. The function `main` uses thisHost. Tests make a host in memory.
type host struct {
	args           []string // the command line
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer
	messages       *statusLine         // on stderr
	columns        func(io.Writer) int // the width of a terminal on which zsync may draw, or 0
	dial           zk.Dialer           // nil: TCP
	lookup         func(ctx context.Context, name string) (addrs []string, err error)
	signals        signals
	lookPath       func(name string) (string, error)
	prepare        func(cmd *exec.Cmd) process
}

// thisHost returns the host for the machine.
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

// The method `getenv` returns the value of an environment variable. If env has several entries with
// this name, the last one counts.
func (h *host) getenv(name string) (value string) {
	for _, v := range h.env {
		if key, text, ok := strings.Cut(v, "="); ok && key == name {
			value = text
		}
	}
	return value
}

// withinVariable is an environment variable. If this process runs below the command of another
// zsync, the variable has that zsync's session. If there are several sessions, the outermost is
// first.
const withinVariable = "ZSYNC_WITHIN"

// The method `within` returns the sessions in withinVariable.
func (h *host) within() []string {
	const most = 8 // if more sessions are nested, keep the innermost
	ids := slices.DeleteFunc(strings.Fields(h.getenv(withinVariable)), func(id string) bool {
		n, err := strconv.ParseUint(id, 0, 64)
		return err != nil || id != look.SessionText(int64(n))
	})
	return ids[max(len(ids)-most, 0):]
}

// The interface `signals` is the part of package os/signal that the command uses.
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

// keepIgnoring makes this process ignore the signals that its parent ignores. Go's runtime does
// that for SIGHUP and SIGINT only.
func keepIgnoring() {
	for _, sig := range append([]os.Signal{syscall.SIGPIPE}, passedOn...) {
		if (ownSignals{}).Ignored(sig) {
			signal.Ignore(sig)
		}
	}
}

// keepClosed makes standard input and output fail if the parent has closed them. Go's runtime has
// opened /dev/null in their place, which would discard all output.
func keepClosed() {
	if startedWithout(0) {
		os.Stdin, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if startedWithout(1) {
		os.Stdout, _ = os.Open(os.DevNull)
	}
}

// The type `process` is a command that zsync runs, with its descendants.
type process interface {
	// The method `start` starts the command.
	start() error

	// The method `wait` waits for the end of the command and returns its exit status.
	wait() int

	// passOn forwards a signal that zsync has received to the command. It returns false if the
	// command has ended.
	passOn(sig os.Signal) bool

	// terminate asks the command and its descendants to end.
	terminate()

	// kill kills the command and its descendants.
	kill()

	// The method `clear` is called after the end of the command, and waits for the end of its
	// descendants. When the channel `kill` receives, the method kills the remaining descendants.
	clear(kill <-chan time.Time)

	// orphaned returns a channel that receives when `reap` may have work.
	orphaned() (_ <-chan os.Signal, stop func())

	// reap reaps the orphans that zsync has adopted.
	reap()

	// The method `beside` starts another command, which `terminate` and `kill` do not affect.
	beside(cmd *exec.Cmd) (wait func() error, err error)
}

// dialServer connects to a server.
func (h *host) dialServer(ctx context.Context, address string) (net.Conn, error) {
	if h.dial != nil {
		return h.dial("tcp", address, 0)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}
