// Package interop runs ZooKeeper programs written in other languages, for tests that they and
// zsync, or they and zktest, get along: kazoo (Python), Apache Curator (Java) and ZooKeeper's own
// zkCli.sh, all as Debian packages them.
//
// A test whose program is not installed is skipped, except where CI_INTEROP=1 is set: there
// the programs must be present, and absence fails the test.
//
// The programs lie in testdata. driver.py and Driver.java hold a conversation: they take one command
// a line, in the same words in both languages (see driver.py for the list), and answer each with one line.
package interop

import (
	"bufio"
	"bytes"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

//go:embed testdata
var programs embed.FS

const (
	python = "/usr/bin/python3" // Debian's own, the one that its kazoo package serves
	zkCli  = "/usr/share/zookeeper/bin/zkCli.sh"
	jars   = "/usr/share/java/"
)

// patience is how long a program may take over one answer.
const patience = 60 * time.Second

// A Program is a running program of another language. Its methods fail the
// test when the program does not do as asked; they are for one goroutine.
type Program struct {
	tb     testing.TB
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout chan string // closed by the reader when the output ends
	stderr bytes.Buffer
	ended  chan error // gets what Wait returned, once
}

// Kazoo starts the Python program testdata/script with the arguments given.
// It is killed when the test ends.
func Kazoo(tb testing.TB, script string, args ...string) *Program {
	tb.Helper()
	if err := exec.Command(python, "-c", "import kazoo").Run(); err != nil {
		missing(tb, "kazoo for "+python+" (Debian: python3-kazoo)")
	}
	return start(tb, python, append([]string{"-u", unpack(tb, script)}, args...)...)
}

// Curator starts the Java program testdata/class.java with the arguments given.
// It is killed when the test ends.
func Curator(tb testing.TB, class string, args ...string) *Program {
	tb.Helper()
	if _, err := exec.LookPath("javac"); err != nil {
		missing(tb, "javac (Debian: default-jdk-headless)")
	}
	var classpath []string
	for _, jar := range []string{"curator-client", "curator-framework", "curator-recipes", "guava", "zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple"} {
		path := jars + jar + ".jar"
		if _, err := os.Stat(path); err != nil {
			missing(tb, path+" (Debian: libcurator-recipes-java)")
		}
		classpath = append(classpath, path)
	}
	return start(tb, "java", append([]string{
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", strings.Join(classpath, ":"),
		unpack(tb, class+".java"), // java compiles a source file by itself
	}, args...)...)
}

// ZkCli runs commands in one zkCli.sh session and returns all the lines it printed,
// what it tells of itself included.
func ZkCli(tb testing.TB, servers string, commands ...string) []string {
	tb.Helper()
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
	// The exit status is that of the last command, which says nothing.
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		tb.Fatalf("zkCli: %v", err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// Send gives the program a command without waiting for the answer.
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

// Do gives the program a command and returns the answer without its leading "ok",
// which it must have.
func (p *Program) Do(format string, args ...any) string {
	p.tb.Helper()
	p.Send(format, args...)
	return p.Ok()
}

// Ok returns the next answer without its leading "ok", which it must have. It is for a command
// given with Send.
func (p *Program) Ok() string {
	p.tb.Helper()
	answer := p.Answer()
	rest, ok := strings.CutPrefix(answer, "ok")
	if !ok {
		p.fail("answered %q, want ok", answer)
	}
	return strings.TrimSpace(rest)
}

// Lines closes the program's input, waits until it ends, as it must without an error, and
// returns the lines it printed that no Answer took.
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

// Kill ends the program as SIGKILL does: its ZooKeeper session is left to expire.
func (p *Program) Kill() {
	p.cmd.Process.Kill()
	for range p.stdout { // until the reader sees the end
	}
	p.ended <- <-p.ended
}

func (p *Program) fail(format string, args ...any) {
	p.tb.Helper()
	what := fmt.Sprintf(format, args...)
	p.Kill() // so that its standard error is complete
	p.tb.Fatalf("%s: %s\n%s", p.name, what, p.stderr.Bytes())
}

// start runs a program whose lines the returned Program reads.
func start(tb testing.TB, command string, args ...string) *Program {
	tb.Helper()
	p := &Program{
		tb:     tb,
		cmd:    exec.Command(command, args...),
		stdout: make(chan string, 1024),
		ended:  make(chan error, 1),
	}
	p.name = filepath.Base(command)
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Kill)
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			p.stdout <- lines.Text()
		}
		p.ended <- p.cmd.Wait()
		close(p.stdout)
	}()
	return p
}

// unpack writes a file of testdata where another program can read it.
func unpack(tb testing.TB, name string) string {
	tb.Helper()
	text, err := programs.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(tb.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// missing skips the test, or fails it where the foreign programs must be installed.
func missing(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv("CI_INTEROP") == "1" {
		tb.Fatalf("CI_INTEROP=1, and %s is missing", what)
	}
	tb.Skipf("not installed: %s", what)
}
