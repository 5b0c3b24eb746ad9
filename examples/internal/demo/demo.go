// Package demo has the common parts of the examples: it runs several processes with one ensemble or
// server, and restarts a process that the user kills. The work of the processes is the business of
// the examples.
//
// Without the flag --servers, an example starts copies of itself. They use the
// servers in ZSYNC_SERVERS or, if there are none, a server in memory that the
// example starts. When a copy is killed, the example starts another, as a
// supervisor of services would. With --servers, the example is a single process,
// in addition to the processes of another terminal.
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

// KillMe prints a line, and asks the user to kill this process now.
func (p *Process) KillMe(format string, args ...any) {
	p.Say("%s; now kill this one: kill -9 %d", fmt.Sprintf(format, args...), os.Getpid())
}

// say prints a line in a single write, because several processes share the terminal.
func say(text string) {
	fmt.Fprintf(os.Stdout, "%s [%d] %s\n", time.Now().Format("15:04:05.000"), os.Getpid(), text)
}

// An example may set these variables before it calls Main.
var (
	// Processes is the default number of processes.
	Processes = 3
	// Prepare is called in the process that starts the copies. It may set flags for them. It
	// returns the flags for a process in another terminal.
	Prepare = func() (flags string, cleanUp func(), err error) { return "", func() {}, nil }
)

// childEnv is the variable that marks the copies of an example.
const childEnv = "ZSYNC_EXAMPLE_CHILD"

// The flags of every example.
var (
	servers   = flag.String("servers", os.Getenv("ZSYNC_SERVERS"), "ZooKeeper connect `string`: be one process more there (environment: ZSYNC_SERVERS, on which several processes are started; without either a server in memory)")
	processes = flag.Int("processes", 0, "how many processes to start; 0: some, or 1 with --servers")
	timeout   = flag.Duration("session", 2*time.Second, "session `timeout`: what a killed process held passes on after it")
)

// Main is the main function of an example. It prints the purpose, and runs f in
// several processes until f returns or the user interrupts them. SIGINT and
// SIGTERM end ctx.
func Main(purpose string, f func(ctx context.Context, p *Process) error) {
	flag.Lookup("servers").DefValue = "" // -help does not show the variable's value
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
		err = nil // a signal has ended it
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
	asked := false // whether the command line has --servers
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

// endWithParent ends this process when its parent ends, even if it is killed, because its standard
// input ends with the parent.
func endWithParent() {
	io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// take connects a session and runs f with it.
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

// lead starts the copies, replaces each copy that is killed, and returns when all have ended.
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
			cmd.Wait() // cmd.ProcessState has the result
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
		case ctx.Err() == nil: // a signal has killed it
			say(fmt.Sprintf("process %d has ended (%s); another is started in its place", state.Pid(), state))
			running += start()
		}
	}
	return failed
}

// startCopy starts this program again, with the same flags. The copy ends with this process, which
// has the other end of the copy's standard input.
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

// Sleep sleeps for d, or returns the cause of ctx if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
