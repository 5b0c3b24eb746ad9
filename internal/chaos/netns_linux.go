package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// This file has the network of namespaces. The servers in it are the business of chaos.go.

func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// Namespaced prepares cmd to run in a network namespace of its own, as root of that namespace.
func Namespaced(cmd *exec.Cmd) {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd.SysProcAttr = a
}

// The type `namespaces` is a network with a namespace for each server. The clients use the caller's
// namespace, whose bridge connects all servers. A process in each namespace keeps the namespace
// alive, and ends with this process.
//
// To close the way from one server to another, the method `set` gives the first server a wrong
// hardware address for the second. Packets to that address arrive at no server.
type namespaces struct {
	anchors [Servers + 1]*exec.Cmd
	stdin   [Servers + 1]io.Closer
}

const (
	subnet     = "10.99.0."
	clientHost = 254
)

func hardware(i int) string { return fmt.Sprintf("02:00:00:00:00:%02x", i) }

const nobody = "02:00:00:00:ff:ff"

func newNamespaces(start func(*exec.Cmd) error) (_ *namespaces, err error) {
	n := &namespaces{}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if err := n.ip(0, "link set lo up", "link add br0 type bridge", "link set br0 address "+hardware(clientHost),
		fmt.Sprintf("addr add %s%d/24 dev br0", subnet, clientHost), "link set br0 up"); err != nil {
		return nil, err
	}
	for i := 1; i <= Servers; i++ {
		anchor := exec.Command("cat")
		anchor.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		in, err := anchor.StdinPipe()
		if err != nil {
			return nil, err
		}
		if err := start(anchor); err != nil {
			return nil, err
		}
		n.anchors[i], n.stdin[i] = anchor, in
		if err := n.ip(0, fmt.Sprintf("link add v%d type veth peer name eth0 netns %d", i, anchor.Process.Pid),
			fmt.Sprintf("link set v%d master br0", i), fmt.Sprintf("link set v%d up", i)); err != nil {
			return nil, err
		}
		lines := []string{"link set lo up", "link set eth0 address " + hardware(i),
			fmt.Sprintf("addr add %s%d/24 dev eth0", subnet, i), "link set eth0 up"}
		for j := 1; j <= Servers; j++ {
			if j != i {
				lines = append(lines, neighbour(j, true))
			}
		}
		if err := n.ip(i, lines...); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func neighbour(j int, right bool) string {
	address := hardware(j)
	if !right {
		address = nobody
	}
	return fmt.Sprintf("neigh replace %s%d lladdr %s dev eth0 nud permanent", subnet, j, address)
}

// The method `ip` runs each of `lines` as a command of ip(8) in the namespace of server i, or in
// the caller's namespace if i is 0.
func (n *namespaces) ip(i int, lines ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	if i > 0 {
		cmd = n.command(i, "ip", "-batch", "-")
	}
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, out)
	}
	return nil
}

func (n *namespaces) client(i int) string { return fmt.Sprintf("%s%d:2181", subnet, i) }

func (n *namespaces) members(int) string {
	var b strings.Builder
	for j := 1; j <= Servers; j++ {
		fmt.Fprintf(&b, "server.%d=%s%d:2888:3888\n", j, subnet, j)
	}
	return b.String()
}

func (n *namespaces) command(i int, argv ...string) *exec.Cmd {
	net := fmt.Sprintf("--net=/proc/%d/ns/net", n.anchors[i].Process.Pid)
	return exec.Command("nsenter", append([]string{net}, argv...)...)
}

func (n *namespaces) set(ways [][2]int, pass bool) error {
	lines := map[int][]string{}
	for _, w := range ways {
		lines[w[0]] = append(lines[w[0]], neighbour(w[1], pass))
	}
	done := make(chan error)
	for i, l := range lines {
		go func() { done <- n.ip(i, l...) }()
	}
	var err error
	for range lines {
		if e := <-done; e != nil {
			err = e
		}
	}
	return err
}

func (n *namespaces) close() {
	for i, k := range n.anchors {
		if k != nil {
			_ = n.stdin[i].Close()
			_ = k.Process.Kill()
			_ = k.Wait()
		}
	}
}
