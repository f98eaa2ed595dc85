package mailbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
)

func TestMessageRoundTrip(t *testing.T) {
	for _, m := range []Message{
		{Type: Doorbell},
		{Type: Envelope, Payload: []byte("an envelope")},
		{Type: Envelope, Payload: bytes.Repeat([]byte{0xa5}, MaxPayload)},
		{Type: Envelope},
		{Type: Recovery, Payload: []byte("{}")},
		{Type: Health, Payload: []byte{0x18, 1}},
	} {
		b, err := m.Append([]byte("before"))
		if err != nil || !bytes.HasPrefix(b, []byte("before")) {
			t.Fatal(err)
		}
		got, err := Decode(b[len("before"):])
		if err != nil || got.Type != m.Type || !bytes.Equal(got.Payload, m.Payload) {
			t.Errorf("%s: %v, %v", m.Type, got.Type, err)
		}
	}
	later := sum([]byte{byte(Restart) + 1, 'x'})
	if m, err := Decode(later); err != nil || !m.Type.Later() || string(m.Payload) != "x" {
		t.Errorf("of a later version: %+v, %v", m, err)
	}
	if m, err := Decode(nil); err != nil || m.Type != Doorbell {
		t.Errorf("empty datagram: %+v %v", m, err)
	}
}

// sum returns the datagram for a body that Append refuses to encode.
func sum(body []byte) []byte {
	return binary.LittleEndian.AppendUint32(body, crc32.Checksum(body, castagnoli))
}

func TestCodecRefusesMalformedMessages(t *testing.T) {
	for _, tc := range []struct {
		m    Message
		is   error
		want string
	}{
		{Message{}, ErrMalformed, "type is 0: want 1 to 11"},
		{Message{Type: 99}, ErrMalformed, "type is 99"},
		{Message{Type: Doorbell, Payload: []byte{1}}, ErrMalformed, "doorbell with a payload of 1 bytes"},
		{Message{Type: Envelope, Payload: make([]byte, MaxPayload+1)}, ErrTooLong, "8193 bytes: want at most 8192"},
	} {
		if _, err := tc.m.Append(nil); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", tc.m.Type, err, tc.want)
		}
	}
	good, _ := Message{Type: Envelope, Payload: []byte("payload")}.Append(nil)
	for i := range len(good) * 8 {
		bad := bytes.Clone(good)
		bad[i/8] ^= 1 << (i % 8)
		if _, err := Decode(bad); !errors.Is(err, ErrCRC) {
			t.Errorf("bit %d flipped: %v", i, err)
		}
	}
	if _, err := Decode(sum([]byte{0})); !errors.Is(err, ErrMalformed) {
		t.Errorf("type 0: %v", err)
	}
	if _, err := Decode(good[:4]); !errors.Is(err, ErrMalformed) {
		t.Errorf("4 bytes: %v", err)
	}
	if _, err := Decode(make([]byte, overhead+MaxPayload+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("too long: %v", err)
	}
	if Envelope.String() != "Envelope" || Recovery.String() != "Recovery" || Health.String() != "Health" || Type(99).String() != "Type(99)" {
		t.Error("names")
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range []Message{{Type: Doorbell}, {Type: Envelope, Payload: []byte("x")}} {
		b, _ := m.Append(nil)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil || len(b) == 0 || m.Type.Later() {
			return
		}
		if back, err := m.Append(nil); err != nil || !bytes.Equal(back, b) {
			t.Errorf("%x comes back as %x, %v", b, back, err)
		}
	})
}
