//go:build unix

// Package cron has examples for programs that use gocron or robfig/cron. Its tests run each in two processes.
package cron

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/zsync/zsync/zktest"
)

// A pair is two processes of one program.
type pair struct {
	t         *testing.T
	processes []*exec.Cmd
	read      sync.WaitGroup

	mu    sync.Mutex
	lines []string // of both, with the number of the process before each; guarded by mu
}

// run runs two processes of a program.
func run(t *testing.T, program string, args ...string) *pair {
	t.Helper()
	t.Parallel()
	bin := filepath.Join(t.TempDir(), program)
	if out, err := exec.Command("go", "build", "-o", bin, "./"+program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := &pair{t: t}
	servers := zktest.Start(t, zktest.WithSessionTimeouts(time.Minute, time.Minute)).Addr()
	for _, name := range []string{"1", "2"} {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "ZSYNC_SERVERS="+servers)
		out, err := cmd.StderrPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		p.processes = append(p.processes, cmd)
		p.read.Go(func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				p.mu.Lock()
				p.lines = append(p.lines, name+" "+s.Text())
				p.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() {
		for _, cmd := range p.processes {
			cmd.Process.Signal(syscall.SIGTERM)
		}
		p.read.Wait()
		for i, cmd := range p.processes {
			if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 0 {
				t.Errorf("process %d: %v", i+1, err)
			}
		}
		if t.Failed() {
			t.Logf("the output:\n%s", strings.Join(p.lines, "\n"))
		}
	})
	return p
}

// seen returns the lines with a word.
func (p *pair) seen(word string) (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if strings.Contains(line, " INFO "+word) {
			lines = append(lines, line)
		}
	}
	return lines
}

func (p *pair) await(what string, is func() bool) {
	p.t.Helper()
	// real time: other processes do what the test awaits
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestWithALockerNoTwoProcessesRunAJobOfGocronAtTheSameTime(t *testing.T) {
	p := run(t, "gocron")
	p.await("five runs", func() bool { return len(p.seen("end")) >= 5 })
	// A process writes its end before it unlocks. So the lines of two runs could only mix if they overlapped; a
	// line may be read late, but the pipes of two processes are compared by the times that they wrote.
	for _, begin := range p.times("begin") {
		overlaps := 0
		for _, other := range p.times("begin") {
			if d := other.Sub(begin); d > 0 && d < 200*time.Millisecond {
				overlaps++
			}
		}
		if overlaps > 0 {
			t.Errorf("%d runs begin while the one of %v runs", overlaps, begin)
		}
	}
}

// times returns the times of the lines with a word.
func (p *pair) times(word string) (times []time.Time) {
	p.t.Helper()
	for _, line := range p.seen(word) {
		text := regexp.MustCompile(`at=(\S+)`).FindStringSubmatch(line)
		if text == nil {
			p.t.Fatalf("no time in %s", line)
		}
		at, err := time.Parse(time.RFC3339Nano, text[1])
		if err != nil {
			p.t.Fatal(err)
		}
		times = append(times, at)
	}
	return times
}

func TestWithAnElectorOneProcessRunsAJobOfGocronAndAnotherSucceedsIt(t *testing.T) {
	p := run(t, "gocron", "-elector")
	p.await("a run", func() bool { return len(p.seen("begin")) >= 3 })
	leader := p.seen("begin")[0][:1]
	for _, line := range p.seen("begin") {
		if !strings.HasPrefix(line, leader) {
			t.Errorf("two processes have run it: %s", line)
		}
	}
	p.processes[leader[0]-'1'].Process.Signal(syscall.SIGTERM)
	p.await("a run of the other", func() bool {
		lines := p.seen("begin")
		return !strings.HasPrefix(lines[len(lines)-1], leader)
	})
}

func TestAScheduleOfRobfigCronRunsEachInstantOnce(t *testing.T) {
	p := run(t, "robfig")
	p.await("five runs", func() bool { return len(p.seen("ran")) >= 5 })
	instants := map[string]bool{}
	for _, line := range p.seen("ran") {
		at := line[strings.LastIndex(line, "at="):]
		if instants[at] {
			t.Errorf("the instant %s was run twice", at)
		}
		instants[at] = true
	}
}
