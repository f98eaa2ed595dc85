package torus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// pair returns the two ends of a session.
func pair(id uint32, seed byte) (a, b *Session) {
	k1, k2 := [KeySize]byte{seed, 1}, [KeySize]byte{seed, 2}
	return NewSession(id, k1, k2), NewSession(id, k2, k1)
}

func sample() Frame {
	return Frame{
		Type: TypeMessage, Direction: grid.YMinus, Flags: FlagHostDead | 0x80, Src: grid.Coord{X: 1, Y: 2, Z: 65535}, Dst: grid.Coord{Y: 1},
		Session: 7, Epoch: 3, Seq: 41, Ack: 40, DNP: 0x07ffffff, Host: 0x1ff, Payload: []byte("payload"),
	}
}

func encode(t testing.TB, f Frame, auth Sealer) []byte {
	t.Helper()
	b, err := f.Append(nil, auth)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func same(a, b Frame) bool {
	payload := bytes.Equal(a.Payload, b.Payload)
	a.Payload, b.Payload = nil, nil
	return payload && a.Type == b.Type && a.Direction == b.Direction && a.Flags == b.Flags && a.Src == b.Src && a.Dst == b.Dst &&
		a.Session == b.Session && a.Epoch == b.Epoch && a.Seq == b.Seq && a.Ack == b.Ack && a.DNP == b.DNP && a.Host == b.Host
}

func TestHeartbeatOnWire(t *testing.T) {
	a, b := pair(0x01020304, 9)
	f := Frame{
		Type: TypeHeartbeat, Direction: grid.XPlus, Flags: FlagDeaf, Src: grid.Coord{X: 1, Y: 0, Z: 2}, Dst: grid.Coord{X: 0x1234},
		Session: 0x01020304, Epoch: 5, Seq: 6, Ack: 7, DNP: 0xaabbccdd, Host: 0x00000180,
	}
	got := encode(t, f, a)
	want := []byte{
		'L', 'F', 1, 1, 0, 76, 1, 2,
		0, 1, 0, 0, 0, 2, 0x12, 0x34, 0, 0, 0, 0,
		1, 2, 3, 4,
		0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7,
		0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 1, 0x80,
	}
	if len(got) != HeartbeatSize || HeartbeatSize > 100 || !bytes.Equal(got[:len(want)], want) {
		t.Fatalf("%d bytes\n% x, want\n% x", len(got), got, want)
	}
	if crc := crc32.ChecksumIEEE(got[:72]); crc != binary.BigEndian.Uint32(got[72:]) {
		t.Error("the last four bytes are not the CRC-32 of the rest")
	}
	if back, err := Decode(got, DefaultMaxFrame, b); err != nil || !same(back, f) {
		t.Errorf("decoded %+v, %v", back, err)
	}
}

func TestRoundTrip(t *testing.T) {
	part := rapid.IntRange(0, grid.MaxSize-1)
	rapid.Check(t, func(t *rapid.T) {
		coord := func(n string) grid.Coord {
			return grid.Coord{X: part.Draw(t, n+"x"), Y: part.Draw(t, n+"y"), Z: part.Draw(t, n+"z")}
		}
		f := Frame{
			Type: FrameType(rapid.IntRange(1, 255).Draw(t, "type")), Direction: grid.Direction(rapid.IntRange(1, 6).Draw(t, "dir")),
			Flags: Flags(rapid.Byte().Draw(t, "flags")), Src: coord("src"), Dst: coord("dst"), Session: rapid.Uint32().Draw(t, "session"),
			Epoch: fault.Epoch(rapid.Uint64().Draw(t, "epoch")), Seq: rapid.Uint64Min(1).Draw(t, "seq"), Ack: rapid.Uint64().Draw(t, "ack"),
			DNP: rapid.Uint32().Draw(t, "dnp"), Host: rapid.Uint32().Draw(t, "host"),
			Payload: rapid.SliceOfN(rapid.Byte(), 0, MaxPayload(MaxFrame)).Draw(t, "payload"),
		}
		a, b := pair(f.Session, 1)
		prefix := []byte("kept")
		wire, err := f.Append(prefix, a)
		if err != nil || !bytes.HasPrefix(wire, prefix) {
			t.Fatalf("append: %v", err)
		}
		got, err := Decode(wire[len(prefix):], MaxFrame, b)
		if err != nil || !same(got, f) {
			t.Fatalf("got %+v, %v; want %+v", got, err, f)
		}
	})
}

// TestFlippedBits: CRC-32 IEEE finds every error of up to three bits at our lengths (seed 001 §IV-B).
func TestFlippedBits(t *testing.T) {
	a, b := pair(7, 1)
	heartbeat := sample()
	heartbeat.Payload = nil
	wire := encode(t, heartbeat, a)
	flip := func(b []byte, bit int) { b[bit/8] ^= 1 << (bit % 8) }
	refused := func(t interface{ Fatalf(string, ...any) }, wire []byte, bits ...int) {
		for _, bit := range bits {
			flip(wire, bit)
		}
		if _, err := Decode(wire, MaxFrame, b); !errors.Is(err, ErrCRC) {
			t.Fatalf("with bits %v flipped: %v, want %v", bits, err, ErrCRC)
		}
		for _, bit := range bits {
			flip(wire, bit)
		}
	}
	for i := range len(wire) * 8 {
		refused(t, wire, i)
		for j := range i {
			refused(t, wire, i, j)
		}
	}
	f := sample()
	f.Seq, f.Payload = 42, bytes.Repeat([]byte{0xa5}, MaxPayload(MaxFrame))
	long := encode(t, f, a)
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SampledFrom([][]byte{wire, long}).Draw(t, "frame")
		bits := rapid.SliceOfNDistinct(rapid.IntRange(0, len(w)*8-1), 1, 3, rapid.ID[int]).Draw(t, "bits")
		refused(t, w, bits...)
	})
}

// recrc corrects the CRC, as an attacker without the key can.
func recrc(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b[:len(b)-crcSize], crc32.ChecksumIEEE(b[:len(b)-crcSize]))
}

func TestDecodeRefuses(t *testing.T) {
	a, b := pair(7, 1)
	wire := encode(t, sample(), a)
	set := func(at int, v byte) []byte {
		c := bytes.Clone(wire)
		c[at] = v
		return recrc(c)
	}
	for _, tc := range []struct {
		name   string
		packet []byte
		max    int
		want   error
		kind   BadKind
	}{
		{"empty", nil, MaxFrame, ErrShort, BadMalformed},
		{"cut inside the trailer", wire[:HeartbeatSize-1], MaxFrame, ErrShort, BadMalformed},
		{"cut inside the payload", wire[:len(wire)-1], MaxFrame, ErrCRC, BadCRC},
		{"over the MTU", wire, len(wire) - 1, ErrTooLong, BadMalformed},
		{"over the DNP's largest", make([]byte, MaxFrame+1), 1 << 20, ErrTooLong, BadMalformed},
		{"wrong magic", set(0, 'X'), MaxFrame, ErrMagic, BadMalformed},
		{"next version", set(2, 2), MaxFrame, ErrVersion, BadMalformed},
		{"type 0", set(3, 0), MaxFrame, ErrType, BadMalformed},
		{"wrong length", set(5, 1), MaxFrame, ErrLength, BadMalformed},
		{"direction 0", set(6, 0), MaxFrame, ErrDirection, BadMalformed},
		{"direction 7", set(6, 7), MaxFrame, ErrDirection, BadMalformed},
		{"other session", set(23, 8), MaxFrame, ErrSession, BadSession},
		{"forged status", set(55, 1), MaxFrame, ErrMAC, BadMAC},
		{"forged sequence", set(39, 200), MaxFrame, ErrMAC, BadMAC},
		{"forged payload", set(56, 'q'), MaxFrame, ErrMAC, BadMAC},
		{"forged MAC", set(len(wire)-crcSize-1, wire[len(wire)-crcSize-1]^1), MaxFrame, ErrMAC, BadMAC},
	} {
		got, err := Decode(tc.packet, tc.max, b)
		if !errors.Is(err, tc.want) || KindOf(err) != tc.kind || got.Type != 0 {
			t.Errorf("%s: %v (%s), want %v (%s)", tc.name, err, KindOf(err), tc.want, tc.kind)
		}
	}
	if _, err := Decode(wire, MaxFrame, a); !errors.Is(err, ErrMAC) {
		t.Errorf("a frame sent back to its sender: %v, want %v", err, ErrMAC)
	}
}

func TestEncodeRefuses(t *testing.T) {
	a, _ := pair(7, 1)
	for _, tc := range []struct {
		change func(*Frame)
		names  string
	}{
		{func(f *Frame) { f.Payload = make([]byte, MaxFrame-HeartbeatSize+1) }, "8148"},
		{func(f *Frame) { f.Type = 0 }, "type is 0"},
		{func(f *Frame) { f.Direction = 7 }, "direction is 7"},
		{func(f *Frame) { f.Src.Y = -1 }, "1,-1,65535"},
		{func(f *Frame) { f.Dst.Z = grid.MaxSize }, "0,1,65536"},
		{func(f *Frame) { f.Session = 8 }, "session"},
	} {
		f := sample()
		tc.change(&f)
		if b, err := f.Append([]byte("x"), a); err == nil || !strings.Contains(err.Error(), tc.names) || string(b) != "x" {
			t.Errorf("error %v, want one that names %q", err, tc.names)
		}
	}
}

func TestSequenceNumberIsUsedOnce(t *testing.T) {
	a, _ := pair(7, 1)
	f := sample()
	encode(t, f, a)
	for _, seq := range []uint64{41, 40, 0} {
		f.Seq = seq
		if _, err := f.Append(nil, a); !errors.Is(err, ErrSequenceReused) {
			t.Errorf("seal %d after 41: %v", seq, err)
		}
	}
}

func TestEnumNames(t *testing.T) {
	for want, v := range map[string]interface{ String() string }{
		"heartbeat": TypeHeartbeat, "barrier": TypeBarrier, "restarting": TypeRestarting, "hop": TypeHop, "late": HopLate,
		"HopVerdict(9)": HopVerdict(9), "FrameType(0)": FrameType(0), "FrameType(99)": FrameType(99),
		"crc": BadCRC, "interface": BadInterface, "BadKind(0)": BadKind(0),
		"UNKNOWN": LinkUnknown, "BROKEN": LinkBroken, "LinkState(0)": LinkState(0), "LinkState(5)": LinkState(5),
	} {
		if v.String() != want {
			t.Errorf("%q, want %q", v.String(), want)
		}
	}
}

// TestRestartAnnouncementSurvivesEncoding: an announcement survives encoding, the decoder ignores additions of a later version, and an
// announcement that is too short is refused and counted.
func TestRestartAnnouncementSurvivesEncoding(t *testing.T) {
	for given, want := range map[Restarting]Restarting{
		{}: {},
		{Back: 2500*time.Millisecond + 999, Attempt: 3}: {Back: 2500 * time.Millisecond, Attempt: 3},
		{Back: -time.Second}:                            {},
		{Back: 1 << 62, Attempt: math.MaxUint32}:        {Back: math.MaxUint32 * time.Millisecond, Attempt: math.MaxUint32},
	} {
		f := RestartingFrame(sample(), given)
		if got, err := DecodeRestarting(append(f.Payload, 1, 2, 3)); err != nil || got != want {
			t.Errorf("%+v becomes %+v, %v", given, got, err)
		}
		if f.Type != TypeRestarting || f.Flags != sample().Flags|FlagRestart || f.Seq != sample().Seq {
			t.Errorf("frame %+v", f)
		}
	}
	if _, err := DecodeRestarting(make([]byte, 7)); !errors.Is(err, ErrRestarting) {
		t.Errorf("7 bytes: %v", err)
	}
	now := time.Unix(1000, 0)
	l := NewLink(testConfig(), now)
	out := l.Step(now, FrameReceived{Frame: Frame{Type: TypeRestarting, Direction: grid.XMinus, Src: testConfig().Dst, Seq: 1, Epoch: 1}})
	if s := l.Stats(); out.Detail.Restarting || s.Malformed != 1 || s.Restarting != 0 {
		t.Errorf("an announcement without a time: %s, %+v", out.Detail, s)
	}
}

func FuzzDecode(f *testing.F) {
	a, b := pair(7, 1)
	wire := encode(f, sample(), a)
	f.Add(wire)
	f.Add(wire[:HeartbeatSize])
	f.Add(recrc(bytes.Clone(wire[:HeartbeatSize])))
	f.Add([]byte("LF"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		// Let the fuzzer past the CRC too. The MAC must stop it, except for the seed.
		for _, p := range [][]byte{packet, recrc(append(bytes.Clone(packet), 0, 0, 0, 0))} {
			got, err := Decode(p, MaxFrame, b)
			if err == nil && !bytes.Equal(p, wire) {
				t.Fatalf("accepted a forgery: %+v", got)
			}
			if err != nil && KindOf(err) == 0 {
				t.Fatalf("error without kind: %v", err)
			}
		}
		if got, err := Decode(recrc(append(bytes.Clone(packet), 0, 0, 0, 0)), MaxFrame, anyone{}); err == nil {
			again, err := got.Append(nil, anyone{})
			if err != nil {
				t.Fatalf("accepted but cannot encode %+v: %v", got, err)
			}
			if back, err := Decode(again, MaxFrame, anyone{}); err != nil || !same(back, got) {
				t.Fatalf("%+v becomes %+v, %v", got, back, err)
			}
		}
	})
}

// anyone authenticates everything, so that the fuzzer reaches the code behind the MAC.
type anyone struct{}

func (anyone) Seal(dst []byte, _ uint32, _ uint64, _ []byte) ([]byte, error) {
	return append(dst, make([]byte, MACSize)...), nil
}
func (anyone) Open(uint32, uint64, []byte, []byte) error { return nil }

func TestCodecDoesNotAllocate(t *testing.T) {
	a, b := pair(7, 1)
	f := sample()
	buf := make([]byte, 0, MaxFrame)
	if n := testing.AllocsPerRun(100, func() {
		f.Seq++
		wire, err := f.Append(buf, a)
		if err == nil {
			_, err = Decode(wire, MaxFrame, b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for encode and decode, want none", n)
	}
}

func BenchmarkFrame(b *testing.B) {
	for name, size := range map[string]int{"heartbeat": 0, "message1396": 1396} {
		b.Run(name, func(b *testing.B) {
			tx, rx := pair(7, 1)
			f := sample()
			f.Payload = make([]byte, size)
			buf := make([]byte, 0, MaxFrame)
			b.ReportAllocs()
			b.SetBytes(int64(HeartbeatSize + size))
			for b.Loop() {
				f.Seq++
				wire, err := f.Append(buf, tx)
				if err != nil {
					b.Fatal(err)
				}
				if _, err = Decode(wire, MaxFrame, rx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
