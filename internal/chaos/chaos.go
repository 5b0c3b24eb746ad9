//go:build linux

// Package chaos runs real ZooKeeper servers in a network of its own. It can stop the packets from
// one server to another. It serves the test of the library's central promise: a process that loses
// a lock learns of it before the next process is granted the lock. The sessions are the business of
// that test.
//
// Each server runs in a network namespace, separate from the machine's network. The namespaces and
// the servers end with this process, even if it is killed. If the system does not allow namespaces,
// the servers run on loopback, with proxies between them.
package chaos

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Servers is the number of servers in an ensemble. They are numbered from 1.
const Servers = 3

const classpath = "/usr/share/java/zookeeper.jar:/usr/share/java/zookeeper-jute.jar:/usr/share/java/slf4j-simple.jar"

// The type `network` connects the servers of an [Ensemble].
type network interface {
	// client returns the address at which clients reach server i.
	client(i int) string
	// members returns the lines of server i's configuration with the addresses of the servers.
	members(i int) string
	// command returns a command that runs argv in the network of server i.
	command(i int, argv ...string) *exec.Cmd
	// set opens the ways if `pass` is true, and closes them otherwise. A way is a pair of servers,
	// for the packets that the first server sends to the second.
	set(ways [][2]int, pass bool) error
	close()
}

// A Config has the settings of the servers.
type Config struct {
	Tick      time.Duration
	SyncLimit int  // in ticks
	Proxies   bool // use proxies instead of namespaces
}

// An Ensemble is a group of running servers.
type Ensemble struct {
	dir     string
	net     network
	running [Servers + 1]*exec.Cmd
	jobs    chan func() // for the method `starter`
	cut     map[[2]int]bool
}

// Start starts an ensemble with its data and logs below dir, and waits until
// every server serves. Unless cfg.Proxies is set, the calling process must run
// in a network namespace of its own; see [Namespaced].
func Start(dir string, cfg Config) (_ *Ensemble, err error) {
	e := &Ensemble{dir: dir, jobs: make(chan func()), cut: map[[2]int]bool{}}
	go e.starter()
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	if cfg.Proxies {
		e.net, err = newProxies()
	} else {
		e.net, err = newNamespaces(e.start)
	}
	if err != nil {
		return nil, err
	}
	for i := 1; i <= Servers; i++ {
		if err = e.configure(i, cfg); err == nil {
			err = e.launch(i)
		}
		if err != nil {
			return nil, err
		}
	}
	return e, e.Await(3 * time.Minute)
}

// The method `starter` runs the functions in `jobs`, which start processes, in a single thread.
// When the thread that started a child process ends, the kernel kills the child. So this thread
// lasts as long as this process.
func (e *Ensemble) starter() {
	runtime.LockOSThread()
	for job := range e.jobs {
		job()
	}
}

// The method `start` starts cmd. The kernel kills the new process when this process ends.
func (e *Ensemble) start(cmd *exec.Cmd) error {
	done := make(chan error)
	e.jobs <- func() {
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		dieWithParent(cmd.SysProcAttr)
		done <- cmd.Start()
	}
	return <-done
}

func (e *Ensemble) home(i int) string { return filepath.Join(e.dir, fmt.Sprint(i)) }

func (e *Ensemble) configure(i int, cfg Config) error {
	data := filepath.Join(e.home(i), "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "myid"), []byte(fmt.Sprint(i)), 0o644); err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(e.net.client(i))
	text := fmt.Sprintf(`tickTime=%d
initLimit=20
syncLimit=%d
dataDir=%s
clientPort=%s
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
%s`, cfg.Tick.Milliseconds(), cfg.SyncLimit, data, port, e.net.members(i))
	return os.WriteFile(filepath.Join(e.home(i), "zoo.cfg"), []byte(text), 0o644)
}

func (e *Ensemble) launch(i int) error {
	log, err := os.OpenFile(filepath.Join(e.home(i), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := e.net.command(i, "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=4096",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(e.home(i), "zoo.cfg"))
	cmd.Stdout, cmd.Stderr = log, log
	if err := e.start(cmd); err != nil {
		return err
	}
	e.running[i] = cmd
	return nil
}

// Addr returns the address at which clients reach server i.
func (e *Ensemble) Addr(i int) string { return e.net.client(i) }

// Await waits until every server serves.
func (e *Ensemble) Await(limit time.Duration) error {
	until := time.Now().Add(limit)
	for i := 1; i <= Servers; i++ {
		for e.mode(i) == "" {
			if time.Now().After(until) {
				log, _ := os.ReadFile(filepath.Join(e.home(i), "log"))
				return fmt.Errorf("server %d does not serve after %v; its log ends:\n%s", i, limit, log[max(0, len(log)-2000):])
			}
			time.Sleep(50 * time.Millisecond) // real time: real servers take a while
		}
	}
	return nil
}

// The method `mode` returns the role that server i reports, such as "leader". The result is ""
// while that server does not serve.
func (e *Ensemble) mode(i int) string {
	c, err := net.DialTimeout("tcp", e.Addr(i), time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = io.WriteString(c, "srvr")
	answer, _ := io.ReadAll(c)
	_, mode, _ := strings.Cut(string(answer), "Mode: ")
	mode, _, _ = strings.Cut(mode, "\n")
	return mode
}

// Leader returns the server that leads.
func (e *Ensemble) Leader() (int, error) {
	// real time: the real servers elect a leader
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // a server without CPU time does not answer for a while
		for i := 1; i <= Servers; i++ {
			if e.mode(i) == "leader" {
				return i, nil
			}
		}
		if time.Now().After(until) {
			return 0, errors.New("no server leads")
		}
	}
}

// Kill ends server i as SIGKILL does.
func (e *Ensemble) Kill(i int) error {
	err := e.running[i].Process.Kill()
	_ = e.running[i].Wait()
	e.running[i] = nil
	return err
}

// Stop stops server i as SIGSTOP does. [Ensemble.Repair] continues it.
func (e *Ensemble) Stop(i int) error { return e.running[i].Process.Signal(syscall.SIGSTOP) }

// Cut closes ways: the first server of each pair can then send no packets to the second.
func (e *Ensemble) Cut(ways ...[2]int) error {
	for _, w := range ways {
		e.cut[w] = true
	}
	return e.net.set(ways, false)
}

// Repair ends all faults and waits until every server serves.
func (e *Ensemble) Repair() error {
	var ways [][2]int
	for w := range e.cut {
		ways = append(ways, w)
	}
	clear(e.cut)
	if err := e.net.set(ways, true); err != nil {
		return err
	}
	for i := 1; i <= Servers; i++ {
		if e.running[i] == nil {
			if err := e.launch(i); err != nil {
				return err
			}
		} else if err := e.running[i].Process.Signal(syscall.SIGCONT); err != nil {
			return err
		}
	}
	return e.Await(3 * time.Minute)
}

// Close ends the servers and their network. Their logs remain.
func (e *Ensemble) Close() {
	for i, cmd := range e.running {
		if cmd != nil {
			_ = e.Kill(i)
		}
	}
	if e.net != nil {
		e.net.close()
	}
	close(e.jobs)
}
