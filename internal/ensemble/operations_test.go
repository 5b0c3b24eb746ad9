package ensemble_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/need"
)

// The commands and files of docs/operations.md make an ensemble of Debian's package, restart it,
// restore it and encrypt it. A client works while the servers restart.
func TestTheCommandsOfTheDocumentMakeAnEnsembleOfDebiansPackage(t *testing.T) {
	need.Variable(t, "ZSYNC_TEST_SERVERS") // these servers are others, but as real
	for _, program := range []string{"openssl", "sh", "timeout"} {
		need.Command(t, program)
	}
	d := newDocument(t)
	e := newMachines(t)

	d.each(e, "On each machine, as root")
	d.file(e, "`/etc/zookeeper/conf/zoo.cfg` is the same")
	d.file(e, "`/etc/systemd/system/zookeeper.service`")
	d.each(e, "Start it on each machine")
	e.await()
	d.once(e, "Then, on a client:\n\n    zsync doctor")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	connect := func() *zsync.Session {
		// The longest timeout of these servers: on a slow machine an election takes some of it.
		s, err := zsync.Connect(ctx, e.names.Replace("zk1:2181,zk2:2181,zk3:2181"), zsync.WithSessionTimeout(40*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := connect()
	saved := zsync.NewValue[string](s, "/saved")
	if err := saved.Store(ctx, "before"); err != nil {
		t.Fatal(err)
	}

	restart := d.block("On one machine after the other, the leader last")
	e.rolling(s, "restart", restart)

	d.once(e, "On one machine, at any time")
	if err := saved.Store(ctx, "after"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	d.each(e, "On each machine, stop the server")
	d.each(e, "When all are stopped, on each machine")
	e.await()
	s = connect()
	defer s.Close()
	if got, _, err := zsync.NewValue[string](s, "/saved").Load(ctx); err != nil || got != "before" {
		t.Errorf("the restored value is %q, %v", got, err)
	}

	d.once(e, "On one machine, make a key")
	e.share("key.pem", "ca.pem")
	d.each(e, "On each machine:\n\n    cat key.pem")
	d.file(e, "Add to `/etc/zookeeper/conf/zoo.cfg`")
	e.rolling(s, "restart with TLS", restart)
	d.once(e, "Then, on a client:\n\n    zsync ls")
	d.over()
}

// A document is the section of docs/operations.md about servers of one's own.
type document struct {
	t    *testing.T
	text string
	left []string // blocks that were not used
}

func newDocument(t *testing.T) *document {
	t.Helper()
	data, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(data), "\n## A ZooKeeper for those who have none\n")
	if !ok {
		t.Fatal("docs/operations.md has no section about servers of one's own")
	}
	text, _, _ = strings.Cut(text, "\n## ")
	d := &document{t: t, text: text}
	d.left = indentedBlocks(text)
	return d
}

// indentedBlocks returns the blocks of code. An empty line between two of code belongs to them.
func indentedBlocks(text string) (blocks []string) {
	var b strings.Builder
	empty := 0
	end := func() {
		if b.Len() > 0 {
			blocks = append(blocks, b.String())
		}
		b.Reset()
		empty = 0
	}
	for line := range strings.Lines(text) {
		code, ok := strings.CutPrefix(line, "    ")
		switch {
		case ok:
			if b.Len() > 0 {
				b.WriteString(strings.Repeat("\n", empty))
			}
			empty = 0
			b.WriteString(code)
		case strings.TrimSpace(line) == "":
			empty++
		default:
			end()
		}
	}
	end()
	return blocks
}

// block returns the block behind the sentence that contains text, which may reach into the block.
func (d *document) block(text string) string {
	d.t.Helper()
	before, after, ok := strings.Cut(d.text, text)
	if !ok || strings.Contains(after, text) {
		d.t.Fatalf("%q is not in the document, or more than once", text)
	}
	if _, code, ok := strings.Cut(text, "\n    "); ok {
		after = "    " + code + after
	}
	blocks := indentedBlocks(after)
	if len(blocks) == 0 {
		d.t.Fatalf("no block follows %q, behind %d characters", text, len(before))
	}
	i := slices.Index(d.left, blocks[0])
	if i < 0 {
		d.t.Fatalf("the block behind %q was used already:\n%s", text, blocks[0])
	}
	d.left = slices.Delete(d.left, i, i+1)
	return blocks[0]
}

func (d *document) each(e *machines, text string) {
	d.t.Helper()
	block := d.block(text)
	for i := 1; i <= 3; i++ {
		e.run(i, block)
	}
}

func (d *document) once(e *machines, text string) {
	d.t.Helper()
	e.run(1, d.block(text))
}

// file writes, or appends to, the file that the sentence with text names.
func (d *document) file(e *machines, text string) {
	d.t.Helper()
	block := d.block(text)
	name := regexp.MustCompile("`([^`]*)`").FindStringSubmatch(text)[1]
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if strings.HasPrefix(text, "Add to") {
		flags = os.O_WRONLY | os.O_APPEND
	}
	for i := 1; i <= 3; i++ {
		f, err := os.OpenFile(e.paths[i].Replace(name), flags, 0o644)
		if err == nil {
			_, err = f.WriteString(e.paths[i].Replace(block))
			f.Close()
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

// over reports blocks that were not run.
func (d *document) over() {
	d.t.Helper()
	if len(d.left) > 0 {
		d.t.Errorf("nothing has run\n%s", strings.Join(d.left, "\n"))
	}
}

// machines are three directories, each with the files of a machine.
type machines struct {
	t     *testing.T
	dir   string
	names *strings.Replacer    // of servers
	paths [4]*strings.Replacer // and of paths of machine i
	stop  [4]func()            // ends the server of machine i; nil if there is none
}

func (e *machines) home(i int) string { return filepath.Join(e.dir, fmt.Sprint(i)) }

func newMachines(t *testing.T) *machines {
	t.Helper()
	must := func(err error) { t.Helper(); harness.Must(t, err) }
	e := &machines{t: t, dir: t.TempDir()}
	ports := freePorts(t, 12)
	var names []string
	for i := 1; i <= 3; i++ {
		p := ports[4*i-4 : 4*i]
		names = append(names, fmt.Sprintf("zk%d:2888:3888", i), fmt.Sprintf("127.0.0.1:%d:%d", p[0], p[1]),
			fmt.Sprintf("zk%d:2181", i), fmt.Sprintf("127.0.0.1:%d", p[2]), fmt.Sprintf("zk%d:2281", i), fmt.Sprintf("127.0.0.1:%d", p[3]))
	}
	e.names = strings.NewReplacer(names...)
	backups := filepath.Join(e.dir, "backups") // the same for all machines, instead of copies
	must(os.MkdirAll(backups, 0o755))
	for i := 1; i <= 3; i++ {
		p, home := ports[4*i-4:4*i], e.home(i)
		e.paths[i] = strings.NewReplacer(append([]string{
			"/etc/zookeeper/conf", home + "/conf", "/etc/systemd/system", home + "/systemd", "/var/lib/zookeeper", home + "/data",
			"/var/log/zookeeper", home + "/log", "/usr/share/zookeeper/bin", home + "/bin", "/var/backups", backups,
			"echo 1 ", fmt.Sprintf("echo %d ", i), "-Xmx1g", "-Xmx256m", "apt-get install", "apt-get install --simulate",
			"-g zookeeper", "-g " + fmt.Sprint(os.Getgid()), "DNS:zk1", "IP:127.0.0.1",
			"clientPort=2181", fmt.Sprintf("clientPort=%d\nclientPortAddress=127.0.0.1", p[2]),
			"secureClientPort=2281", fmt.Sprintf("secureClientPort=%d\nsecureClientPortAddress=127.0.0.1", p[3]),
		}, names...)...)
		for _, sub := range []string{"data", "log", "systemd", "conf", "bin"} {
			must(os.MkdirAll(filepath.Join(home, sub), 0o755))
		}
		for from, to := range map[string]string{"/etc/zookeeper/conf_example": "conf", "/usr/share/zookeeper/bin": "bin"} {
			files, err := filepath.Glob(from + "/*")
			must(err)
			if len(files) == 0 {
				need.Missing(t, "zookeeper", from+" of Debian's package has no files")
			}
			for _, name := range files {
				if filepath.Base(name) == "zkEnv.sh" {
					must(os.Symlink(filepath.Join(home, "conf", "environment"), filepath.Join(home, to, "zkEnv.sh"))) // as in the package
					continue
				}
				data, err := os.ReadFile(name)
				must(err)
				must(os.WriteFile(filepath.Join(home, to, filepath.Base(name)), []byte(e.paths[i].Replace(string(data))), 0o755))
			}
		}
	}
	t.Cleanup(func() {
		for i := 1; i <= 3; i++ {
			e.systemctl(i, "stop")
		}
	})
	out, err := exec.Command("go", "build", "-o", filepath.Join(e.dir, "zsync"), "../../cmd/zsync").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return e
}

// run runs commands on machine i. Its systemctl is that below.
func (e *machines) run(i int, commands string) (out string) {
	e.t.Helper()
	var script strings.Builder
	for line := range strings.Lines(commands) {
		verb, ok := strings.CutPrefix(line, "systemctl ")
		if !ok {
			script.WriteString(line)
			continue
		}
		out += e.shell(i, script.String())
		script.Reset()
		e.systemctl(i, strings.Fields(verb)[0])
	}
	return out + e.shell(i, script.String())
}

// shell runs commands on machine i. After two minutes, timeout kills the shell and all that it has
// started, also if this test has ended by then: they are one process group.
func (e *machines) shell(i int, commands string) string {
	e.t.Helper()
	if commands == "" {
		return ""
	}
	cmd := exec.Command("timeout", "--signal=KILL", fmt.Sprint((2 * patience).Seconds()), "sh", "-e", "-c", e.paths[i].Replace(commands))
	cmd.Dir = e.home(i)
	cmd.Env = append(os.Environ(), fmt.Sprintf("PATH=%s:%s", e.dir, os.Getenv("PATH")))
	out, err := cmd.CombinedOutput()
	if err != nil {
		journal, _ := os.ReadFile(filepath.Join(e.home(i), "log", "journal"))
		e.t.Fatalf("machine %d: %s\n%v\n%s\n%s", i, cmd.Args[len(cmd.Args)-1], err, out, journal[max(0, len(journal)-4000):])
	}
	return string(out)
}

// systemctl is a substitute for systemd: it stops the server of machine i, and starts the command of the
// unit.
func (e *machines) systemctl(i int, verb string) {
	e.t.Helper()
	if verb != "enable" && verb != "start" && e.stop[i] != nil {
		e.stop[i]()
		e.stop[i] = nil
	}
	if verb == "stop" {
		return
	}
	journal, err := os.OpenFile(filepath.Join(e.home(i), "log", "journal"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	harness.Must(e.t, err)
	defer journal.Close()
	unit, err := os.ReadFile(filepath.Join(e.home(i), "systemd", "zookeeper.service"))
	harness.Must(e.t, err)
	command := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindSubmatch(unit)
	if command == nil {
		e.t.Fatalf("the unit has no command:\n%s", unit)
	}
	e.stop[i] = ensemble.Process(e.t, string(command[1]), journal)
}

// share copies files from the first machine to the others.
func (e *machines) share(files ...string) {
	e.t.Helper()
	for _, name := range files {
		e.run(1, fmt.Sprintf("cp %s ../2/ && cp %[1]s ../3/", name))
	}
}

// await waits until all servers serve.
func (e *machines) await() {
	e.t.Helper()
	for i := 1; i <= 3; i++ {
		e.run(i, "until /usr/share/zookeeper/bin/zkServer.sh status; do sleep 0.2; done")
	}
}

// leaderLast returns the numbers of the machines, with the leader's last.
func (e *machines) leaderLast() (order []int) {
	e.t.Helper()
	leader := 0
	for i := 1; i <= 3; i++ {
		if out := e.run(i, "/usr/share/zookeeper/bin/zkServer.sh status"); strings.Contains(out, "Mode: leader") {
			leader = i
		} else {
			order = append(order, i)
		}
	}
	if len(order) != 2 {
		e.t.Fatalf("no server leads, or several do: %v", order)
	}
	return append(order, leader)
}

// freePorts returns ports on which no process listens. They are below the range of the kernel, so
// no connection takes one while its server restarts.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for len(ports) < n {
		p := 2000 + rand.IntN(30000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err == nil && !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
		if err == nil {
			l.Close()
		}
	}
	return ports
}

// rolling runs the commands on each machine, the leader last, while clients work, and reports how
// long their calls took.
func (e *machines) rolling(s *zsync.Session, what, commands string) {
	t := e.t
	t.Helper()
	var worker sync.WaitGroup
	defer worker.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held := zsync.NewMutex(s, "/held")
	if err := held.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	var longest atomic.Int64 // nanoseconds
	var calls atomic.Int64
	answered := func() { // waits until a call that began now has ended
		t.Helper()
		enough := calls.Load() + 2
		// real time: real servers restart meanwhile
		for deadline := time.Now().Add(2 * patience); calls.Load() < enough; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: no call has ended for %v", what, 2*patience)
			}
		}
	}
	worker.Go(func() {
		m, v := zsync.NewMutex(s, "/m"), zsync.NewValue[int](s, "/v")
		for n := 0; ctx.Err() == nil; n++ {
			for _, call := range []func() error{func() error { return m.Lock(ctx) }, func() error { return v.Store(ctx, n) }, m.Unlock} {
				start := time.Now()
				if err := call(); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", what, err)
				}
				harness.Raise(&longest, int64(time.Since(start)))
				calls.Add(1)
			}
			time.Sleep(10 * time.Millisecond) // real time: the pause of a client whose servers restart
		}
	})
	id := s.ID()
	order := e.leaderLast()
	for n, i := range order {
		start := time.Now()
		e.run(i, commands)
		served := time.Since(start)
		answered()
		kind := []string{"follower", "follower", "leader"}[n]
		t.Logf("%s of the %s, server %d: it serves again after %v; the longest call took %v", what, kind, i, served.Round(10*time.Millisecond), time.Duration(longest.Swap(0)).Round(time.Millisecond))
	}
	cancel()
	worker.Wait()
	select {
	case <-held.Lost():
		t.Errorf("%s: the lock was lost", what)
	default:
	}
	if err := held.Unlock(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if st := s.Stats(); s.ID() != id || st.Expiries != 0 {
		t.Errorf("%s: session %x, then %x: %+v", what, id, s.ID(), st)
	} else {
		t.Logf("%s: %d calls; %d connections were replaced so far", what, calls.Load(), st.Reconnects)
	}
}
