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

// This file finds strings that are not UTF-8: encoding/json would change them silently.

// encoding/json writes these six characters for each byte that is not UTF-8. It does not write them
// for a U+FFFD in a string, which stays as it is. But a string may itself contain the six
// characters, and a Marshaler may write them. So if a result has these six characters, checkUTF8
// decides whether a string was invalid.
const replacement = `\ufffd`

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// checkUTF8 sets *err, unless it is set, if v contains a string that encoding/json would write and
// change. The text `at` is the place of v in the whole value.
func checkUTF8(at string, v reflect.Value, err *error) {
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
		for i, r := range v.String() {
			if r == utf8.RuneError && !strings.HasPrefix(v.String()[i:], "\uFFFD") && *err == nil {
				*err = session.Invalid("%s is no UTF-8 (byte %#x at %d), and JSON cannot hold it: make it a []byte, or use WithCodec(Gob), or WithCodec(Raw) for values that are strings", at, v.String()[i], i)
			}
		}
	case reflect.Pointer, reflect.Interface:
		checkUTF8(at, v.Elem(), err)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			checkUTF8(fmt.Sprintf("%s[%d]", at, i), v.Index(i), err)
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			here := fmt.Sprintf("%s[%q]", at, fmt.Sprint(key))
			checkUTF8("the key "+here, key, err)
			checkUTF8(here, value, err)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if field.Tag.Get("json") != "-" && (field.IsExported() || field.Anonymous) {
				checkUTF8(at+"."+field.Name, v.Field(i), err)
			}
		}
	}
}
