// Package interop runs ZooKeeper programs in other languages, so that tests can check that they
// work together with zsync and with zktest. The programs are kazoo (Python), Apache Curator
// (Java) and ZooKeeper's own zkCli.sh, from Debian's packages. The checks are the business of the
// tests.
//
// The programs run only if CI_INTEROP=1 is set, as in .ci/run, because each test takes seconds. If
// it is set, a test whose program is not installed fails.
//
// The programs are in testdata. driver.py and Driver.java read a command from each line, and answer
// each with one line. Their commands are the same; driver.py has the list.
//
// The start of a JVM takes longer than most tests, so one JVM serves all tests with Driver.java,
// each in a conversation of its own. Only a test that calls Kill needs a JVM of its own. See
// [Main].
package interop

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed testdata
var programs embed.FS

const (
	python = "/usr/bin/python3" // the Python of Debian's package python3-kazoo
	zkCli  = "/usr/share/zookeeper/bin/zkCli.sh"
	jars   = "/usr/share/java/"
)

// patience is the time limit for one answer.
const patience = 3 * time.Minute

// dir is a temporary directory with the programs and the compiled Driver.java.
var dir string

// Main runs the tests of a package and returns the exit status. Then it ends the shared JVM and
// removes dir. TestMain of each package that runs these programs calls Main.
func Main(m *testing.M) int {
	var err error
	if dir, err = os.MkdirTemp("", "zsync-interop-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, programs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer shared.end()
	return m.Run()
}

// A Program is a running program in another language, or one conversation with the shared JVM. Its
// methods fail the test if the program fails or does not answer. Only one goroutine may call them.
type Program struct {
	tb     testing.TB
	name   string
	stdin  io.WriteCloser
	stdout chan string // the lines of the output; closed at its end
	stderr *syncBuffer
	kill   func()     // ends the program like SIGKILL; nil for a conversation with the shared JVM
	ended  chan error // receives the result of the program's end, once
}

// Kazoo starts driver.py with args. The program is killed at the end of the test.
func Kazoo(tb testing.TB, args ...string) *Program {
	tb.Helper()
	wanted(tb, "kazoo")
	if err := kazooThere(); err != nil {
		missing(tb, "kazoo for "+python+" (Debian: python3-kazoo)")
	}
	return start(tb, python, append([]string{"-u", dir + "/testdata/driver.py"}, args...)...)
}

var kazooThere = sync.OnceValue(func() error { return exec.Command(python, "-c", "import kazoo").Run() })

// CuratorAlone starts Driver.java with args, in a JVM of its own. The JVM is killed at the end of
// the test.
func CuratorAlone(tb testing.TB, args ...string) *Program {
	tb.Helper()
	return start(tb, "java", append(javaFlags(tb), args...)...)
}

// Curator begins a conversation with Driver.java in the shared JVM, with args. The conversation
// ends with the test.
func Curator(tb testing.TB, args ...string) *Program {
	tb.Helper()
	flags := javaFlags(tb)
	shared.once.Do(func() { shared.err = shared.start(flags) })
	if shared.err != nil {
		tb.Fatalf("the shared JVM: %v\n%s", shared.err, &shared.stderr)
	}
	conn, err := net.Dial("tcp", shared.addr)
	if err != nil {
		tb.Fatalf("the shared JVM: %v\n%s", err, &shared.stderr)
	}
	tb.Cleanup(func() { conn.Close() })
	p := &Program{tb: tb, name: "java", stderr: &shared.stderr}
	p.talk(halfCloser{conn.(*net.TCPConn)}, conn, func() error { return nil })
	p.Send("%s", strings.Join(args, " "))
	return p
}

// A halfCloser is a connection whose Close closes only the direction to the program.
type halfCloser struct{ *net.TCPConn }

func (c halfCloser) Close() error { return c.CloseWrite() }

// shared is the JVM that all tests share. Each conversation with it has a TCP connection.
var shared host

type host struct {
	once   sync.Once
	cmd    *exec.Cmd // nil if the JVM was not started
	addr   string
	stderr syncBuffer
	err    error
}

func (h *host) start(flags []string) error {
	cmd := exec.Command("java", append(flags, "serve")...)
	cmd.Stderr = &h.stderr
	_, err1 := cmd.StdinPipe() // the JVM ends at the end of its input, so at the latest with this process
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.cmd = cmd
	port, err := bufio.NewReader(stdout).ReadString('\n')
	h.addr = "127.0.0.1:" + strings.TrimSpace(port)
	return err
}

// The method `end` ends the JVM, if there is one.
func (h *host) end() {
	if h.cmd != nil {
		h.cmd.Process.Kill()
		h.cmd.Wait()
	}
}

// javaFlags returns the arguments of java that run Driver. It compiles Driver.java at the first
// call.
func javaFlags(tb testing.TB) []string {
	tb.Helper()
	wanted(tb, "Curator")
	if _, err := exec.LookPath("javac"); err != nil {
		missing(tb, "javac (Debian: default-jdk-headless)")
	}
	var jarFiles []string
	for _, jar := range []string{"curator-client", "curator-framework", "curator-recipes", "guava", "zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple"} {
		path := jars + jar + ".jar"
		if _, err := os.Stat(path); err != nil {
			missing(tb, path+" (Debian: libcurator-recipes-java)")
		}
		jarFiles = append(jarFiles, path)
	}
	classpath := strings.Join(append(jarFiles, dir), ":")
	compiled.once.Do(func() {
		out, err := exec.Command("javac", "-Xlint:-options", "-cp", classpath, "-d", dir, dir+"/testdata/Driver.java").CombinedOutput()
		if err != nil {
			compiled.err = fmt.Errorf("javac: %w\n%s", err, out)
		}
	})
	if compiled.err != nil {
		tb.Fatal(compiled.err)
	}
	return []string{
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", classpath, "Driver",
	}
}

var compiled struct {
	once sync.Once
	err  error
}

// ZkCli runs commands in one session of zkCli.sh. It returns all lines of the output, including
// zkCli's messages.
func ZkCli(tb testing.TB, servers string, commands ...string) []string {
	tb.Helper()
	wanted(tb, "ZooKeeper's zkCli.sh")
	if _, err := os.Stat(zkCli); err != nil {
		missing(tb, zkCli+" (Debian: zookeeper)")
	}
	cmd := exec.Command(zkCli, "-server", servers)
	cmd.Stdin = strings.NewReader(strings.Join(append(commands, "quit"), "\n") + "\n")
	late := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	out, err := cmd.CombinedOutput()
	if !late.Stop() {
		tb.Fatalf("zkCli did not end within %v:\n%s", patience, out)
	}
	// The exit status is the status of the last command only, so ignore it.
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		tb.Fatalf("zkCli: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// Send sends a command to the program. It does not wait for the answer.
func (p *Program) Send(format string, args ...any) {
	p.tb.Helper()
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		p.fail("send: %v", err)
	}
}

// Answer returns the next line that the program prints.
func (p *Program) Answer() string {
	p.tb.Helper()
	select {
	case line, ok := <-p.stdout:
		if !ok {
			p.fail("ended instead of answering")
		}
		return line
	case <-time.After(patience):
		p.fail("no answer within %v", patience)
		return ""
	}
}

// Do sends a command to the program, and returns the answer without the leading "ok". An answer
// without "ok" fails the test.
func (p *Program) Do(format string, args ...any) string {
	p.tb.Helper()
	p.Send(format, args...)
	return p.Ok()
}

// Ok returns the answer to a command of Send, without the leading "ok". An answer without "ok"
// fails the test.
func (p *Program) Ok() string {
	p.tb.Helper()
	answer := p.Answer()
	rest, ok := strings.CutPrefix(answer, "ok")
	if !ok {
		p.fail("answered %q, want ok", answer)
	}
	return strings.TrimSpace(rest)
}

// Lines closes the program's input, and waits for the end of the program. The program must end
// without an error. It returns the lines of the output that no call of Answer has returned.
func (p *Program) Lines() []string {
	p.tb.Helper()
	p.stdin.Close()
	var lines []string
	late := time.After(patience)
	for {
		select {
		case line, ok := <-p.stdout:
			if ok {
				lines = append(lines, line)
				continue
			}
		case <-late:
			p.fail("did not end within %v", patience)
		}
		err := <-p.ended
		p.ended <- err
		if err != nil {
			p.fail("%v", err)
		}
		return lines
	}
}

// Kill ends the program with SIGKILL, so its ZooKeeper session ends only when it expires.
func (p *Program) Kill() {
	if p.kill == nil {
		p.tb.Fatal("BUG: a conversation in the shared JVM cannot be killed; see CuratorAlone")
	}
	p.kill()
	p.awaitEnd()
}

// awaitEnd waits for the end of the output.
func (p *Program) awaitEnd() {
	for range p.stdout {
	}
	p.ended <- <-p.ended
}

func (p *Program) fail(format string, args ...any) {
	p.tb.Helper()
	what := fmt.Sprintf(format, args...)
	if p.kill != nil {
		p.Kill() // after that, p.stderr is complete
	}
	p.tb.Fatalf("%s: %s\n%s", p.name, what, p.stderr)
}

// The function `start` runs a program, and kills it at the end of the test.
func start(tb testing.TB, command string, args ...string) *Program {
	tb.Helper()
	cmd := exec.Command(command, args...)
	p := &Program{tb: tb, name: filepath.Base(command), stderr: new(syncBuffer), kill: func() { cmd.Process.Kill() }}
	cmd.Stderr = p.stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p.talk(stdin, stdout, cmd.Wait)
	tb.Cleanup(p.Kill)
	return p
}

// The method `talk` connects p to the input and the output of the program. At the end of the output
// `out`, it calls the function `end` for the result.
func (p *Program) talk(in io.WriteCloser, out io.Reader, end func() error) {
	p.stdin, p.stdout, p.ended = in, make(chan string, 1024), make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			p.stdout <- lines.Text()
		}
		p.ended <- end()
		close(p.stdout)
	}()
}

// A syncBuffer is a bytes.Buffer that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// The function `wanted` skips the test unless CI_INTEROP=1 is set.
func wanted(tb testing.TB, who string) {
	tb.Helper()
	if os.Getenv("CI_INTEROP") != "1" {
		tb.Skipf("CI_INTEROP=1 is not set: %s and zsync, or zktest, get along as %s says", who, tb.Name())
	}
}

// The function `missing` fails the test because a program is not installed.
func missing(tb testing.TB, what string) {
	tb.Helper()
	tb.Fatalf("CI_INTEROP=1, and %s is missing", what)
}
