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

// This file is a worker process of the tour, and its messages to and from the parent. The parent is
// the business of main.go.

// An order is the argument of a worker's command line.
type order struct {
	Name    string        // the name of the worker, also in its znodes
	Servers string        //
	Timeout time.Duration // its session timeout
	Lock    string        // the path of the Mutex
	Dir     string        // the directory of the counter
	Goal    int           // the last number to count to
	Unsafe  bool          // use no Mutex
}

// A report is a JSON line on a worker's standard output.
type report struct {
	Kind  kind
	Count int           `json:",omitempty"` // Done: the new number of the counter
	Token int64         `json:",omitempty"` // Done: the fencing token of the hold
	Wait  time.Duration `json:",omitempty"` // Done: the time for which the worker waited for the lock
	Found string        `json:",omitempty"` // Done: the mark at the begin of the round; it should be ""
	After string        `json:",omitempty"` // Done: the mark at the end of the round, if it was not the worker's own
	Mark  string        `json:",omitempty"` // Inside, Dropped: the mark that the worker leaves behind
}

// A kind is the kind of a report.
type kind string

const (
	done    kind = "done"    // a round: the worker has replaced the counter
	inside  kind = "inside"  // the worker stays inside, as the parent has ordered
	dropped kind = "dropped" // a round that did not count, because the hold was lost
)

// linger is the parent's order to a worker to stay inside in its next round.
const linger = "linger\n"

// A worker counts to the goal, in turn with the other workers.
type worker struct {
	order
	mutex  *zsync.Mutex
	out    *json.Encoder
	linger atomic.Bool
	rounds int
}

// work is the main function of a worker process.
func work(args []string) error {
	w := &worker{out: json.NewEncoder(os.Stdout)}
	if len(args) != 1 {
		return errors.New("a worker is started by the tour itself")
	}
	if err := json.Unmarshal([]byte(args[0]), &w.order); err != nil {
		return fmt.Errorf("the order: %w", err)
	}
	// Ctrl-C sends a signal to every process of the terminal. Only the parent handles it.
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

// listen reads the parent's orders. Standard input ends with the parent, even if the parent is
// killed, and then the worker ends, too.
func (w *worker) listen(in io.Reader) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		w.linger.Store(true)
	}
	os.Exit(1)
}

// turn waits for the lock and does one round. It reports whether more rounds may follow.
func (w *worker) turn(ctx context.Context) (more bool, err error) {
	if w.Unsafe {
		return w.round(report{Kind: done}, nil)
	}
	began := time.Now()
	if err := w.mutex.Lock(ctx); err != nil {
		return false, err
	}
	defer func() {
		// A round counts when the counter is replaced, even if the hold is lost after that.
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

// round reads the counter, sleeps, and writes the number back with 1 added. Two
// workers at once would lose an addition. The lock prevents this. If the number
// is the goal, round does nothing.
//
// The mark, a file with the worker's name, is a second check. A worker that is alone finds no mark
// at the begin of the round, and its own mark at the end.
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
		select {} // wait: the parent kills this process or ends
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

// readCounter returns the number of the counter, or 0 before the first round.
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

// writeCounter replaces the counter in one step, so a kill leaves either the old number or the new
// number.
func (w *worker) writeCounter(n int) error {
	next := filepath.Join(w.Dir, "counter of "+w.Name)
	if err := os.WriteFile(next, []byte(strconv.Itoa(n)), 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(w.Dir, "counter"))
}

// swapMark replaces the mark and returns the previous mark. The read and the write are two steps.
// This is correct under the Mutex, because no other worker is inside.
func swapMark(dir, mark string) (old string, err error) {
	path := filepath.Join(dir, "mark")
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(data)), os.WriteFile(path, []byte(mark), 0o600)
}
