package zsync

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/zsync/zsync/internal/codec"
	"github.com/zsync/zsync/internal/session"
)

// OnceFunc returns a function that runs f once among all processes that name the same path,
// with the guarantees of [Once.Do]. Many goroutines may call the function at once. To reset
// it, use [NewOnce] and [Once.Reset] with the same path.
func OnceFunc(s *Session, path string, f func(ctx context.Context) error) func(ctx context.Context) error {
	o := NewOnce(s, path)
	return func(ctx context.Context) error { return o.Do(ctx, f) }
}

// OnceValue returns a function that runs f once among all processes that name the same
// path. It returns f's value, the same in every process, with the guarantees of [Once.Do].
//
// The value is stored in the znode path/done, as the codec encodes it ([WithCodec]); it
// must fit into ZooKeeper's packet of 1 MiB. Every caller gets the decoded bytes, in the
// process that ran f too. They are decoded once for each process; callers share the
// pointers, slices and maps in the value.
//
// f must run before its value can be stored. If the value is too large ([ErrTooLarge]),
// cannot be encoded or decoded, or the session is lost, the Once is not completed. The
// caller gets the value together with the error, so that it can undo f. The next call runs
// its own f. So store a large value elsewhere, and return its address. If f itself fails,
// its caller gets f's value and error.
//
// If the stored bytes cannot be decoded, because of another type or codec or because a
// plain Once stored them, every call returns the error and f does not run. To run it again,
// call [Once.Reset] of the same path.
func OnceValue[T any](s *Session, path string, f func(ctx context.Context) (T, error), opts ...ValueOption) func(ctx context.Context) (T, error) {
	c := newValueConfig(opts)
	k := newStored(s, path, c.err,
		func(v T) ([]byte, error) { return codec.Encode(c.codec, v) },
		func(data []byte) (T, error) { return codec.Decode[T](c.codec, data) })
	return func(ctx context.Context) (T, error) { return k.get(ctx, f) }
}

// OnceValues is [OnceValue] for a function of two values. The mark holds the
// length of the first in four bytes, big-endian, then the first and the second,
// each as the codec encodes it.
func OnceValues[T1, T2 any](s *Session, path string, f func(ctx context.Context) (T1, T2, error), opts ...ValueOption) func(ctx context.Context) (T1, T2, error) {
	c := newValueConfig(opts)
	k := newStored(s, path, c.err,
		func(v codec.Pair[T1, T2]) ([]byte, error) { return codec.EncodePair(c.codec, v) },
		func(data []byte) (codec.Pair[T1, T2], error) { return codec.DecodePair[T1, T2](c.codec, data) })
	var both func(ctx context.Context) (codec.Pair[T1, T2], error)
	if f != nil {
		both = func(ctx context.Context) (v codec.Pair[T1, T2], err error) {
			v.First, v.Second, err = f(ctx)
			return v, err
		}
	}
	return func(ctx context.Context) (T1, T2, error) {
		v, err := k.get(ctx, both)
		return v.First, v.Second, err
	}
}

// A storedValue keeps the value of a OnceValue for this process.
type storedValue[T any] struct {
	once   *Once
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)

	mu   sync.Mutex
	have bool   // the rest is set; guarded by mu
	data []byte // the bytes that have been decoded; guarded by mu
	v    T      // guarded by mu
	err  error  // guarded by mu
}

func newStored[T any](s *Session, path string, err error, encode func(T) ([]byte, error), decode func([]byte) (T, error)) *storedValue[T] {
	o := NewOnce(s, path)
	o.valued = true
	if o.err == nil {
		o.err = err
	}
	return &storedValue[T]{once: o, encode: encode, decode: decode}
}

// get returns the value. It runs f if no process has completed the Once yet.
func (k *storedValue[T]) get(ctx context.Context, f func(ctx context.Context) (T, error)) (T, error) {
	var own T
	if k.once.err == nil && f == nil {
		return own, k.once.fail("do", session.Invalid("the function is nil"))
	}
	data, err := k.once.do(ctx, func(ctx context.Context, _ string) (data []byte, err error) {
		if own, err = f(ctx); err != nil {
			return nil, err
		}
		if data, err = k.encode(own); err != nil {
			return nil, k.once.fail("encode", err)
		}
		if k.once.s.m.SizeOf(k.once.mark.path, data) > session.MaxPacket {
			return nil, k.once.fail("encode", fmt.Errorf("value of %d bytes: %w", len(data), ErrTooLarge))
		}
		// A value that cannot be decoded would make every later call fail.
		_, err = k.decoded(data)
		return data, err
	})
	if err != nil {
		return own, err
	}
	return k.decoded(data)
}

// decoded decodes data, unless these bytes were decoded the last time.
func (k *storedValue[T]) decoded(data []byte) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.have || !bytes.Equal(k.data, data) {
		k.v, k.err = k.decode(data)
		k.err = k.once.fail("decode", k.err)
		k.have, k.data = true, data
	}
	return k.v, k.err
}
