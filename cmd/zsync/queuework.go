package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zsync/zsync"
)

// This file runs the command of zsync queue recv for each element. queuerecv.go receives the
// elements.

// The type `working` has the flags for running the command.
type working struct {
	argv     []string // nil: zsync queue recv writes the elements instead
	jobs     int
	attempts int // 0: no limit
	backoff  time.Duration
	replace  string // the placeholder for the element in argv; "": the command reads the element
}

// The constant `longest` is the maximum wait before a retry.
const longest = time.Minute

// The method `check` checks the flags for the command.
func (w *working) check(cmd *cobra.Command, layout string) error {
	flags := cmd.Flags()
	for _, name := range []string{"jobs", "max-attempts", "backoff", "replace"} {
		if flags.Changed(name) && w.argv == nil {
			return fail(exitUsage, "--%s goes with a command: %s", name, cmd.UseLine())
		}
	}
	switch {
	case flags.Changed("replace") && w.replace == "":
		return fail(exitUsage, "--replace: want the text that stands for the element, such as {}")
	case w.replace != "" && !slices.ContainsFunc(w.argv[1:], func(arg string) bool { return strings.Contains(arg, w.replace) }):
		return fail(exitUsage, "--replace %s: no argument of the command has it", w.replace)
	case w.jobs < 1:
		return fail(exitUsage, "--jobs %d: must be at least 1", w.jobs)
	case flags.Changed("max-attempts") && w.attempts < 1:
		return fail(exitUsage, "--max-attempts %d: must be at least 1", w.attempts)
	case layout != "zsync" && flags.Changed("backoff") && w.backoff > 0:
		return fail(exitUsage, "--backoff needs zsync's own layout, not %s", layout)
	case layout != "zsync" && w.attempts > 0:
		return fail(exitUsage, "--max-attempts needs zsync's own layout, not %s", layout)
	case layout != "zsync":
		w.backoff = 0
	}
	return nil
}

// longestArgument is Linux's maximum length of an argument.
const longestArgument = 128<<10 - 1

// The method `with` returns the command for an element. The element is in the arguments if there is
// a placeholder, and otherwise in the standard input.
func (w *working) with(element []byte) (argv []string, in io.Reader, err error) {
	if w.replace == "" {
		return w.argv, bytes.NewReader(element), nil
	}
	argv = slices.Clone(w.argv)
	for i := 1; i < len(argv); i++ {
		argv[i] = strings.ReplaceAll(argv[i], w.replace, string(element))
		if len(argv[i]) > longestArgument || strings.Contains(argv[i], "\x00") {
			return nil, nil, errors.New("an element with a zero byte, or of 128 KiB, is no argument of a command")
		}
	}
	return argv, strings.NewReader(""), nil
}

// The method `pause` returns how long an element waits after the failure of an attempt. The first
// attempt has the number 1.
func (w *working) pause(attempt int) time.Duration {
	d := w.backoff
	for ; attempt > 1 && d < longest; attempt-- {
		d = min(2*d, max(longest, w.backoff))
	}
	return d
}

// The type `job` is a running command.
type job struct{ signals chan os.Signal }

// passSignals forwards signals to all running commands, until `stop` is called.
func (r *receiver) passSignals() (stop func()) {
	all, ended, gone := make(chan os.Signal, 16), make(chan struct{}), make(chan struct{})
	r.host.hear(all, passedOn...)
	go func() {
		defer close(gone)
		for {
			select {
			case sig := <-all:
				r.mu.Lock()
				r.ending = r.ending || ends(sig)
				for _, j := range r.running {
					select {
					case j.signals <- sig:
					default: // 16 signals already wait for the command
					}
				}
				r.mu.Unlock()
			case <-ended:
				return
			}
		}
	}()
	return func() {
		r.host.signals.Stop(all)
		close(ended)
		<-gone
	}
}

// The method `begin` returns a job that receives all signals from now on. It returns nil if a
// signal has already ended zsync queue recv.
func (r *receiver) begin() *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending {
		return nil
	}
	j := &job{make(chan os.Signal, 16)}
	r.running = append(r.running, j)
	return j
}

// The method `finish` removes a job, and reports whether a signal has ended zsync queue recv.
func (r *receiver) finish(j *job) (ending bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(o *job) bool { return o == j })
	return r.ending
}

// The method `run` runs the command for an element. Then it acknowledges the element, schedules a
// retry, or makes the element a dead letter. An error ends zsync queue recv. Before `run` returns
// an element that ends zsync queue recv, it calls `stop`, so that the consumer does not claim that
// element again: a claim that is not returned before this process ends counts as an attempt.
func (r *receiver) run(ctx context.Context, stop context.CancelFunc, d zsync.Delivery[[]byte]) error {
	j := r.begin()
	if j == nil {
		<-ctx.Done() // the signal that ends zsync queue recv also ends ctx
	}
	if ctx.Err() != nil {
		if j != nil {
			r.finish(j)
		}
		d.Return()
		return nil // the channel of elements ends, too
	}
	// The kernel kills the command at the end of the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	argv, in, err := r.with(r.form.decode(d.Value))
	if err != nil {
		r.finish(j)
		r.again(ctx, d, &statusError{exitUsage, err})
		return nil
	}
	c := &child{host: r.host, session: r.id(), argv: argv, stdin: in, signals: j.signals,
		env: []string{"ZSYNC_ID=" + d.ID, "ZSYNC_ATTEMPT=" + strconv.Itoa(d.Attempt)}}
	status, err := c.run()
	ending := r.finish(j)
	switch {
	case status == 0:
		r.done(d)
		r.remove(ctx, d)
		return nil
	case ending || ctx.Err() != nil: // a signal may have stopped it, so this was no attempt
		d.Return()
		<-ctx.Done() // the signal that ends zsync queue recv also ends ctx
		return r.ended(ctx)
	case status == exitNotFound || status == exitNoExec, // such a failure affects all elements
		r.attempts == 0 && r.backoff == 0:
		stop()
		d.NackAfter(0)
		return &statusError{status, err}
	}
	r.again(ctx, d, &statusError{status, nil})
	return nil
}

// The method `again` is called after a failure. It either schedules a retry for the element, or
// makes the element a dead letter.
func (r *receiver) again(ctx context.Context, d zsync.Delivery[[]byte], status *statusError) {
	why := fmt.Sprintf("exit status %d", status.status)
	if status.err != nil { // the command was not run
		why = status.err.Error()
	}
	last := r.attempts > 0 && d.Attempt >= r.attempts
	pause := r.pause(d.Attempt)
	r.mu.Lock()
	delete(r.failing, d.ID)
	switch {
	case last:
		r.dead = true
	case !r.follow || r.want > 0: // if `follow` is set without a limit, zsync queue recv does not end by itself
		r.failing[d.ID] = true
	}
	r.status = status
	r.mu.Unlock()
	if last {
		r.host.say(fmt.Errorf("%s: %s: %s at attempt %d, the last: it is now a dead letter", r.path, d.ID, why, d.Attempt))
		r.settle(ctx, func(ctx context.Context) error { return d.Reject(ctx, why) })
		return
	}
	r.host.say(fmt.Errorf("%s: %s: %s at attempt %d; again after %v", r.path, d.ID, why, d.Attempt, pause))
	r.settle(ctx, func(context.Context) error { return d.NackAfter(pause) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if due := time.Now().Add(pause); r.attempts > 0 && due.After(r.retried) {
		r.retried = due // so that recv does not end before the retry
	}
}

// The method `done` records that the command has succeeded for an element.
func (r *receiver) done(d zsync.Delivery[[]byte]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, d.ID)
}

// The method `retries` reports whether the element has failed here, so that this delivery is a
// retry.
func (r *receiver) retries(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing[id]
}

// The method `retry` returns the time of the last scheduled retry.
func (r *receiver) retry() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retried
}
