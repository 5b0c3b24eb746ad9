package session

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/zsync/zsync/internal/wire"
)

// FuzzLinkRead holds that a link takes any stream apart in the same way, in
// whatever pieces it comes, and hands on nothing but whole headers.
func FuzzLinkRead(f *testing.F) {
	f.Add(frame(replyTo(1, 0, words(0)...)), 3, int32(wire.OpGetData))
	f.Add(append(frame(replyTo(wire.XidPing, 0)), frame(replyTo(1, -101))...), 1, int32(wire.OpExists))
	f.Add(frame(replyTo(1, 0, append(words(-1, 0), 1, 2, 3, 4)...)), 7, int32(wire.OpMulti))
	f.Add(words(-5), 1, int32(0))
	f.Fuzz(func(t *testing.T, in []byte, piece int, op int32) {
		if piece < 1 || piece > 64 {
			piece = 5
		}
		read := func(piece int) string {
			m := &Manager{}
			inc := newIncarnation(m)
			defer inc.end(nil)
			l := newLink(inc, scripted{r: strings.NewReader(string(in)), piece: piece}, "x:1", time.Now().Add(time.Minute))
			l.shook.Store(true)
			l.sent[1] = sentInfo{op: op}
			out, _ := io.ReadAll(l)
			return string(out)
		}
		whole := read(1 << 20)
		if got := read(piece); got != whole {
			t.Errorf("in pieces of %d: %q; at once: %q", piece, got, whole)
		}
		if !strings.HasPrefix(string(in), whole) {
			t.Errorf("read %q out of %q", whole, in)
		}
	})
}

// FuzzPackets holds that what the link reads of a request is what was sent.
func FuzzPackets(f *testing.F) {
	f.Add(int32(7), int32(wire.OpGetData), "/a/b", []byte{1})
	f.Add(int32(-1), int32(0), "", []byte{})
	f.Fuzz(func(t *testing.T, xid, op int32, path string, rest []byte) {
		p := wire.EndPacket(append(wire.AppendString(wire.AppendHeader(nil, xid, op), path), rest...))
		if got, ok := wire.Path(p); !ok || got != path {
			t.Errorf("packetPath = %q, %v; want %q", got, ok, path)
		}
		for n := range p {
			if got, ok := wire.Path(p[:n]); ok && got != path {
				t.Errorf("packetPath of %d bytes = %q", n, got)
			}
		}
		wire.Path(rest)
		wire.CountOps(rest)
		wire.CountResults(rest)
		parseBundle(rest, int(xid))
	})
}

// A scripted connection gives a link what it reads, in pieces of one size.
type scripted struct {
	net.Conn
	r     io.Reader
	piece int
}

func (c scripted) Read(p []byte) (int, error) { return c.r.Read(p[:min(len(p), c.piece)]) }
func (c scripted) Close() error               { return nil }
