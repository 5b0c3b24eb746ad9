package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync/internal/harness"
	"github.com/zsync/zsync/internal/lease"
	"github.com/zsync/zsync/internal/sasl"
	"github.com/zsync/zsync/internal/wire"
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
			l := New(&Shared{Requests: new(atomic.Int64)}, client, "a", time.Now().Add(time.Minute))
			_, err := l.Connect(Hello{Timeout: time.Second})
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v, want %q", c.answer, err, c.want)
			}
		})
	}
}

// Codes of servers.
const noAuth, authFailed = -102, -115

// A server answers a request that was written before.
type server struct {
	io.Reader
	io.Writer
}

// A socket is the client's end of a connection to a server.
type socket struct {
	net.Conn
	server server
}

func (s socket) Read(p []byte) (int, error)  { return s.server.Read(p) }
func (s socket) Write(p []byte) (int, error) { return s.server.Write(p) }
func (s socket) Close() error                { return nil }

func answers(packets ...[]byte) server {
	var all []byte
	for _, p := range packets {
		all = append(binary.BigEndian.AppendUint32(all, uint32(len(p))), p...)
	}
	return server{bytes.NewReader(all), io.Discard}
}

// welcome is the reply to the handshake of a session.
func welcome(id int64) []byte {
	p := binary.BigEndian.AppendUint64([]byte{0, 0, 0, 0, 0, 0, 39, 16}, uint64(id))
	return append(p, make([]byte, 20)...)
}

func reply(xid, code int32, token ...byte) []byte {
	p := binary.BigEndian.AppendUint32(nil, uint32(xid))
	p = binary.BigEndian.AppendUint64(p, 1)
	p = binary.BigEndian.AppendUint32(p, uint32(code))
	return append(binary.BigEndian.AppendUint32(p, uint32(len(token))), token...)
}

// A client that asks a server to end a session learns whether it has ended.
func TestAnEndThatAServerRefusesIsAnError(t *testing.T) {
	const id, first = 7, 1 // the first request of a client has the number 1
	for name, c := range map[string]struct {
		s    server
		want error
		sasl bool // with an exchange before the request
	}{
		"ended":                            {s: answers(welcome(id), reply(wire.XidAuth, 0), reply(first, 0))},
		"ended in between":                 {s: answers(welcome(id), reply(first, wire.CodeSessionExpired))},
		"had ended before":                 {s: answers(welcome(0))},
		"the credentials are refused":      {s: answers(welcome(id), reply(wire.XidAuth, authFailed)), want: zk.ErrAuthFailed},
		"the request is refused":           {s: answers(welcome(id), reply(first, noAuth)), want: zk.ErrNoAuth},
		"no answer":                        {s: answers(welcome(id)), want: io.EOF},
		"the server opens another":         {s: answers(welcome(8)), want: ErrHandshake},
		"the reply to the hello is short":  {s: answers([]byte("short")), want: ErrHandshake},
		"SASL, ended":                      {s: answers(welcome(id), reply(first, 0), reply(first+1, 0)), sasl: true},
		"SASL, the token is refused":       {s: answers(welcome(id), reply(first, authFailed)), want: zk.ErrAuthFailed, sasl: true},
		"SASL, the request is refused":     {s: answers(welcome(id), reply(first, 0), reply(first+1, noAuth)), want: zk.ErrNoAuth, sasl: true},
		"SASL, no answer after the tokens": {s: answers(welcome(id), reply(first, 0)), want: io.EOF, sasl: true},
	} {
		s := &Shared{
			Requests: new(atomic.Int64),
			Sending:  func() lease.Stamp { return lease.Stamp{At: time.Now()} },
			Answered: func(lease.Stamp, lease.Proof, time.Time) {},
			Served:   func() {},
		}
		if c.sasl {
			s.SASL, s.Spawn = sasl.NewClient(&mechanism{}), func(f func()) { go f() }
		}
		if err := New(s, socket{server: c.s}, "a", time.Now().Add(time.Minute)).End(t.Context(), Hello{ID: id, Timeout: 10 * time.Second}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// A server that refuses the credentials closes the connection, perhaps before the client has written the
// rest of the handshake. The client learns of the refusal all the same, and does not try again.
func TestARefusalIsReadThoughTheRestOfTheHandshakeCannotBeWritten(t *testing.T) {
	closed, w := io.Pipe()
	closed.Close()
	s := &Shared{
		Requests: new(atomic.Int64),
		Auths:    []Auth{{Scheme: "digest"}},
		Watches:  NewWatches(),
		Sending:  func() lease.Stamp { return lease.Stamp{At: time.Now()} },
		Confirm:  func() bool { return false },
	}
	l := New(s, socket{server: server{answers(reply(wire.XidAuth, authFailed)).Reader, w}}, "a", time.Now().Add(time.Minute))
	defer l.Close()
	harness.WantErr(t, l.Begin(7, time.Minute, true), zk.ErrAuthFailed)
}

// A mechanism has one token, and expects one of the server.
type mechanism struct{ got []string }

func (m *mechanism) Name() string                 { return "TEST" }
func (m *mechanism) Start(string) ([]byte, error) { return []byte("token"), nil }
func (m *mechanism) Next(answer []byte) ([]byte, error) {
	m.got = append(m.got, string(answer))
	return nil, nil
}

// A mechanism proves who the server is by the server's token. A reply that is none never reaches it.
func TestAMechanismGetsOnlyWhatTheServerAnswersToItsToken(t *testing.T) {
	const first = 1
	for name, c := range map[string]struct {
		answer []byte
		want   error
	}{
		"an answer":                    {reply(first, 0, []byte("yes")...), nil},
		"an answer to another request": {reply(first+1, 0, []byte("yes")...), ErrProtocol},
		"a refusal":                    {reply(first, authFailed), zk.ErrAuthFailed},
		"a demand for another scheme":  {reply(first, wire.CodeWantsAuth), zk.ErrAuthFailed},
		"a reply that ends early":      {reply(first, 0)[:10], ErrProtocol},
		"a token that ends early":      {reply(first, 0, []byte("yes")...)[:21], ErrProtocol},
	} {
		m := &mechanism{}
		s := &Shared{Requests: new(atomic.Int64), SASL: sasl.NewClient(m), Spawn: func(f func()) { go f() }}
		err := New(s, socket{server: answers(c.answer)}, "a", time.Now().Add(time.Minute)).Authenticate(t.Context(), 1)
		if !errors.Is(err, c.want) || (len(m.got) == 1) != (err == nil) {
			t.Errorf("%s: %v, want %v; the mechanism got %q", name, err, c.want, m.got)
		}
	}
}
