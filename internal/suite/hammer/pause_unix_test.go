//go:build unix

package hammer

import (
	"os"
	"syscall"
)

// stopProcess stops a process as a debugger or a sleeping machine does, and
// returns what lets it go on.
func stopProcess(p *os.Process) (goOn func()) {
	p.Signal(syscall.SIGSTOP)
	return func() { p.Signal(syscall.SIGCONT) }
}
