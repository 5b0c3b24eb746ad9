//go:build unix

package examples_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// This file runs the programs that readers copy: nightly, leader and worker, in several
// processes each, which are killed or stopped by SIGTERM.

// A fleet is the processes of one program, around one server.
type fleet struct {
	site
	t *testing.T

	mu      sync.Mutex
	lines   []string // of all processes in the order in which they came; guarded by mu
	changed chan struct{}
}

func newFleet(t *testing.T) *fleet {
	t.Parallel()
	f := &fleet{site: newSite(t), t: t, changed: make(chan struct{}, 1)}
	t.Cleanup(func() {
		if t.Failed() {
			f.mu.Lock()
			defer f.mu.Unlock()
			t.Logf("the output:\n%s", strings.Join(f.lines, "\n"))
		}
	})
	return f
}

// A process is one process of a fleet; each of its lines begins with its name.
type process struct {
	f    *fleet
	name string
	cmd  *exec.Cmd
	read chan struct{} // closed when all of its output has been read
}

func (f *fleet) start(name, program string, args ...string) *process {
	f.t.Helper()
	p := &process{f: f, name: name, cmd: exec.Command(filepath.Join(bin, program), args...), read: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+f.servers)
	out, err := p.cmd.StderrPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		defer close(p.read)
		for s := bufio.NewScanner(out); s.Scan(); {
			f.mu.Lock()
			f.lines = append(f.lines, name+": "+s.Text())
			f.mu.Unlock()
			select {
			case f.changed <- struct{}{}:
			default:
			}
		}
	}()
	f.t.Cleanup(func() { p.kill() })
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.read
	p.cmd.Wait()
}

// stops sends SIGTERM, and wants the process to end with status 0.
func (p *process) stops() {
	p.f.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.f.t.Fatal(err)
	}
	<-p.read
	if err := p.cmd.Wait(); err != nil {
		p.f.t.Errorf("%s: %v", p.name, err)
	}
}

// wants waits until n lines match, and returns their matches.
func (f *fleet) wants(n int, pattern string) [][]string {
	f.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.After(3 * time.Minute); ; {
		if all := f.matches(re); len(all) >= n {
			return all
		}
		select {
		case <-f.changed:
		case <-end:
			f.t.Fatalf("%d lines match %q, want %d", len(f.matches(re)), pattern, n)
		}
	}
}

func (f *fleet) matches(re *regexp.Regexp) (all [][]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, line := range f.lines {
		if m := re.FindStringSubmatch(line); m != nil {
			all = append(all, m)
		}
	}
	return all
}

func TestNightlyRunsEachNightOnOneMachineAndOnAnotherIfThatDies(t *testing.T) {
	f := newFleet(t)
	ps := map[string]*process{}
	for _, name := range []string{"a", "b", "c"} {
		ps[name] = f.start(name, "nightly", "--every", "1s")
	}
	f.wants(2, `(\w): .*the report is done at=(\S+)`)
	seen := len(f.matches(regexp.MustCompile(`the report begins`)))
	begun := f.wants(seen+1, `(\w): .*the report begins at=(\S+)`)
	killed := begun[len(begun)-1]
	ps[killed[1]].kill() // in the middle of its work, as a rule
	f.endDead(t)
	f.wants(1, `^[^`+killed[1]+`]: .*the report is done at=`)
	f.wants(len(begun)+2, `the report begins`)
	for name, p := range ps {
		if name != killed[1] {
			p.stops()
		}
	}
	nights := map[string]int{}
	for _, m := range f.matches(regexp.MustCompile(`the report is done at=(\S+)`)) {
		if nights[m[1]]++; nights[m[1]] > 1 {
			t.Errorf("the report of %s was done twice", m[1])
		}
	}
}

func TestTheNextLeaderBeginsWhenTheOneBeforeHasReturned(t *testing.T) {
	f := newFleet(t)
	ps := map[string]*process{}
	for _, name := range []string{"a", "b"} {
		ps[name] = f.start(name, "leader")
	}
	first := f.wants(1, `(\w): .*INFO leads`)[0][1]
	second := map[string]string{"a": "b", "b": "a"}[first]
	f.wants(2, `INFO stands by`)
	ps[first].stops()
	led := f.wants(1, second+`: (.*) INFO leads`)[0][1]
	// The processes' own times: the test may read the second one's pipe before the first one's.
	if stopped := f.wants(1, first+`: (.*) INFO has stopped`)[0][1]; stopped >= led {
		t.Errorf("the next led at %s, and the one before had stopped at %s", led, stopped)
	}
	third := f.start("z", "leader")
	f.wants(3, `INFO stands by`)
	ps[second].kill()
	f.endDead(t)
	f.wants(1, `z: .*INFO leads`)
	third.stops()
}

func TestWorkersDoEachJobAndFinishTheirsAtTheEnd(t *testing.T) {
	f := newFleet(t)
	const jobs = 40
	a, b := f.start("a", "worker"), f.start("b", "worker")
	sender := f.start("s", "worker", "--send", fmt.Sprint(jobs))
	<-sender.read
	if err := sender.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	f.wants(4, `a: .*INFO has delivered`)
	a.stops()
	begun, done := f.matches(regexp.MustCompile(`a: .*INFO delivers`)), f.matches(regexp.MustCompile(`a: .*INFO has delivered`))
	if len(begun) != len(done) {
		t.Errorf("it began %d jobs, and was done with %d when it ended", len(begun), len(done))
	}
	f.wants(jobs, `INFO has delivered`)
	b.stops()
	times := map[string]int{}
	for _, m := range f.matches(regexp.MustCompile(`INFO has delivered to=(\S+)`)) {
		times[m[1]]++
	}
	if len(times) != jobs {
		t.Errorf("%d jobs were done, want %d", len(times), jobs)
	}
	for job, n := range times {
		if n != 1 {
			t.Errorf("%s was done %d times, and no worker has died", job, n)
		}
	}
}
