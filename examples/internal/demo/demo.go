// Package demo has the common parts of the examples: it runs several processes
// around one server, and the user can kill one of them.
//
// An example that is started without --servers starts a server in memory, unless
// ZSYNC_SERVERS names some, and copies of itself that use it. When a copy is
// killed, the example starts another, as a supervisor of services would.
// With --servers, it is one more process, for a terminal of its own.
package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// A Process is one process of an example.
type Process struct {
	*zsync.Session
}

// Say prints a line.
func (p *Process) Say(format string, args ...any) { say(fmt.Sprintf(format, args...)) }

// KillMe prints a request to the user: kill this process now.
func (p *Process) KillMe(format string, args ...any) {
	p.Say("%s; now kill this one: kill -9 %d", fmt.Sprintf(format, args...), os.Getpid())
}

// say prints a line in one write, as several processes share the terminal.
func say(text string) {
	fmt.Fprintf(os.Stdout, "%s [%d] %s\n", time.Now().Format("15:04:05.000"), os.Getpid(), text)
}

// An example may set these before it calls Main.
var (
	// Processes is the default number of processes.
	Processes = 3
	// Prepare is called in the process that starts the others. It may set flags
	// for them, and returns the flags that a process in another terminal needs.
	Prepare = func() (flags string, cleanUp func(), err error) { return "", func() {}, nil }
)

// childEnv is set for the copies that an example starts.
const childEnv = "ZSYNC_EXAMPLE_CHILD"

// Flags that every example has.
var (
	servers   = flag.String("servers", os.Getenv("ZSYNC_SERVERS"), "ZooKeeper connect `string`: be one process more there (environment: ZSYNC_SERVERS, on which several processes are started; without either a server in memory)")
	processes = flag.Int("processes", 0, "how many processes to start; 0: some, or 1 with --servers")
	timeout   = flag.Duration("session", 2*time.Second, "session `timeout`: what a killed process held passes on after it")
)

// Main is the main function of an example: it prints its purpose, and runs f in
// several processes, until f returns or the user interrupts them. ctx ends with
// SIGINT and SIGTERM.
func Main(purpose string, f func(ctx context.Context, p *Process) error) {
	flag.Lookup("servers").DefValue = "" // -help does not show what the environment says
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "%s\n\n", purpose)
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || *processes < 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := role(ctx, purpose, f)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // it was asked to end
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, filepath.Base(os.Args[0])+":", err)
		os.Exit(1)
	}
}

func role(ctx context.Context, purpose string, f func(ctx context.Context, p *Process) error) error {
	if os.Getenv(childEnv) != "" {
		go endWithParent()
		return take(ctx, f)
	}
	asked := false // by the command line, and not only by the environment
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "servers" })
	if asked && *servers != "" && *processes <= 1 {
		return take(ctx, f)
	}
	if *processes == 0 {
		*processes = Processes
	}
	say(purpose)
	flags, cleanUp, err := Prepare()
	if err != nil {
		return err
	}
	defer cleanUp()
	if *servers == "" {
		srv := zktest.NewServer()
		defer srv.Close()
		*servers = srv.Addr()
		say("a server in memory is at " + srv.Addr() + "; to add a process, run in another terminal:")
	} else {
		say("the servers are " + *servers + "; to add a process, run in another terminal:")
	}
	say("    go run ./examples/" + filepath.Base(os.Args[0]) + " --servers " + *servers + flags)
	return lead(ctx)
}

// endWithParent ends this process when its parent ends, even by a kill: its
// standard input ends then.
func endWithParent() {
	io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// take takes part.
func take(ctx context.Context, f func(ctx context.Context, p *Process) error) error {
	connecting, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	s, err := zsync.Connect(connecting, *servers, zsync.WithSessionTimeout(*timeout), zsync.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer s.Close()
	return f(ctx, &Process{s})
}

// lead starts the copies, and another for each that is killed, and returns when
// all have ended.
func lead(ctx context.Context) error {
	ended := make(chan *exec.Cmd)
	failed := error(nil)
	start := func() int {
		cmd, err := startCopy()
		if err != nil {
			failed = errors.Join(failed, err)
			return 0
		}
		stop := context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })
		go func() {
			cmd.Wait() // its state says how it has ended
			stop()
			ended <- cmd
		}()
		return 1
	}
	running := 0
	for range *processes {
		running += start()
	}
	for running > 0 {
		cmd := <-ended
		running--
		state := cmd.ProcessState
		switch {
		case state.Success():
		case state.Exited():
			failed = errors.Join(failed, fmt.Errorf("process %d: %s", state.Pid(), state))
		case ctx.Err() == nil: // by a signal
			say(fmt.Sprintf("process %d has ended (%s); another is started in its place", state.Pid(), state))
			running += start()
		}
	}
	return failed
}

// startCopy starts this program again, with the same flags. The copy ends with
// this process, which keeps the other end of the copy's standard input.
func startCopy() (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var args []string
	flag.VisitAll(func(f *flag.Flag) { args = append(args, "--"+f.Name+"="+f.Value.String()) })
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return cmd, cmd.Start()
}

// Sleep sleeps, unless ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
