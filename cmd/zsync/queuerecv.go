package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync queue recv: it receives elements and writes them. queuework.go runs a command
// for each element.

func recvCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	n, follow, w := 0, false, working{jobs: 1, backoff: time.Second}
	cmd := &cobra.Command{
		Use:   "recv PATH [flags] [-- CMD [ARG...]]",
		Short: "take elements out of a queue",
		Long: `zsync queue recv writes the elements of the queue at PATH to its standard output, a line
each, and removes them. It prints the text of a JSON string, unless --raw is given. It
ends when the queue is empty or paused, or after --count elements; with --follow it
waits for more.

zsync queue recv first writes an element, and then removes it. If the element cannot be
written, it returns to its place. If zsync is killed, or loses its session, between the
two steps, the element is received again. After a loss, zsync prints the number of such
elements, and exits with status 76. In the layouts of other libraries, an element that
zsync has taken is lost if zsync is killed.

With a command, zsync queue recv writes nothing. It runs the command for each element,
--jobs at once, with the element as standard input, its ID in ZSYNC_ID and the number of
the attempt in ZSYNC_ATTEMPT (in another library's layout always 1). If the command
succeeds, the element is removed.

If the command fails, zsync tries the element again after --backoff, which doubles with
each failure, up to a minute. It continues with other elements until then. After
--max-attempts failures, the element is a dead letter, with the command's exit status
as the reason: see zsync queue dead. Without --max-attempts, zsync tries again
indefinitely; but with --backoff 0, and in the layouts of other libraries, the first
failure ends zsync queue recv, and the element returns to its place.

When zsync queue recv ends by itself, it exits with status 0 if every element that
failed has succeeded later, and otherwise with the status of the last command that
failed. With --max-attempts, it first waits for the retries of its elements, unless it
ends after --count elements. Retries do not count as further elements.

A command that does not exist or cannot be executed ends zsync queue recv. zsync
forwards signals to all commands; elements whose commands then fail return to their
places and use no attempt. Neither --timeout nor a lost session stops a running command.

Exit status 75 means that fewer than --count elements came.`,
		Example: `  zsync queue recv -n 1 --follow --timeout 1m /jobs
  zsync queue recv --follow /jobs --jobs 4 --max-attempts 5 -- ./work
  zsync queue recv --follow /jobs | while read -r job; do ./work "$job"; done`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndPerhapsCommand(cmd, args)
			if err != nil {
				return err
			}
			if n < 0 || n == 0 && cmd.Flags().Changed("count") {
				return fail(exitUsage, "--count %d: must be at least 1", n)
			}
			w.argv = argv
			if err := w.check(cmd, q.layoutName); err != nil {
				return err
			}
			if argv != nil {
				// Look for the program before the claim of an element. After a claim, the element
				// would have to be returned, and that would count as an attempt.
				if _, err := c.lookPath(argv[0]); err != nil && !errors.Is(err, exec.ErrDot) {
					status, err := notRun(argv[0], err)
					return &statusError{status, err}
				}
			}
			var opts []zsync.QueueOption
			if w.attempts > 0 {
				opts = append(opts, zsync.WithMaxAttempts(w.attempts))
			}
			if argv == nil && n > 0 {
				opts = append(opts, zsync.WithPrefetch(min(n, maxUnacknowledged)))
			}
			t, queue, err := q.open(cmd, path, opts...)
			if err != nil {
				return err
			}
			defer t.session.Close()
			r := &receiver{
				host: c.host, form: &q.form, id: t.session.ID, queue: queue, path: path, out: cmd.OutOrStdout(), end: q.end(), want: n, follow: follow,
				working: w, slots: make(chan struct{}, maxUnacknowledged), failing: map[string]bool{},
			}
			err = r.receive(t.waiting)
			r.removals.Wait()
			return r.verdict(err)
		},
	}
	q.addFlags(cmd)
	q.addNull(cmd)
	q.addRaw(cmd, "elements")
	cmd.Flags().IntVarP(&n, "count", "n", 0, "receive at most `N` elements (default: all)")
	cmd.Flags().IntVarP(&w.jobs, "jobs", "j", 1, "run the command for `N` elements at once")
	cmd.Flags().IntVar(&w.attempts, "max-attempts", 0, "make an element a dead letter after `N` failures (default: no limit)")
	cmd.Flags().Var((*seconds)(&w.backoff), "backoff", "`TIME` before the second attempt, doubled for each further one up to a minute")
	cmd.Flags().StringVarP(&w.replace, "replace", "I", "", "replace `TEXT`, such as {}, in the command by the element, and leave its standard input empty")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more elements")
	return cmd
}

// maxUnacknowledged is the maximum number of elements that are written but not acknowledged.
const maxUnacknowledged = 128

// The type `receiver` writes the elements of a queue, or runs a command for each.
type receiver struct {
	host   *host
	form   *form
	id     func() int64 // the id of the current session
	queue  *zsync.Queue[[]byte]
	path   string
	out    io.Writer
	end    byte
	want   int // the maximum number of elements; 0: no limit
	follow bool
	got    int // the number of elements written, or given to the command; without retries

	working
	removals sync.WaitGroup
	slots    chan struct{} // has a value for each acknowledgment in progress

	mu      sync.Mutex      // guards the fields below
	doubts  int             // the number of acknowledgments with unknown results: their elements may be received again
	failed  error           // the first error of an acknowledgment
	ending  bool            // a signal has come that ends recv
	running []*job          // the running commands
	failing map[string]bool // the IDs of the elements to try again
	status  error           // the error of the last failed command
	dead    bool            // an element became a dead letter
	retried time.Time       // the time of the last scheduled retry
	stop    error           // the error of a command, which ends recv
}

// The method `receive` receives elements until the queue is empty or, if `follow` is set, until a
// limit or a signal.
func (r *receiver) receive(ctx context.Context) error {
	// If the reader of the output exits, zsync must first return its elements, so SIGPIPE must not
	// end it.
	broken := make(chan os.Signal, 1)
	r.host.hear(broken, syscall.SIGPIPE)
	if r.argv != nil {
		defer r.passSignals()()
	}
	for patience := idle; ; {
		err := r.round(ctx, patience)
		if !errors.Is(err, errEmpty) {
			return err
		}
		// By now, the consumer that `round` used has returned all its claims. If there are elements
		// nevertheless, they may be those that it had claimed, but that had not reached it yet when
		// `round` ended. So the next round waits longer, by what the servers have just needed.
		begin := time.Now()
		if _, more, err := r.queue.Peek(ctx); err != nil || !more {
			if err == nil {
				r.sayIfPaused(ctx)
			}
			return verdict(err, exitBusy)
		}
		patience = min(2*max(patience, time.Since(begin)), longest)
	}
}

// sayIfPaused prints a message if the queue is paused, because a paused queue looks empty.
func (r *receiver) sayIfPaused(ctx context.Context) {
	if st, err := r.queue.Stats(ctx); err == nil && st.Paused {
		r.host.say(fmt.Errorf("%s: paused: no element can be received; see zsync queue resume", r.path))
	}
}

// The method `verdict` returns the final error of zsync queue recv.
func (r *receiver) verdict(err error) error {
	switch {
	case r.doubts > 0:
		return fail(exitLost, "%s: the session was lost: %s may be received again", r.path, count(r.doubts, "element"))
	case r.failed != nil:
		return &statusError{exitOf(verdict(r.failed, exitServers)), fmt.Errorf("elements may be received again: %w", r.failed)}
	case err == nil && (r.dead || len(r.failing) > 0):
		return r.status
	case err == nil && r.got < r.want:
		return fail(exitBusy, "%s: received %d of %s: there are no more", r.path, r.got, count(r.want, "element"))
	}
	return err
}

func (r *receiver) full() bool { return r.want > 0 && r.got >= r.want }

// errEmpty means that the queue had no element to receive.
var errEmpty = errors.New("the queue is empty")

// The constant `idle` is the time without an element after which `next` first checks whether the
// queue is empty.
const idle = 50 * time.Millisecond

// The method `round` consumes until it has enough elements. Unless `follow` is set, it also ends
// when no element has come for the time `patience` and the queue is empty.
func (r *receiver) round(ctx context.Context, patience time.Duration) (err error) {
	inner, cancel := context.WithCancel(ctx)
	wanted := make(chan struct{})
	elements := r.elements(inner, wanted)
	free, stopped := make(chan struct{}, r.jobs), make(chan struct{})
	var jobs sync.WaitGroup
	defer func() {
		cancel()
		close(wanted)
		for d := range elements { // return the elements that were delivered but not used
			d.Return()
		}
		jobs.Wait()
		if r.stop != nil {
			err = r.stop
		}
	}()
	for !r.full() {
		select {
		case free <- struct{}{}: // wait until a command can run
		case <-stopped:
			return nil
		}
		if r.argv != nil {
			wanted <- struct{}{}
		}
		d, ok, err := r.next(ctx, patience, elements, free, stopped)
		if err != nil || !ok {
			return err
		}
		if !r.retries(d.ID) { // a retry is no further element
			r.got++
		}
		if r.argv == nil {
			if err := r.write(ctx, d); err != nil {
				return err
			}
			<-free
			continue
		}
		jobs.Go(func() {
			defer func() { <-free }()
			if err := r.run(ctx, cancel, d); err != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.stop == nil {
					r.stop = err
					close(stopped)
				}
			}
		})
	}
	return nil
}

// The method `elements` returns a channel of elements, until ctx ends. With a command, it receives one
// element for each value of `wanted`: an element that no command can take yet would count as tried if
// this process ends before the servers have its return.
func (r *receiver) elements(ctx context.Context, wanted <-chan struct{}) <-chan zsync.Delivery[[]byte] {
	if r.argv == nil {
		return r.queue.Deliveries(ctx)
	}
	ch := make(chan zsync.Delivery[[]byte])
	go func() {
		defer close(ch)
		for range wanted {
			d, err := r.queue.Receive(ctx)
			if err != nil {
				return // ctx or the session has ended
			}
			ch <- d
		}
	}()
	return ch
}

// The method `next` waits for an element. The channel `free` already has an entry of the caller. If
// ok is false and err is nil, a command has ended zsync queue recv.
func (r *receiver) next(ctx context.Context, patience time.Duration, elements <-chan zsync.Delivery[[]byte], free chan struct{}, stopped <-chan struct{}) (d zsync.Delivery[[]byte], ok bool, err error) {
	for {
		var look <-chan time.Time
		if !r.follow {
			look = time.After(patience)
		}
		select {
		case d, ok = <-elements:
			if !ok {
				return d, false, r.ended(ctx)
			}
			return d, true, nil
		case <-stopped:
			return d, false, nil
		case <-look:
			// Do not end yet while a command runs, because its element may return to the queue. Do
			// not end before the last retry either.
			if len(free) > 1 || time.Now().Before(r.retry()) {
				continue
			}
			if _, more, err := r.queue.Peek(ctx); err != nil {
				return d, false, verdict(err, exitBusy)
			} else if !more {
				return d, false, errEmpty
			}
		}
	}
}

// The method `ended` returns the error that explains why the channel of elements was closed.
func (r *receiver) ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return fail(exitServers, "%s: the session is closed", r.path)
	}
	return verdict(context.Cause(ctx), exitBusy)
}

// The method `write` writes an element, and begins to acknowledge it.
func (r *receiver) write(ctx context.Context, d zsync.Delivery[[]byte]) error {
	if _, err := r.out.Write(append(r.form.decode(d.Value), r.end)); err != nil {
		r.got--
		d.Return() // this costs the element no attempt
		if errors.Is(err, syscall.EPIPE) {
			return &statusError{128 + int(syscall.SIGPIPE), nil}
		}
		return outputError(err)
	}
	r.slots <- struct{}{}
	r.removals.Go(func() {
		defer func() { <-r.slots }()
		r.remove(ctx, d)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// The method `remove` acknowledges an element, even after a signal. Concurrent acknowledgments
// share requests.
func (r *receiver) remove(ctx context.Context, d zsync.Delivery[[]byte]) {
	r.settle(ctx, d.Ack)
}

// The method `settle` calls the function `how`, which acknowledges an element, returns it for a
// retry, or makes it a dead letter. It does so even after a signal.
func (r *receiver) settle(ctx context.Context, how func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	err := how(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, zsync.ErrLost), errors.Is(err, zk.ErrNoNode): // another consumer may have removed it
		r.doubts++
	case err != nil && r.failed == nil:
		r.failed = err
	}
}

// The constant `removal` is the time limit of `settle`. It also applies if the session changes.
const removal = time.Minute
