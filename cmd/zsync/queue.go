package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

func queueCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "send lines from one machine to another",
		Long: `A queue keeps elements in the order in which they were sent until somebody
receives them. To the command an element is a line, of any bytes, or with
--null what ends in a zero byte; both are kept without their end.

It is a zsync.Queue whose codec is zsync.Raw. With --layout it is shared with
programs that use other libraries.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(
		sendCommand(c), recvCommand(c), lenCommand(c), peekCommand(c), clearCommand(c),
		deadCommand(c), requeueCommand(c), purgeCommand(c),
	)
	return cmd
}

// A queueing is what the command line says about a queue.
type queueing struct {
	holding
	layoutName string
	null       bool
}

var queueLayouts = map[string]zsync.QueueLayout{
	"zsync":       zsync.LayoutZsync,
	"simple":      zsync.LayoutSimpleQueue,
	"distributed": zsync.LayoutDistributedQueue,
	"kazoo":       zsync.LayoutKazooQueue,
}

func (q *queueing) addFlags(cmd *cobra.Command) {
	q.addTimeout(cmd)
	cmd.Flags().StringVar(&q.layoutName, "layout", "zsync", "whose: zsync, simple or distributed (Curator's SimpleDistributedQueue or DistributedQueue), or kazoo")
}

func (q *queueing) addNull(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&q.null, "null", "0", false, "elements end in a zero byte, not in a newline")
}

// end is what ends an element, in input and in output.
func (q *queueing) end() byte {
	if q.null {
		return 0
	}
	return '\n'
}

// open connects to the queue at path. The caller closes the session.
func (q *queueing) open(cmd *cobra.Command, path string, opts ...zsync.QueueOption) (*task, *zsync.Queue[[]byte], error) {
	layout, ok := queueLayouts[q.layoutName]
	if !ok {
		return nil, nil, fail(exitUsage, "unknown layout %q: want zsync, simple, distributed or kazoo", q.layoutName)
	}
	t, err := q.begin(cmd.Context(), path, nil)
	if err != nil {
		return nil, nil, err
	}
	opts = append(opts, zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(layout))
	return t, zsync.NewQueue[[]byte](t.session, path, opts...), nil
}

// A sender is one of the ways to send.
type sender func(ctx context.Context, vs ...[]byte) error

func sendCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	priorities, priority, delay := 1, 0, seconds(0)
	cmd := &cobra.Command{
		Use:   "send PATH [ELEMENT...] [flags]",
		Short: "put elements into a queue",
		Long: `send puts each ELEMENT, or if there is none each line of its standard input, at
the end of the queue at PATH. The ELEMENTs are stored all or none; lines as
they come, and if that fails the message says how many certainly are. An element
must be smaller than about 1 MiB.`,
		Example: `  zsync queue send /jobs one "and another"
  zsync queue send /jobs "at once" --priorities 3 --priority 0
  zsync queue send /jobs "in an hour" --delay 1h
  find . -name '*.wav' -print0 | zsync queue send -0 /jobs`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			if cmd.Flags().Changed("priority") && delay > 0 {
				return fail(exitUsage, "--priority and --delay do not go together")
			}
			if cmd.Flags().Changed("priority") && !cmd.Flags().Changed("priorities") {
				return fail(exitUsage, "--priority %d: of how many? give --priorities", priority)
			}
			t, queue, err := q.open(cmd, args[0], zsync.WithPriorities(priorities))
			if err != nil {
				return err
			}
			defer t.session.Close()
			send := queue.Send
			switch {
			case cmd.Flags().Changed("priority"):
				send = func(ctx context.Context, vs ...[]byte) error { return queue.SendPriority(ctx, priority, vs...) }
			case delay > 0:
				send = func(ctx context.Context, vs ...[]byte) error {
					return queue.SendAt(ctx, time.Now().Add(time.Duration(delay)), vs...)
				}
			}
			if len(args) > 1 {
				elements := make([][]byte, 0, len(args)-1)
				for _, a := range args[1:] {
					elements = append(elements, []byte(a))
				}
				return verdict(send(t.waiting, elements...), exitBusy)
			}
			return sendAll(t.waiting, send, elementsOf(cmd.InOrStdin(), q.end()))
		},
	}
	q.addFlags(cmd)
	q.addNull(cmd)
	cmd.Flags().IntVar(&priorities, "priorities", 1, "how many priorities the queue has, `N`: the same for all who send")
	cmd.Flags().IntVar(&priority, "priority", 0, "`N` from 0, which is served first, to below --priorities (default: the middle)")
	cmd.Flags().Var(&delay, "delay", "a `TIME`: nobody receives it before that has passed")
	return cmd
}

// An input is an element that was read, or what ended the reading.
type input struct {
	element []byte
	err     error // io.EOF at the end
}

// elementsOf reads elements. It reads on until the end, even if nobody wants
// them: reading cannot be interrupted.
func elementsOf(r io.Reader, end byte) <-chan input {
	ch := make(chan input, maxBatch)
	go func() {
		b := bufio.NewReaderSize(r, 1<<16)
		for {
			element, err := b.ReadBytes(end)
			if err == nil {
				ch <- input{element: element[:len(element)-1]}
				continue
			}
			if len(element) > 0 { // the last one, without its end
				ch <- input{element: element}
			}
			ch <- input{err: err}
			return
		}
	}()
	return ch
}

// What sendAll sends in one request: about as many elements, and bytes, as
// there is room for.
const (
	maxBatch      = 1000
	maxBatchBytes = 256 << 10
)

// sendAll sends elements as they come, together what comes at once.
func sendAll(ctx context.Context, send sender, in <-chan input) error {
	for sent := 0; ; {
		var batch [][]byte
		var end error
		size := 0
		select {
		case next := <-in:
			for more := true; more; {
				if end = next.err; end != nil {
					break
				}
				batch, size = append(batch, next.element), size+len(next.element)
				if more = len(batch) < maxBatch && size < maxBatchBytes; more {
					select {
					case next = <-in:
					default:
						more = false
					}
				}
			}
		case <-ctx.Done():
			return stoppedAfter(sent, verdict(context.Cause(ctx), exitBusy), context.Cause(ctx))
		}
		n, err := sendBatch(ctx, send, batch)
		if sent += n; err != nil {
			return stoppedAfter(sent, verdict(err, exitBusy), err)
		}
		switch {
		case end == io.EOF:
			return nil
		case end != nil:
			return stoppedAfter(sent, fail(exitOutput, ""), fmt.Errorf("standard input: %w", end))
		}
	}
}

// stoppedAfter says how far a send has come. Of what came next it may not be
// known whether it was stored.
func stoppedAfter(sent int, verdict, why error) error {
	return &statusError{exitOf(verdict), fmt.Errorf("elements certainly sent: %d: %w", sent, why)}
}

// sendBatch sends a batch, in several requests where it does not fit into one,
// and returns how many elements are certainly stored.
func sendBatch(ctx context.Context, send sender, batch [][]byte) (int, error) {
	err := send(ctx, batch...)
	if err == nil || len(batch) < 2 || !errors.Is(err, zsync.ErrTooLarge) {
		if err != nil {
			return 0, err
		}
		return len(batch), nil
	}
	half := len(batch) / 2
	n, err := sendBatch(ctx, send, batch[:half])
	if err != nil {
		return n, err
	}
	m, err := sendBatch(ctx, send, batch[half:])
	return n + m, err
}

func recvCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	n, follow, attempts := 0, false, 0
	cmd := &cobra.Command{
		Use:   "recv PATH [flags] [-- CMD [ARG...]]",
		Short: "take elements out of a queue",
		Long: `recv writes the elements of the queue at PATH to its standard output, a line
each, and removes them. It ends when none is left, when it has received as many
as --count says, or with --follow waits for more.

An element is removed once it is written. One that cannot be written goes back
to its place. If recv is killed, or loses its session, in between, the element
is received a second time, by whoever comes next; recv says so, if it can, and
ends with status 76. The layouts of other libraries keep no element for one who
has not removed it: with these, one that recv has taken is lost if it is killed.

With a command nothing is written: the command is run for each element, one
after another, and finds the element in its standard input, its name in ZSYNC_ID
and how often it has been received in ZSYNC_ATTEMPT: 1 the first time, and with
another library's layout every time. If the command succeeds the element is
removed. If not, it goes back to its place, and recv ends with the command's
status; with --max-attempts recv goes on, and what has failed so many times goes
to the dead letters: see zsync queue dead. Signals are passed on. Neither --timeout nor a lost session stops the
command; both are seen to when it has ended.

Exit status 75 means that fewer elements came than --count says.`,
		Example: `  zsync queue recv -n 1 --follow --timeout 1m /jobs
  zsync queue recv --follow /jobs -- ./work
  zsync queue recv --follow /jobs | while read -r job; do ./work "$job"; done`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, argv, err := pathAndPerhapsCommand(cmd, args)
			if err != nil {
				return err
			}
			if n < 0 || n == 0 && cmd.Flags().Changed("count") {
				return fail(exitUsage, "--count %d: must be at least 1", n)
			}
			var opts []zsync.QueueOption
			if cmd.Flags().Changed("max-attempts") {
				if attempts < 1 || argv == nil {
					return fail(exitUsage, "--max-attempts %d: must be at least 1, and goes with a command", attempts)
				}
				opts = append(opts, zsync.WithMaxAttempts(attempts))
			}
			switch {
			case argv != nil:
				opts = append(opts, zsync.WithPrefetch(1)) // others may be free
			case n > 0:
				opts = append(opts, zsync.WithPrefetch(min(n, maxUnacknowledged)))
			}
			t, queue, err := q.open(cmd, path, opts...)
			if err != nil {
				return err
			}
			defer t.session.Close()
			r := &receiver{
				queue: queue, path: path, argv: argv, out: cmd.OutOrStdout(), end: q.end(), want: n, goOn: attempts > 0,
				signals: make(chan os.Signal, 16), slots: make(chan struct{}, maxUnacknowledged),
			}
			signal.Notify(r.signals, passedOn...)
			err = r.receive(t.waiting, follow)
			r.removals.Wait()
			return r.verdict(err)
		},
	}
	q.addFlags(cmd)
	q.addNull(cmd)
	cmd.Flags().IntVarP(&n, "count", "n", 0, "receive `N` elements at most (default: all)")
	cmd.Flags().IntVar(&attempts, "max-attempts", 0, "try each element `N` times with the command, and go on")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more when none is left")
	return cmd
}

// maxUnacknowledged is how many elements may be written and not yet removed.
const maxUnacknowledged = 128

// A receiver writes the elements of a queue, or runs a command for each.
type receiver struct {
	queue   *zsync.Queue[[]byte]
	path    string
	argv    []string // nil: write
	signals chan os.Signal
	out     io.Writer
	end     byte
	want    int  // 0: as many as there are
	goOn    bool // though the command has failed
	got     int  // how many were written, or done by the command

	removals sync.WaitGroup
	slots    chan struct{} // one for each removal that may be under way

	mu     sync.Mutex
	doubts int   // how many of these may be received again; guarded by mu
	failed error // of a removal; guarded by mu
}

// receive takes what there is, or with follow what will be.
func (r *receiver) receive(ctx context.Context, follow bool) error {
	// A reader that has gone must not end us before the elements are back.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	for {
		err := r.round(ctx, follow)
		if !errors.Is(err, errEmpty) {
			return err
		}
		// What our own consumer had claimed has gone back by now.
		if _, more, err := r.queue.Peek(ctx); err != nil || !more {
			return verdict(err, exitBusy)
		}
	}
}

// verdict says what came of it all, when nothing is under way any more.
func (r *receiver) verdict(err error) error {
	switch {
	case r.doubts > 0:
		return fail(exitLost, "%s: the session was lost: %s may be received again", r.path, count(r.doubts, "element"))
	case r.failed != nil:
		return &statusError{exitOf(verdict(r.failed, exitServers)), fmt.Errorf("elements may be received again: %w", r.failed)}
	case err == nil && r.got < r.want:
		return fail(exitBusy, "%s: received %d of %s: there are no more", r.path, r.got, count(r.want, "element"))
	}
	return err
}

func (r *receiver) full() bool { return r.want > 0 && r.got >= r.want }

// errEmpty means that there was nothing to receive.
var errEmpty = errors.New("the queue is empty")

// idle is how long nothing must come before the queue is looked at.
const idle = 50 * time.Millisecond

// round consumes until it has enough, or unless it follows until nothing is left.
func (r *receiver) round(ctx context.Context, follow bool) error {
	inner, cancel := context.WithCancel(ctx)
	elements := r.queue.Deliveries(inner)
	defer func() {
		cancel()
		for d := range elements { // they go back to their places
			d.Nack()
		}
	}()
	for !r.full() {
		var look <-chan time.Time
		if !follow {
			look = time.After(idle)
		}
		select {
		case d, ok := <-elements:
			if !ok {
				return r.ended(ctx)
			}
			take := r.write
			if r.argv != nil {
				take = r.run
			}
			if err := take(ctx, d); err != nil {
				return err
			}
		case <-look:
			if _, more, err := r.queue.Peek(ctx); err != nil {
				return verdict(err, exitBusy)
			} else if !more {
				return errEmpty
			}
		}
	}
	return nil
}

// ended says why the elements have ended.
func (r *receiver) ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return fail(exitServers, "%s: the session is closed", r.path)
	}
	return verdict(context.Cause(ctx), exitBusy)
}

// write writes an element, and begins to remove it.
func (r *receiver) write(ctx context.Context, d zsync.Delivery[[]byte]) error {
	if _, err := r.out.Write(append(d.Value, r.end)); err != nil {
		d.Nack()
		if errors.Is(err, syscall.EPIPE) {
			return &statusError{128 + int(syscall.SIGPIPE), nil}
		}
		return outputError(err)
	}
	r.got++
	r.slots <- struct{}{}
	r.removals.Go(func() {
		defer func() { <-r.slots }()
		r.remove(ctx, d)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// run runs the command for an element, and removes it.
func (r *receiver) run(ctx context.Context, d zsync.Delivery[[]byte]) error {
	// A signal that has come before the command is not for it.
	for len(r.signals) > 0 {
		if ends(<-r.signals) {
			<-ctx.Done()
		}
	}
	if ctx.Err() != nil {
		d.Nack()
		return r.ended(ctx)
	}
	c := &child{argv: r.argv, stdin: bytes.NewReader(d.Value), signals: r.signals,
		env: []string{"ZSYNC_ID=" + d.ID, "ZSYNC_ATTEMPT=" + strconv.Itoa(d.Attempt)}}
	if status, err := c.run(); status != 0 {
		d.Nack()
		// One that cannot be run, or was stopped, would fail for all.
		if r.goOn && status != exitNotFound && status != exitNoExec && ctx.Err() == nil {
			return nil
		}
		return &statusError{status, err}
	}
	r.got++
	r.remove(ctx, d)
	return r.failed // nothing else is under way
}

// remove removes what is written or done, even if a signal has come. Removals that are
// under way at the same time share requests.
func (r *receiver) remove(ctx context.Context, d zsync.Delivery[[]byte]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	err := d.Ack(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, zsync.ErrLost):
		r.doubts++
	case err != nil && r.failed == nil:
		r.failed = err
	}
}

// removal is how long a removal is tried, across sessions.
const removal = time.Minute

func lenCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   "len PATH [flags]",
		Short: "print how many elements a queue has",
		Long: `len prints how many elements are in the queue at PATH, those included that
somebody is about to receive.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fail(exitUsage, "want: %s", cmd.UseLine())
			}
			t, queue, err := q.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer t.session.Close()
			n, err := queue.Len(t.waiting)
			if err != nil {
				return verdict(err, exitBusy)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), n)
			return outputError(err)
		},
	}
	q.addFlags(cmd)
	return cmd
}
