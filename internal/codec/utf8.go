package codec

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/zsync/zsync/internal/session"
)

// This file finds strings that are not UTF-8: encoding/json would change them silently. The file
// encodes nothing.

// encoding/json writes these six characters for each byte that is not UTF-8. It does not write them
// for a U+FFFD in a string, which stays as it is. But a string may itself contain the six
// characters, and a Marshaler may write them. So if a result has these six characters, checkUTF8
// decides whether a string was invalid.
const replacement = `\ufffd`

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// checkUTF8 returns an error if v contains a string that encoding/json would change. The text `at`
// gives the place of v in the whole value.
func checkUTF8(at string, v reflect.Value) error {
	if !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil() || v.Type().Implements(marshaler) || v.CanAddr() && v.Addr().Type().Implements(marshaler) {
		return nil // the text of a Marshaler is not checked
	}
	if v.CanAddr() && v.Addr().Type().Implements(textMarshaler) {
		v = v.Addr()
	}
	if v.Type().Implements(textMarshaler) && v.CanInterface() {
		text, _ := v.Interface().(encoding.TextMarshaler).MarshalText()
		return checkString(at, string(text))
	}
	switch v.Kind() {
	case reflect.String:
		return checkString(at, v.String())
	case reflect.Pointer, reflect.Interface:
		return checkUTF8(at, v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := checkUTF8(fmt.Sprintf("%s[%d]", at, i), v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			here := fmt.Sprintf("%s[%q]", at, fmt.Sprint(key))
			if err := checkUTF8("the key "+here, key); err != nil {
				return err
			}
			if err := checkUTF8(here, value); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if tag := f.Tag.Get("json"); tag == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if err := checkUTF8(at+"."+f.Name, v.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkString(at, s string) error {
	for i, r := range s {
		if r != utf8.RuneError {
			continue
		}
		if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
			return session.Invalid("%s is no UTF-8 (byte %#x at %d), and JSON cannot hold it: make it a []byte, or use WithCodec(Gob), or WithCodec(Raw) for values that are strings", at, s[i], i)
		}
	}
	return nil
}
