package zsync

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/zsync/zsync/internal/session"
)

// A Codec turns values into the bytes of a znode and back. It must be usable
// by several goroutines at once. Unmarshal is given a pointer.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

// The codecs that come with zsync.
var (
	// JSON is encoding/json. It is the default.
	JSON Codec = jsonCodec{}
	// Gob is encoding/gob, each value with its type. What an interface holds
	// must be known to gob.Register.
	Gob Codec = gobCodec{}
	// Raw takes []byte and string as they are, and nothing else; of an any only
	// []byte, as it does not store which of them it was.
	Raw Codec = rawCodec{}
)

type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

type gobCodec struct{}

func (gobCodec) Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func (gobCodec) Unmarshal(data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return bytes.Clone(v), nil // the caller may change it when a call has been cancelled
	case string:
		return []byte(v), nil
	case *any:
		if b, ok := (*v).([]byte); ok {
			return bytes.Clone(b), nil
		}
		return nil, session.Invalid("codec Raw cannot encode an any that holds a %T; it takes []byte", *v)
	}
	return nil, session.Invalid("codec Raw cannot encode a %T; it takes []byte and string", v)
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	switch v := v.(type) {
	case *[]byte:
		*v = bytes.Clone(data)
	case *string:
		*v = string(data)
	case *any:
		*v = bytes.Clone(data)
	default:
		return session.Invalid("codec Raw cannot decode into a %T; it takes *[]byte and *string", v)
	}
	return nil
}

// A CodecOption is both a [QueueOption] and a [ValueOption].
type CodecOption struct{ codec Codec }

// WithCodec chooses how values become bytes. The default is [JSON].
func WithCodec(c Codec) CodecOption { return CodecOption{c} }

// A ValueOption changes a Value, OnceValue or OnceValues.
type ValueOption interface{ applyValue(*valueConfig) }

type valueConfig struct {
	codec Codec
	err   error
}

func newValueConfig(opts []ValueOption) valueConfig {
	c := valueConfig{codec: JSON}
	for i, o := range opts {
		if o == nil {
			c.err = session.Invalid("value option %d is nil", i)
			continue
		}
		o.applyValue(&c)
	}
	return c
}

func (o CodecOption) applyValue(c *valueConfig) {
	if c.codec = o.codec; o.codec == nil {
		c.err = session.Invalid("WithCodec(nil): the codec is nil")
	}
}

// encode marshals v, and gives an error, not a panic, whatever the codec does.
//
// Gob and Raw are given a pointer if T is an interface: to decode, they need to
// know that it is.
func encode[T any](c Codec, v T) (data []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("codec %T panicked: %v", c, r)
		}
	}()
	if reflect.TypeFor[T]().Kind() == reflect.Interface && (c == Gob || c == Raw) {
		return c.Marshal(&v)
	}
	return c.Marshal(v)
}

// decode is the inverse of encode.
func decode[T any](c Codec, data []byte) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("codec %T panicked: %v", c, r)
		}
	}()
	err = c.Unmarshal(data, &v)
	return v, err
}
