package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/zsync/zsync"
)

// An order is a worker's command line, which the parent writes.
type order struct {
	Name    string        // of the worker, also in its znodes
	Servers string        //
	Timeout time.Duration // of its session
	Lock    string        // path of the Mutex
	Dir     string        // where the counter is
	Goal    int           // the last number
	Unsafe  bool          // do without the Mutex
}

// A report is a line on a worker's standard output.
type report struct {
	Kind  kind
	Count int           `json:",omitempty"` // Done: the new number of the counter
	Token int64         `json:",omitempty"` // Done: the fencing token of the hold
	Wait  time.Duration `json:",omitempty"` // Done: how long the worker waited for the lock
	Found string        `json:",omitempty"` // Done: whose mark there was at the beginning; "" is right
	After string        `json:",omitempty"` // Done: whose mark there was at the end, if not the worker's own
	Mark  string        `json:",omitempty"` // Inside, Dropped: the mark that the worker leaves behind
}

// A kind says what a report is about.
type kind string

const (
	done    kind = "done"    // a round: the worker has replaced the counter
	inside  kind = "inside"  // the worker stays inside, by order of the parent
	dropped kind = "dropped" // a round that did not count, because the hold was lost
)

// linger is the parent's order to a worker to stay inside at its next turn.
const linger = "linger\n"

// A worker counts to the goal, taking turns with the others.
type worker struct {
	order
	mutex  *zsync.Mutex
	out    *json.Encoder
	linger atomic.Bool
	rounds int
}

// work is the life of a worker process.
func work(args []string) error {
	w := &worker{out: json.NewEncoder(os.Stdout)}
	if len(args) != 1 {
		return errors.New("a worker is started by the tour itself")
	}
	if err := json.Unmarshal([]byte(args[0]), &w.order); err != nil {
		return fmt.Errorf("the order: %w", err)
	}
	// Every process of the terminal gets the signal of Ctrl-C. The parent decides
	// what to do about it.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	go w.listen(os.Stdin)
	ctx := context.Background()
	s, err := zsync.Connect(ctx, w.Servers, zsync.WithSessionTimeout(w.Timeout), zsync.WithOwner(w.Name), quiet)
	if err != nil {
		return err
	}
	defer s.Close()
	w.mutex = zsync.NewMutex(s, w.Lock)
	for more := true; more; {
		if more, err = w.turn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// listen takes the parent's orders. Standard input ends when the parent ends,
// even by a kill, so a worker does not outlive it.
func (w *worker) listen(in io.Reader) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		w.linger.Store(true)
	}
	os.Exit(1)
}

// turn waits for the lock and does one round. It reports whether there are more
// to do.
func (w *worker) turn(ctx context.Context) (more bool, err error) {
	if w.Unsafe {
		return w.round(report{Kind: done}, nil)
	}
	began := time.Now()
	if err := w.mutex.Lock(ctx); err != nil {
		return false, err
	}
	defer func() {
		// A round is done when the worker has replaced the counter. It counts
		// even if the hold is lost after that.
		if e := w.mutex.Unlock(); e != nil && !errors.Is(e, zsync.ErrLost) {
			err = e
		}
	}()
	r := report{Kind: done, Wait: time.Since(began)}
	if r.Token, err = w.mutex.Token(ctx); errors.Is(err, zsync.ErrLost) {
		return true, w.out.Encode(report{Kind: dropped})
	} else if err != nil {
		return false, err
	}
	return w.round(r, w.mutex.Lost())
}

// round reads the counter, takes its time, and writes it back with 1 added.
// Two workers at once would lose one of their additions: the lock prevents that.
// At the goal, round does nothing.
//
// The mark, a file with the worker's name, is a second witness. A worker that is
// alone finds no mark when it comes, and its own mark when it leaves.
func (w *worker) round(r report, lost <-chan struct{}) (more bool, err error) {
	n, err := readCounter(w.Dir)
	if err != nil || n >= w.Goal {
		return false, err
	}
	w.rounds++
	mark := fmt.Sprintf("%s #%d", w.Name, w.rounds)
	r.Found, err = swapMark(w.Dir, mark)
	if err != nil {
		return false, err
	}
	time.Sleep(rand.N(8 * time.Millisecond))
	if w.linger.Load() {
		if err := w.out.Encode(report{Kind: inside, Mark: mark}); err != nil {
			return false, err
		}
		select {} // until the parent kills this process, or ends
	}
	select {
	case <-lost:
		// Another worker may be inside already, so write nothing.
		return true, w.out.Encode(report{Kind: dropped, Mark: mark})
	default:
	}
	r.Count = n + 1
	if err := w.writeCounter(r.Count); err != nil {
		return false, err
	}
	after, err := swapMark(w.Dir, "")
	if err != nil {
		return false, err
	}
	if after != mark {
		r.After = "nobody"
		if after != "" {
			r.After = after
		}
	}
	return true, w.out.Encode(r)
}

// readCounter returns the number of the counter; before the first round, 0.
func readCounter(dir string) (int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "counter"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(data))
}

// writeCounter replaces the counter in one step: a worker that is killed
// leaves the old number or the new one, and nothing between.
func (w *worker) writeCounter(n int) error {
	next := filepath.Join(w.Dir, "counter of "+w.Name)
	if err := os.WriteFile(next, []byte(strconv.Itoa(n)), 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(w.Dir, "counter"))
}

// swapMark replaces the mark and returns the mark before. Read and write are not
// one step. They need not be: with a Mutex around, no other worker comes between.
func swapMark(dir, mark string) (old string, err error) {
	path := filepath.Join(dir, "mark")
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(data)), os.WriteFile(path, []byte(mark), 0o600)
}
