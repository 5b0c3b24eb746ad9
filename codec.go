package zsync

import (
	"fmt"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/session"
)

// A Codec turns values into the bytes of a znode and back. Goroutines may call its methods at the
// same time. Unmarshal receives a pointer.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

var (
	JSON      Codec = codec.JSON      // encoding/json, the default; a string that is not UTF-8 is ErrInvalid
	Gob       Codec = codec.Gob       // encoding/gob, which stores each value with its type; register each type that an interface contains
	Raw       Codec = codec.Raw       // stores []byte and string unchanged, and no other type; an `any` must contain a []byte
	BigEndian Codec = codec.BigEndian // Curator's integers, the highest byte first: int64 in 8 bytes, int32 (SharedCount, DistributedAtomicInteger) in 4
)

// WithCodec chooses how values become bytes. The default is [JSON].
func WithCodec(c Codec) CodecOption {
	return checked(func(s *setup) { s.codec = c }, c != nil, "WithCodec(nil): the codec is nil")
}

func valueSetup(opts []ValueOption) setup {
	c := setup{codec: JSON}
	session.ApplyEach("value", opts, &c.err, func(o ValueOption) { o.applyValue(&c) })
	return c
}

// The function `decoded` decodes stored bytes. If it fails, the error contains the number of
// bytes, and the value is zero.
func decoded[T any](c Codec, data []byte) (T, error) {
	v, err := codec.Decode[T](c, data)
	if err != nil {
		err = fmt.Errorf("cannot decode %d bytes: %w", len(data), err)
	}
	return v, err
}
