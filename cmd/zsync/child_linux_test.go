package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zsync/zsync/zktest"
)

// Where process 1 never asks how orphans have ended, as in many a container,
// they stay listed for ever. Here this very process is such a one.
func TestEndDoesNotWaitForOrphansThatNobodyAsksFor(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Skip(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	for _, tt := range []struct{ name, killAfter, script string }{
		{"ended when told to", "1m", `sleep 60 & echo $!; wait`},
		{"killed", "300ms", `trap '' TERM; sleep 60 & echo $!; while :; do wait; done`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := zktest.Start(t)
			r := start(t, srv.Addr(), "", "lock", "/p", "--kill-after", tt.killAfter, "--", "sh", "-c", tt.script)
			r.awaitOutput("\n")
			sleeper, _ := strconv.Atoi(strings.TrimSpace(r.stdout.String()))
			began := time.Now()
			expireAll(srv)
			r.want(exitLost, r.stdout.String())
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v to end", took)
			}
			wantEnded(t, sleeper)
		})
	}
}
