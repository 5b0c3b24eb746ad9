package codec

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/session"
)

type (
	named  string
	keeper struct{ text string }
	inner  struct {
		Note  string
		Data  []byte
		Other *inner `json:",omitempty"`
	}
	outer struct {
		inner
		ID      string `json:"id"`
		Quoted  string `json:",string"`
		Left    string `json:"-"`
		hidden  string
		Tags    []string
		ByName  map[string]named
		Any     any
		Message json.RawMessage
		Keeper  keeper
	}
)

func (k keeper) MarshalText() ([]byte, error)  { return []byte(k.text), nil }
func (k *keeper) UnmarshalText(p []byte) error { k.text = string(p); return nil }

// encoding/json writes U+FFFD in place of what is no UTF-8, and says nothing.
func TestJSONRefusesAStringThatItWouldChangeAndSaysWhere(t *testing.T) {
	const bad = "ab\xffc"
	for where, v := range map[string]any{
		"the value is":                  bad,
		"the value[1] is":               []string{"fine", bad},
		`the value["k"] is`:             map[string]any{"k": bad},
		`the key the value["ab\xffc"]`:  map[string]int{bad: 1},
		"the value.ID is":               outer{ID: bad},
		"the value.Quoted is":           outer{Quoted: bad},
		"the value.inner.Note is":       outer{inner: inner{Note: bad}},
		"the value.Other.Note is":       &inner{Other: &inner{Note: bad}},
		"the value.Tags[0] is":          outer{Tags: []string{bad}},
		`the value.ByName["k"] is`:      outer{ByName: map[string]named{"k": bad}},
		"the value.Any[1].Note is":      outer{Any: []any{1, inner{Note: bad}}},
		"the value.Keeper is":           outer{Keeper: keeper{bad}},
		"the value.Keeper is no UTF-8 ": &outer{Keeper: keeper{bad}},
	} {
		data, err := JSON.Marshal(v)
		if !errors.Is(err, session.ErrInvalid) || !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), "0xff at 2") || !strings.Contains(err.Error(), "WithCodec") {
			t.Errorf("%#v: %s, %v; want %q", v, data, err, where)
		}
	}
}

func TestJSONKeepsEachStringThatItTakes(t *testing.T) {
	for _, text := range []string{"", "plain", "\ufffd", `\ufffd`, `\\ufffd`, "a\x00b", "\u2028<&>", "\U0001f600"} {
		v := outer{ID: text, Quoted: text, Tags: []string{text}, ByName: map[string]named{text: named(text)}, Any: text, Message: json.RawMessage(`"\ufffd"`),
			Keeper: keeper{text}, inner: inner{Note: text, Data: []byte("\xff\xfe")}}
		data, err := JSON.Marshal(v)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var got outer
		if err := JSON.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%q comes back as %#v, %v", text, got, err)
		}
	}
	v := outer{Left: "\xff", hidden: "\xff", ID: "\ufffd"} // what is not stored may be anything
	if _, err := JSON.Marshal(v); err != nil {
		t.Error(err)
	}
	var got string
	if err := JSON.Unmarshal([]byte("\"a\xff\""), &got); err == nil {
		t.Errorf("what another program has stored comes as %q", got)
	}
}
