package observe

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/suite"
	"github.com/zsync/zsync/zktest"
)

func TestALossIsAWarningAndAContenderIsAGroup(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var out suite.TraceBuffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		s := suite.Open(t, srv, zsync.WithLogger(log), zsync.WithOwner("me"))
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		cs, err := m.Contenders(t.Context())
		harness.Must(t, err)
		log.Info("who", "holder", cs[0])
		srv.Expire(s.ID())
		<-m.Lost()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, want := range []string{
			"holder.owner=me", "holder.session=0x", "holder.mode=exclusive", "holder.state=holds", "holder.since=", "holder.node=_c_",
			`level=WARN msg="zsync: lost" op=lock path=/m session=0x`, `reason="lost: the session has expired"`,
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log does not say %s:\n%s", want, out.String())
			}
		}
	})
}

// Unless WithLogger gives another logger, the session logs failures to slog.Default, and nothing else. Of an
// outage, it logs the beginning and the end, and a reminder each hour.
func TestFailuresAreLoggedByDefaultAndAnOutageOnceAnHour(t *testing.T) {
	harness.Bubble(t, func(t *testing.T, srv *zktest.Server) {
		var mu sync.Mutex
		var out bytes.Buffer
		old := slog.Default()
		defer slog.SetDefault(old)
		slog.SetDefault(slog.New(slog.NewTextHandler(locked{&mu, &out}, nil)))
		said := func() []string {
			mu.Lock()
			defer mu.Unlock()
			lines := slices.Collect(strings.Lines(out.String()))
			out.Reset()
			return lines
		}
		s, err := zsync.Connect(t.Context(), srv.Addr(), zsync.WithDialer(srv.Dial), zsync.WithSessionTimeout(harness.Timeout))
		harness.Must(t, err)
		defer s.Close()
		m := zsync.NewMutex(s, "/m")
		harness.Must(t, m.Lock(t.Context()))
		srv.Disconnect(s.ID())
		time.Sleep(harness.Timeout)
		if got := said(); len(got) > 0 {
			t.Errorf("a reconnect is said: %q", got)
		}
		srv.Stop()
		time.Sleep(5*time.Hour - time.Minute)
		var outage, loss int
		for _, line := range said() {
			switch {
			case strings.Contains(line, "no connection to any server") && strings.Contains(line, srv.Addr()+": ") && strings.Contains(line, "level=WARN"):
				outage++
			case strings.Contains(line, "lost"):
				loss++
			default:
				t.Errorf("unexpected: %s", line)
			}
		}
		if outage != 5 || loss == 0 {
			t.Errorf("in five hours without servers, %d lines of the outage and %d of the loss; want 5", outage, loss)
		}
		srv.Restart()
		time.Sleep(time.Hour)
		if got := said(); len(got) != 1 || !strings.Contains(got[0], "zsync: connected again") {
			t.Errorf("of the end is said: %q", got)
		}
	})
}

// locked is a writer under a lock.
type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
