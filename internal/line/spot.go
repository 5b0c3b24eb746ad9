package line

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
)

// A spot is what a view keeps of a contender. There may be very many, in each of many
// sessions, so of a name as zsync, Curator and kazoo make it, it has 24 bytes, from which
// the name can be told; of another it has a hash, which tells it from others alone.
type spot struct {
	seq  int32
	form form
	base uint8    // in contenderBases; 0 of a name that cannot be told
	id   [16]byte // the UUID, or the hash
}

// A form is how a name begins.
type form uint8

const (
	unknownForm form = iota
	curatorForm      // _c_<uuid>-, which zsync has too
	kazooForm        // the UUID without its dashes
)

var spotSeed = maphash.MakeSeed()

func spotOf(c Child) spot {
	s := spot{seq: c.Seq}
	base := slices.Index(contenderBases, c.Base)
	if head := len(c.Name) - len(c.Base) - 10; head > 0 && base >= 0 && c.Seq >= 0 { // so its number has ten digits
		s.base = uint8(base)
		if s.form = s.readID(c.Name[:head]); s.form != unknownForm {
			return s
		}
	}
	s = spot{seq: c.Seq}
	binary.BigEndian.PutUint64(s.id[:], maphash.String(spotSeed, c.Name))
	return s
}

// readID reads the UUID of a name that begins with head, and nothing if it is not written
// in the one way in which name writes it.
func (s *spot) readID(head string) form {
	f := kazooForm
	if len(head) == len("_c_")+36+len("-") && head[:3] == "_c_" && head[39] == '-' {
		f, head = curatorForm, head[3:39]
	} else if len(head) != 32 {
		return unknownForm
	}
	at := 0 // in head
	for i := range s.id {
		if f == curatorForm && (i == 4 || i == 6 || i == 8 || i == 10) {
			if head[at] != '-' {
				return unknownForm
			}
			at++
		}
		high, low := hexDigit(head[at]), hexDigit(head[at+1])
		if high|low > 0xf {
			return unknownForm
		}
		s.id[i] = high<<4 | low
		at += 2
	}
	return f
}

// hexDigit returns the value of a digit, or 0xff.
func hexDigit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

// name returns the name of the znode, if it can be told.
func (s spot) name() (_ string, ok bool) {
	base, id := contenderBases[s.base], s.id
	switch s.form {
	case curatorForm:
		return fmt.Sprintf("_c_%x-%x-%x-%x-%x-%s%010d", id[:4], id[4:6], id[6:8], id[8:10], id[10:], base, s.seq), true
	case kazooForm:
		return fmt.Sprintf("%x%s%010d", id, base, s.seq), true
	}
	return "", false
}
