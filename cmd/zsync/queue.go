package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file has zsync queue and its subcommands `send` and `len`. queuerecv.go has the consumer,
// queueadmin.go the subcommands for operators, and queuetext.go the form of elements.

func queueCommand(c *client) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "send lines from one machine to another",
		Long: `A queue keeps elements in the order in which they were sent, until a consumer
receives them. In the shell, an element is a line, without its newline. With --null,
each element ends in a zero byte instead.

It is a zsync.Queue with the default codec, zsync.JSON. zsync queue send
stores a line that is JSON unchanged. It stores other text as a JSON string. zsync queue
recv and zsync queue peek print the text of a JSON string, and print other JSON
unchanged. So NewQueue[string] and NewQueue[Job] share the path with the command. With
--raw, elements are bytes, as with zsync.Raw. With --layout, programs of other libraries
can share the path; elements are bytes, too.`,
		RunE: wantSubcommand,
	}
	cmd.AddCommand(
		sendCommand(c), cancelCommand(c), recvCommand(c), lenCommand(c), statsCommand(c), itemsCommand(c), peekCommand(c), clearCommand(c), pauseCommand(c), resumeCommand(c),
		deadCommand(c), requeueCommand(c), purgeCommand(c),
	)
	return cmd
}

// The type `queueing` has the flags for a queue.
type queueing struct {
	holding
	layoutName string
	null       bool
	form
}

var queueLayouts = map[string]zsync.QueueLayout{
	"zsync":       zsync.LayoutZsync,
	"simple":      zsync.LayoutSimpleQueue,
	"distributed": zsync.LayoutDistributedQueue,
	"kazoo":       zsync.LayoutKazooQueue,
}

func (q *queueing) addFlags(cmd *cobra.Command) {
	q.addTimeout(cmd)
	cmd.Flags().StringVar(&q.layoutName, "layout", "zsync", "zsync, simple or distributed (Curator's SimpleDistributedQueue or DistributedQueue), or kazoo")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		layout, ok := queueLayouts[q.layoutName]
		if !ok {
			return fail(exitUsage, "unknown layout %q: want zsync, simple, distributed or kazoo", q.layoutName)
		}
		return q.check(layout)
	}
}

// The method `needOwn` returns an error if `used` is true and the layout is of another library.
func (q *queueing) needOwn(used bool, what string) error {
	if !used || q.layoutName == "zsync" {
		return nil
	}
	return fail(exitUsage, "%s needs zsync's own layout, not %s", what, q.layoutName)
}

func (q *queueing) addNull(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&q.null, "null", "0", false, "elements end in a zero byte, not in a newline")
}

// The method `end` returns the byte that follows each element in the input and in the output.
func (q *queueing) end() byte {
	if q.null {
		return 0
	}
	return '\n'
}

// The method `open` connects to the queue at path. The caller closes the session.
func (q *queueing) open(cmd *cobra.Command, path string, opts ...zsync.QueueOption) (*task, *zsync.Queue[[]byte], error) {
	t, err := q.begin(cmd.Context(), nil, path)
	if err != nil {
		return nil, nil, err
	}
	opts = append(opts, zsync.WithCodec(zsync.Raw), zsync.WithQueueLayout(queueLayouts[q.layoutName]))
	queue := zsync.NewQueue[[]byte](t.session, path, opts...)
	if err := queue.Err(); err != nil {
		t.session.Close()
		return nil, nil, verdict(err, exitBusy)
	}
	return t, queue, nil
}

// The type `sender` sends elements, in the way that the flags select.
type sender func(ctx context.Context, vs ...[]byte) error

func sendCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	priorities, priority, delay, key, id, memory := 1, 0, seconds(0), "", "", seconds(24*time.Hour)
	cmd := &cobra.Command{
		Use:   "send PATH [ELEMENT...] [flags]",
		Short: "put elements into a queue",
		Long: `zsync queue send puts each ELEMENT at the end of the queue at PATH. Without an ELEMENT,
it sends each line of its standard input. Either all ELEMENTs are stored or none. Lines
are stored as they arrive; after a failure, the message says how many were certainly
stored. An element must be smaller than about 1 MiB.

An ELEMENT that is JSON is stored unchanged, other text as a JSON string. Use --text
if all elements are text, as for NewQueue[string], and --raw for bytes.

With --key, the elements of a KEY are received in the order in which they were sent,
one at a time. Elements of other keys are received at the same time.

With --id, zsync queue send stores its one ELEMENT (or line) only if no element with
this ID was sent within --id-memory. If one was sent, the command says so and succeeds.
If it is unknown whether the command has succeeded, run the same command again. zsync
queue cancel removes the element by its ID.`,
		Example: `  zsync queue send /jobs one "and another"
  zsync queue send /jobs '{"id": 7}' '{"id": 8}'
  zsync queue send /jobs "at once" --priorities 3 --priority 0
  zsync queue send /jobs "in an hour" --delay 1h
  zsync queue send /jobs "$order" --id "$order_number" --key "$customer"
  find . -name '*.wav' -print0 | zsync queue send -0 --raw /jobs`,
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
			once := cmd.Flags().Changed("id")
			if once && (cmd.Flags().Changed("priority") || delay > 0) {
				return fail(exitUsage, "--id does not go with --priority and --delay")
			}
			if once && len(args) > 2 {
				return fail(exitUsage, "--id is of one element, and here are %d", len(args)-1)
			}
			switch {
			case priorities < 1 || priorities > 1000:
				return fail(exitUsage, "--priorities %d: must be from 1 to 1000", priorities)
			case priorities > 1 && q.layoutName == "simple":
				return fail(exitUsage, "--priorities: there are none in the layout simple")
			case cmd.Flags().Changed("priority") && (priority < 0 || priority >= priorities):
				return fail(exitUsage, "--priority %d: must be from 0 to %d, with --priorities %d", priority, priorities-1, priorities)
			case once && id == "":
				return fail(exitUsage, "--id: the ID is empty")
			case cmd.Flags().Changed("key") && key == "":
				return fail(exitUsage, "--key: the key is empty; leave --key out for an element without a key")
			case memory < seconds(time.Millisecond):
				return fail(exitUsage, "--id-memory %v: must be at least a millisecond", &memory)
			}
			if err := cmp.Or(q.needOwn(once, "--id"), q.needOwn(key != "", "--key"), q.needOwn(delay > 0, "--delay")); err != nil {
				return err
			}
			elements := make([][]byte, len(args)-1)
			for i, a := range args[1:] {
				var err error
				if elements[i], err = q.encode([]byte(a)); err != nil {
					return err
				}
			}
			opts := []zsync.QueueOption{zsync.WithPriorities(priorities), zsync.WithIDMemory(time.Duration(memory))}
			if key != "" {
				opts = append(opts, zsync.WithKey(func([]byte) string { return key }))
			}
			t, queue, err := q.open(cmd, args[0], opts...)
			if err != nil {
				return err
			}
			defer t.session.Close()
			if once {
				return verdict(q.sendOnce(t.waiting, cmd, queue, id, elements), exitBusy)
			}
			send := queue.Send
			switch {
			case cmd.Flags().Changed("priority"):
				send = func(ctx context.Context, vs ...[]byte) error { return queue.SendPriority(ctx, priority, vs...) }
			case delay > 0:
				send = func(ctx context.Context, vs ...[]byte) error {
					return queue.SendAt(ctx, time.Now().Add(time.Duration(delay)), vs...)
				}
			}
			if len(elements) > 0 {
				return verdict(send(t.waiting, elements...), exitBusy)
			}
			return sendAll(t.waiting, send, q.encodeAll(elementsOf(cmd.InOrStdin(), q.end())))
		},
	}
	q.addFlags(cmd)
	q.addNull(cmd)
	q.addRaw(cmd, "elements")
	q.addText(cmd, "each element")
	cmd.Flags().IntVar(&priorities, "priorities", 1, "the queue has `N` priorities; all producers must name the same N")
	cmd.Flags().IntVar(&priority, "priority", 0, "priority `N`, from 0, which is received first, up to --priorities minus 1 (default: the middle)")
	cmd.Flags().Var(&delay, "delay", "`TIME` from now in which no consumer receives the elements")
	cmd.Flags().StringVar(&key, "key", "", "elements of the same `KEY` are received in order, one at a time")
	cmd.Flags().StringVar(&id, "id", "", "`ID` of the element, such as an order number: it is sent once")
	cmd.Flags().Var(&memory, "id-memory", "`TIME` for which the ID is remembered")
	return cmd
}

// sendOnce sends one element with an ID. The element is the argument or the only line of the input.
func (q *queueing) sendOnce(ctx context.Context, cmd *cobra.Command, queue *zsync.Queue[[]byte], id string, elements [][]byte) error {
	if len(elements) == 0 {
		element, err := onlyElement(ctx, q.encodeAll(elementsOf(cmd.InOrStdin(), q.end())))
		if err != nil {
			return err
		}
		elements = append(elements, element)
	}
	sent, err := queue.SendID(ctx, id, elements[0])
	if err == nil && !sent {
		q.say(fmt.Errorf("%s: an element with the ID %s was sent before; nothing is stored", queue.Path(), printable(id)))
	}
	return err
}

// onlyElement returns the only element of the input. It reads the whole input first. If the input
// has two elements, zsync queue send fails and sends neither.
func onlyElement(ctx context.Context, in <-chan input) (element []byte, err error) {
	for n := 0; ; n++ {
		select {
		case next := <-in:
			switch {
			case next.err == io.EOF && n == 0:
				return nil, fail(exitUsage, "--id is of one element, and standard input has none")
			case next.err == io.EOF:
				return element, nil
			case next.err != nil:
				return nil, inputError(next.err)
			case n > 0:
				return nil, fail(exitUsage, "--id is of one element, and standard input has more")
			}
			element = next.element
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// The type `input` is an element of the input, or the error that ended the input.
type input struct {
	element []byte
	err     error // io.EOF at the end
}

// elementsOf returns a channel with the elements of r. Its goroutine may outlive the caller,
// because a read cannot be interrupted.
func elementsOf(r io.Reader, end byte) <-chan input {
	ch := make(chan input, maxBatch)
	go func() {
		b := bufio.NewReaderSize(r, 1<<16)
		for {
			element, err := readElement(b, end)
			if err == nil {
				ch <- input{element: element[:len(element)-1]}
				continue
			}
			if len(element) > 0 { // no byte `end` need follow the last element
				ch <- input{element: element}
			}
			ch <- input{err: err}
			return
		}
	}()
	return ch
}

// readElement reads an element, and the byte `end` after the element, as ReadBytes does. It fails
// if the element is larger than mostInput.
func readElement(b *bufio.Reader, end byte) (element []byte, err error) {
	for {
		part, err := b.ReadSlice(end)
		if len(element)+len(part) > mostInput {
			return nil, zsync.ErrTooLarge
		}
		element = append(element, part...)
		if err != bufio.ErrBufferFull {
			return element, err
		}
	}
}

// These are the approximate limits of sendAll for one request.
const (
	maxBatch      = 1000
	maxBatchBytes = 256 << 10
)

// sendAll sends the elements of the input as they arrive. Elements that are available at the same
// time share a request.
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
			err := inputError(end)
			return stoppedAfter(sent, err, errors.Unwrap(err))
		}
	}
}

// stoppedAfter returns an error with the number of elements that were certainly sent. The elements
// after these may be stored or not.
func stoppedAfter(sent int, verdict, why error) error {
	return &statusError{exitOf(verdict), fmt.Errorf("elements certainly sent: %d: %w", sent, why)}
}

// sendBatch sends a batch, in several requests if it does not fit into one. It returns the number
// of elements that are certainly stored.
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

func lenCommand(c *client) *cobra.Command {
	q := &queueing{holding: *newHolding(c)}
	cmd := &cobra.Command{
		Use:   "len PATH [flags]",
		Short: "print the number of elements",
		Long: `zsync queue len prints the number of elements in the queue at PATH, claimed elements
included.`,
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
