// Package codec turns values into bytes and back. It does not store the bytes.
package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/zsync/zsync/internal/session"
)

// An Encoding is the public Codec.
type Encoding interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

// An Own codec is one of zsync's. Its value is its name.
type Own string

const (
	// JSON is encoding/json, but refuses strings that are not UTF-8. encoding/json would change such
	// strings silently, or store a text that JSON does not decode.
	JSON      Own = "JSON"
	Number    Own = "Number"    // JSON, but it refuses to decode `null`, because encoding/json would leave the value unchanged
	Gob       Own = "Gob"       // encoding/gob, which stores each value with its type
	Raw       Own = "Raw"       // stores a []byte or a string unchanged
	BigEndian Own = "BigEndian" // stores an int64 or int32 with the highest byte first
)

func (c Own) Marshal(v any) (data []byte, err error) {
	switch c {
	case Gob:
		var b bytes.Buffer
		err = gob.NewEncoder(&b).Encode(v)
		return b.Bytes(), err
	case Raw:
		switch v := v.(type) {
		case []byte:
			return bytes.Clone(v), nil // after a cancelled call, the caller may change v while the client still sends the bytes
		case string:
			return []byte(v), nil
		case *any:
			if b, ok := (*v).([]byte); ok {
				return bytes.Clone(b), nil
			}
			return nil, session.Invalid("codec Raw cannot encode an any that holds a %T; it takes []byte", *v)
		}
		return nil, session.Invalid("codec Raw cannot encode a %T; it takes []byte and string", v)
	case BigEndian:
		switch v := v.(type) {
		case int64, int32:
			return binary.Append(nil, binary.BigEndian, v)
		}
		return nil, session.Invalid("codec BigEndian cannot encode a %T; it takes int64 and int32", v)
	}
	data, err = json.Marshal(v)
	switch {
	case err != nil:
	case !utf8.Valid(data): // encoding/json copies the text of a Marshaler, and changes all other strings
		err = session.Invalid("the text of a json.Marshaler, such as a json.RawMessage, is no UTF-8, and JSON cannot hold it")
	case bytes.Contains(data, []byte(replacement)):
		checkUTF8("the value", reflect.ValueOf(v), &err)
	}
	return data, err
}

func (c Own) Unmarshal(data []byte, v any) error {
	switch c {
	case Gob:
		return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
	case Raw:
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
	case BigEndian:
		switch v.(type) {
		case *int64, *int32:
			if size := binary.Size(v); len(data) != size {
				return session.Invalid("codec BigEndian: an int%d of %d bytes; want %d", 8*size, len(data), size)
			}
			_, err := binary.Decode(data, binary.BigEndian, v)
			return err
		}
		return session.Invalid("codec BigEndian cannot decode into a %T; it takes *int64 and *int32", v)
	}
	switch {
	case !utf8.Valid(data):
		return errors.New("not UTF-8, and so not JSON")
	case c == Number && string(bytes.TrimSpace(data)) == "null":
		return errors.New("null is no number")
	}
	return json.Unmarshal(data, v)
}

// Encode marshals v. If the codec panics, Encode returns an error.
//
// If T is an interface, Gob and Raw get a pointer to v: they must know the interface type to decode
// the value.
func Encode[T any](c Encoding, v T) (data []byte, err error) {
	defer recovered(c, &err)
	if (c == Gob || c == Raw) && reflect.TypeFor[T]().Kind() == reflect.Interface {
		return c.Marshal(&v)
	}
	data, err = c.Marshal(v)
	return unshared(c, data), err
}

// The function `recovered` turns a panic of c into an error. It is for defer statements.
func recovered(c Encoding, err *error) {
	if r := recover(); r != nil {
		name, own := c.(Own)
		if !own {
			name = Own(fmt.Sprintf("%T", c))
		}
		*err = fmt.Errorf("codec %s panicked: %v", name, r)
	}
}

// The function `unshared` returns data that a codec of the program cannot change: a copy. Such a
// codec may return its argument, or decode in place, and zsync may send or decode the bytes again.
func unshared(c Encoding, data []byte) []byte {
	if _, own := c.(Own); own {
		return data
	}
	return bytes.Clone(data)
}

// Decode is the inverse of Encode. If Decode returns an error, v is the zero value: a partly
// decoded value is useless.
func Decode[T any](c Encoding, data []byte) (v T, err error) {
	defer recovered(c, &err)
	var x T
	if err = c.Unmarshal(unshared(c, data), &x); err == nil {
		v = x
	}
	return v, err
}

// EncodePair returns two encoded values, the second after the first. The result begins with the length
// of the first value, in four bytes.
func EncodePair[T1, T2 any](c Encoding, v1 T1, v2 T2) ([]byte, error) {
	first, err := Encode(c, v1)
	if err != nil {
		return nil, err
	}
	second, err := Encode(c, v2)
	data := binary.BigEndian.AppendUint32(nil, uint32(len(first)))
	return append(append(data, first...), second...), err
}

// DecodePair is the inverse of EncodePair. If it returns an error, both values are zero.
func DecodePair[T1, T2 any](c Encoding, data []byte) (v1 T1, v2 T2, err error) {
	if len(data) < 4 || uint64(binary.BigEndian.Uint32(data)) > uint64(len(data)-4) {
		return v1, v2, errors.New("the stored bytes are not a pair of values")
	}
	n := binary.BigEndian.Uint32(data)
	if v1, err = Decode[T1](c, data[4:4+n]); err == nil {
		if v2, err = Decode[T2](c, data[4+n:]); err != nil {
			v1 = *new(T1)
		}
	}
	return v1, v2, err
}
