package codec

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
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

// checkUTF8 returns an error if v contains a string that encoding/json would change.
func checkUTF8(v any) (err error) {
	eachString("the value", reflect.ValueOf(v), func(at, s string) {
		for i, r := range s {
			if r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD") && err == nil {
				err = session.Invalid("%s is no UTF-8 (byte %#x at %d), and JSON cannot hold it: make it a []byte, or use WithCodec(Gob), or WithCodec(Raw) for values that are strings", at, s[i], i)
			}
		}
	})
	return err
}

// eachString calls f with each string in v that encoding/json would write, and with its place in the
// whole value. The text `at` is the place of v.
func eachString(at string, v reflect.Value, f func(at, s string)) {
	if !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil() || v.Type().Implements(marshaler) || v.CanAddr() && v.Addr().Type().Implements(marshaler) {
		return // the text of a Marshaler is not checked
	}
	if v.CanAddr() && v.Addr().Type().Implements(textMarshaler) {
		v = v.Addr()
	}
	if v.Type().Implements(textMarshaler) && v.CanInterface() {
		text, _ := v.Interface().(encoding.TextMarshaler).MarshalText()
		v = reflect.ValueOf(string(text))
	}
	switch v.Kind() {
	case reflect.String:
		f(at, v.String())
	case reflect.Pointer, reflect.Interface:
		eachString(at, v.Elem(), f)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			eachString(fmt.Sprintf("%s[%d]", at, i), v.Index(i), f)
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			here := fmt.Sprintf("%s[%q]", at, fmt.Sprint(key))
			eachString("the key "+here, key, f)
			eachString(here, value, f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Tag.Get("json") != "-" && (field.IsExported() || field.Anonymous) {
				eachString(at+"."+field.Name, v.Field(i), f)
			}
		}
	}
}
