package conn

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/harness"
)

// A server that speaks TLS closes the connection, or answers with an alert: 21, its version, its length, and two bytes.
// The same first byte begins a reply that is too long.
func TestAHandshakeThatIsNoneSaysWhatTheServerSpeaks(t *testing.T) {
	for _, c := range []struct {
		answer string
		want   string
		is     error
	}{
		{"\x15\x03\x01\x00\x02\x02\x46", "the server speaks TLS: use WithTLS", ErrHandshake},
		{"\x15\x03\x03\x00\x02\x02\x28", "the server speaks TLS: use WithTLS", ErrHandshake},
		{"\x15\x00\x00\x00", "reply of 352321536 bytes", ErrHandshake},
		{"\x00\x00\x00\x03", "reply of 3 bytes", ErrHandshake},
		{"", "a server that speaks TLS (see WithTLS) may do so", io.EOF},
	} {
		harness.VirtualTime(t, func(t *testing.T) {
			client, server := net.Pipe()
			go func() {
				defer server.Close()
				server.Read(make([]byte, 1000))
				io.WriteString(server, c.answer)
			}()
			defer client.Close()
			l := New(&Shared{Requests: new(atomic.Int64)}, client, "a", time.Minute, time.Now().Add(time.Minute))
			_, err := l.Connect(Hello{Timeout: time.Second}, time.Now())
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v, want %q", c.answer, err, c.want)
			}
		})
	}
}
