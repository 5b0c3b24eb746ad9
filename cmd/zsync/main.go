// The command zsync brings the primitives of package zsync to the shell:
//
//	zsync lock /locks/backup -- ./backup.sh
//
// runs backup.sh on one machine at a time. See zsync help. This file has main, the exit statuses
// and the root command. The subcommands have files of their own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// The exit statuses of zsync itself. If zsync runs a command, it returns the status of the command,
// or 128+n if signal n ended the command.
const (
	exitUsage    = 64  // the command line is wrong
	exitServers  = 69  // ZooKeeper cannot be used: no server answers
	exitOutput   = 74  // standard input or output failed
	exitBusy     = 75  // the hold was not acquired in the allowed time
	exitLost     = 76  // the hold was lost, and the command was stopped
	exitRefused  = 77  // the servers refuse a request for lack of permission, or zsync refuses znodes that other clients could change
	exitConfig   = 78  // a file or a setting is wrong, or the path is in use for something else
	exitNoExec   = 126 // the command cannot be executed
	exitNotFound = 127 // there is no such command
)

const about = `zsync coordinates programs on different machines, with Apache ZooKeeper.

Name the servers with --servers or ZSYNC_SERVERS, as a connect string:
zk1:2181,zk2:2181,zk3:2181. With zk1:2181,zk2:2181/app, all paths are below /app.

zsync lock, rlock, semaphore, elect, once, schedule and barrier enter run a command.
While it runs, zsync holds the lock, the permits, the leadership and so on. The command
has zsync's standard input, output and error. zsync forwards signals to the command. If
zsync was started with a signal ignored, as by nohup, the command ignores that signal,
too. If the hold is lost, zsync sends the command SIGTERM and, a little later, SIGKILL.
With the default --kill-after, the command ends before another process gets the hold.

With lock, rlock and elect, the command's environment has ZSYNC_TOKEN, a number
greater than the token of every earlier holder. Storage that remembers the greatest
number can refuse late writes. With several locks, it has ZSYNC_TOKENS, one number for
each, in the order of the paths.

With a terminal, the command shares zsync's process group, as with flock(1).
Otherwise it has its own group, and zsync sends signals to that group.

On Linux, Ctrl-Z stops the command first, and then zsync. After a loss, zsync ends the
command and all processes that the command started. If zsync is killed, the kernel
kills the command.

Times are seconds, or have a unit: 5, 0.5, 5s, 1m30s, 2h.

Exit status:
  64    bad command line
  69    ZooKeeper cannot be used: no server answers, or a request fails
  74    standard input cannot be read, or standard output cannot be written
  75    not acquired in time (--try, --timeout; -E sets another status), or not
        there: no value, no element, no instant; see the command's help
  76    the hold was lost, and the command was stopped
  77    credentials are wrong or missing; or the ACL of an existing znode permits
        more clients to change it than --acl does
  78    no servers are named, a file is wrong, or the path is in use for
        something else
  126   the command cannot be executed
  127   there is no such command
  128+n ended by signal n
otherwise that of the command`

func main() {
	// The kernel kills a command when the thread that started it ends, so keep this thread; see the
	// function `attributes`.
	runtime.LockOSThread()
	keepIgnoring()
	keepClosed()
	status, sig := execute(context.Background(), thisHost())
	if sig != nil {
		dieOf(sig)
	}
	os.Exit(status)
}

// The function `execute` runs the command line and returns the exit status. If it also returns a
// signal, zsync must die of that signal. For example, Ctrl-C ends a loop in a shell only if the
// shell sees that its command has died of SIGINT.
func execute(ctx context.Context, h *host) (int, os.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h.messages = &statusLine{w: h.stderr, width: func() int { return h.columns(h.stderr) }}
	root := newRoot(h)
	root.SetIn(h.stdin)
	root.SetOut(h.stdout)
	root.SetErr(h.stderr)
	root.SetArgs(behindDashes(root, withoutValue(root, h.args)))
	help, shown := root.HelpFunc(), &checkedWriter{Writer: h.stdout}
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		cmd.SetOut(shown)
		hideUnused(cmd)
		help(cmd, args)
	})
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = outputError(shown.err)
	}
	var status *statusError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &status):
	case errors.As(err, new(*fs.PathError)): // cobra could not write the version or a completion
		status = &statusError{exitOutput, err}
	default:
		// An error without a status is an error of cobra.
		if m := unknownCommand.FindStringSubmatch(err.Error()); m != nil {
			err = errors.New(didYouMean(err.Error(), nearest(m[1], commandNames(root))))
		}
		status = &statusError{exitUsage, err}
	}
	if _, plain := status.err.(*signalError); status.err != nil && !plain { // for a signal, the shell prints a message
		h.say(status.err)
	}
	if sig := (*signalError)(nil); errors.As(status.err, &sig) && status.status == 128+sig.number() {
		return status.status, sig.Signal
	}
	return status.status, nil
}

// unknownCommand matches cobra's error for an unknown command.
var unknownCommand = regexp.MustCompile(`^unknown command "([^"]*)" for "zsync"$`)

// A checkedWriter keeps the first error of a write, because cobra's help does not return errors.
type checkedWriter struct {
	io.Writer
	err error
}

func (w *checkedWriter) Write(p []byte) (int, error) {
	if w.err == nil {
		_, w.err = w.Writer.Write(p)
	}
	return len(p), nil
}

// The method `say` writes an error to standard error, as one line.
func (h *host) say(err error) {
	text := strings.TrimPrefix(err.Error(), "zsync: ")
	text = strings.ReplaceAll(text, ": zsync: ", ": ") // omit the library's prefix in the middle
	fmt.Fprintln(h.messages, "zsync:", plain(text))
}

func newRoot(h *host) *cobra.Command {
	root := &cobra.Command{
		Use:           "zsync",
		Short:         "locks, elections and queues across machines, on ZooKeeper",
		Long:          about,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.DisableSuggestions = true // zsync has its own suggestions, which are ordered
	root.SetFlagErrorFunc(suggestFlags)
	root.PersistentPreRunE = refuseEmpty
	c := newClient(h, root)
	root.AddCommand(
		lockCommand(c),
		rlockCommand(c),
		semaphoreCommand(c),
		electCommand(c),
		onceCommand(c),
		barrierCommand(c),
		queueCommand(c),
		valueCommand(c),
		mapCommand(c),
		intCommand(c),
		groupCommand(c),
		scheduleCommand(c),
		statusCommand(c),
		lsCommand(c),
		topCommand(c),
		uiCommand(c),
		doctorCommand(c),
		verifyCommand(),
		serverCommand(h),
		genCommand(),
		&cobra.Command{
			Use: "version", Short: "print the version", Args: noArgs,
			RunE: func(cmd *cobra.Command, args []string) error {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "zsync version", version())
				return outputError(err)
			},
		},
	)
	completePaths(c, root)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch show := cmd.Run; cmd.Name() {
		case "completion":
			cmd.RunE = wantSubcommand
		case "help":
			cmd.RunE = func(cmd *cobra.Command, args []string) error {
				if _, _, err := root.Find(args); err != nil {
					return err // the same error as for the command
				}
				show(cmd, args)
				return nil
			}
		}
	}
	return root
}

// The function `version` returns the version of this build, from the information of go build.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	return strings.Join(append(commit(info), info.GoVersion), " ")
}

// The function `commit` returns the version, followed by the commit unless the version contains it.
func commit(info *debug.BuildInfo) (words []string) {
	words = []string{info.Main.Version}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && !strings.Contains(info.Main.Version, s.Value[:min(len(s.Value), 12)]):
			words = append(words, "commit", s.Value[:min(len(s.Value), 12)])
		case s.Key == "vcs.modified" && s.Value == "true" && !strings.HasSuffix(info.Main.Version, "+dirty"):
			words = append(words, "modified")
		}
	}
	return words
}

// wantSubcommand is for a command that has only subcommands. It returns an error, because the
// command line names no valid subcommand.
func wantSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fail(exitUsage, "%s", didYouMean(fmt.Sprintf("unknown subcommand %q; see %s --help", args[0], cmd.CommandPath()), nearest(args[0], commandNames(cmd))))
	}
	return fail(exitUsage, "want a subcommand; see %s --help", cmd.CommandPath())
}

// A statusError ends zsync with its status. If err is not nil, zsync prints err.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return fmt.Sprintf("exit status %d: %v", e.status, e.err) }
func (e *statusError) Unwrap() error { return e.err }

// outputError adds an exit status to err, which is the error of a write, unless it has one.
func outputError(err error) error {
	if err == nil || errors.As(err, new(*statusError)) {
		return err
	}
	return fail(exitOutput, "standard output: %w", err)
}

// exitOf returns the exit status in err, or exitServers if it has none.
func exitOf(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.status
	}
	return exitServers
}

// The function `fail` returns an error with a status and a message.
func fail(status int, format string, args ...any) error {
	return &statusError{status, fmt.Errorf(format, args...)}
}
