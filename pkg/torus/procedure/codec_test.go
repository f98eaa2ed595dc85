package procedure

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"
)

func someMessage() Message {
	return Message{
		Key: Key{Wave: 3, Starter: 17, Run: 1<<40 | 9}, State: Decision, Round: 4, Clear: true, Diagnose: true, Order: Order{Term: 812, Count: 2},
		Plan: Plan{Delay: 450 * time.Millisecond, Hop: 75 * time.Millisecond, DrainTimeout: time.Second, Absent: []int{0, 5, MaxRank}},
	}
}

func TestCodec(t *testing.T) {
	m := someMessage()
	for _, edit := range []func(*Message){func(*Message) {}, func(m *Message) { m.Holding, m.Clear = true, false },
		func(m *Message) { m.Plan.Absent = nil }} {
		edit(&m)
		got, begin, err := Decode(m.Append(nil))
		if err != nil || begin != nil || !reflect.DeepEqual(*got, m) {
			t.Errorf("%+v came back as %+v, %v", m, got, err)
		}
	}
	b := Begin{Wave: 7, Run: 8, Envelope: []byte("signed")}
	if got, begin, err := Decode(b.Append(nil)); err != nil || got != nil || !reflect.DeepEqual(*begin, b) {
		t.Errorf("%+v came back as %+v, %v", b, begin, err)
	}
	if got, begin, err := Decode([]byte{9, 1, 2}); got != nil || begin != nil || err != nil {
		t.Errorf("of a later version: %v %v %v", got, begin, err)
	}
}

// Each field that is out of its range has the body refused.
func TestCodecRefusals(t *testing.T) {
	good := func() []byte { m := someMessage(); return m.Append(nil) }
	put := func(at int, v ...byte) []byte { b := good(); copy(b[at:], v); return b }
	begin := Begin{Wave: 7, Envelope: []byte("x")}
	order := begin.Append(nil)
	for name, b := range map[string][]byte{
		"empty": {}, "short": good()[:messageHeader-1], "state 0": put(2, 0), "state 8": put(2, 8), "wave 0": put(4, make([]byte, 8)...),
		"starter": put(20, 0, 1, 0, 0), "delay": put(44, 0, 0, 0, 99), "hop above delay": put(48, 0xff), "drain": put(52, 0, 0, 0, 9),
		"absent missing": good()[:messageHeader+2], "one too many": append(good(), 0, 1), "not ascending": put(messageHeader, 0, 6),
		"rank": put(messageHeader+4, 0xff, 0xff), "order without envelope": order[:orderHeader],
		"order of wave 0": append([]byte{kindOrder}, make([]byte, orderHeader)...),
	} {
		if m, o, err := Decode(b); !errors.Is(err, ErrBody) {
			t.Errorf("%s: %+v %+v %v", name, m, o, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	m := someMessage()
	b := Begin{Wave: 7, Run: 8, Envelope: []byte("signed")}
	f.Add(m.Append(nil))
	f.Add(b.Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		m, b, err := Decode(in)
		switch {
		case err != nil:
			if m != nil || b != nil {
				t.Fatalf("%v and %v beside %v", m, b, err)
			}
		case m != nil:
			out := m.Append(nil)
			if again, _, err := Decode(out); err != nil || !reflect.DeepEqual(again, m) || len(out) > MaxMessage {
				t.Fatalf("%+v came back as %+v, %v", m, again, err)
			}
		case b != nil:
			if _, again, err := Decode(b.Append(nil)); err != nil || again.Wave != b.Wave || again.Run != b.Run ||
				!bytes.Equal(again.Envelope, b.Envelope) {
				t.Fatalf("%+v came back as %+v, %v", b, again, err)
			}
		}
	})
}
