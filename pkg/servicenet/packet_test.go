package servicenet

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// forbiddenVerifier fails the test on any call.
type forbiddenVerifier struct{ t *testing.T }

func (v forbiddenVerifier) VerifyName(_, _, _ []byte) (role, name string, err error) {
	v.t.Helper()
	v.t.Error("a signature was verified before the checksum was good")
	return "", "", errBadMAC
}

func (v forbiddenVerifier) VerifyMAC(uint64, []byte, []byte) (role, name string, err error) {
	return v.VerifyName(nil, nil, nil)
}

func sealedWith(t testing.TB, a lofamov1.Checksum, session *SessionKey) []byte {
	t.Helper()
	b, err := SealReports([]fault.Report{sampleDigest()}, sampleStatus(), nodeSigner, SealOptions{Checksum: &a, Session: session})
	return mustSeal(t, b, err)
}

// With any algorithm a single flipped bit anywhere is damage: the receiver requests the message again, and accuses no
// sender. Without one it is refused as well, but looks the same as forgery.
func TestEveryFlippedBit(t *testing.T) {
	for _, a := range Checksums() {
		for name, session := range map[string]*SessionKey{"signed": nil, "MAC": testKey(1)} {
			b := sealedWith(t, a, session)
			var v Verifier = forbiddenVerifier{t}
			if a == lofamov1.Checksum_CHECKSUM_NONE {
				v = newSessions()
			}
			for bit := range 8 * len(b) {
				b[bit/8] ^= 1 << (bit % 8)
				_, err := Open(b, v)
				b[bit/8] ^= 1 << (bit % 8)
				if a == lofamov1.Checksum_CHECKSUM_NONE {
					if RefusalOf(err) == 0 {
						t.Errorf("none, %s, bit %d: %v: want a refusal", name, bit, err)
					}
					continue
				}
				if !IsDamaged(err) {
					t.Errorf("%s, %s, bit %d: %v: want damage", ChecksumName(a), name, bit, err)
				}
			}
			if _, err := Open(b, newSessions()); err != nil {
				t.Errorf("%s, %s: unharmed: %v", ChecksumName(a), name, err)
			}
		}
	}
}

// A relay's wrapper is whole, but its content was damaged before: the inner checksum shows that.
func TestDamageWithinWrapper(t *testing.T) {
	inner := sealedReport(t)
	for bit := 24; bit < 8*len(inner); bit += 7 {
		broken := bytes.Clone(inner)
		broken[bit/8] ^= 1 << (bit % 8)
		wrapped, err := SealRelayed(broken, relayHops, relaySigner)
		if err != nil {
			if !IsDamaged(err) {
				t.Errorf("bit %d: relay: %v: want damage", bit, err)
			}
			continue
		}
		if _, err := Unwrap(wrapped, fault.PathDirect, fakeVerifier{}); !IsDamaged(err) {
			t.Errorf("bit %d: %v: want damage", bit, err)
		}
	}
}

func TestTruncatedIsRefused(t *testing.T) {
	for _, session := range []*SessionKey{nil, testKey(1)} {
		b := sealedWith(t, DefaultChecksum, session)
		for n := range b {
			if _, err := Open(b[:n], forbiddenVerifier{t}); !IsDamaged(err) {
				t.Errorf("the first %d bytes of %d: %v: want damage", n, len(b), err)
			}
		}
	}
}

func TestDamaged(t *testing.T) {
	b := sealedReport(t)
	tests := []struct {
		name string
		b    []byte
		want Refusal
		dam  bool
	}{
		{"a wrong sum", corrupt(t, b, func(e *lofamov1.Envelope) { e.Checksum++ }), RefusedChecksum, true},
		{"no sum", corrupt(t, b, func(e *lofamov1.Envelope) { e.Checksum = 0 }), RefusedChecksum, true},
		{"no algorithm", corrupt(t, b, func(e *lofamov1.Envelope) { e.ChecksumAlgorithm = 0 }), RefusedChecksum, true},
		{"neither", corrupt(t, b, func(e *lofamov1.Envelope) { e.ChecksumAlgorithm, e.Checksum = 0, 0 }), RefusedChecksum, true},
		{"an algorithm of a later version", corrupt(t, b, func(e *lofamov1.Envelope) { e.ChecksumAlgorithm = 7 }), RefusedChecksum, true},
		{"a negative algorithm", corrupt(t, b, func(e *lofamov1.Envelope) { e.ChecksumAlgorithm = -1 }), RefusedChecksum, true},
		{"noise", []byte("hello, is anybody there?"), RefusedMalformed, true},
		{"nothing", nil, RefusedMalformed, true},
		{"too long", make([]byte, MaxDatagram+1), RefusedTooLong, false},
		{"a forged signature, summed", forge(t, b, func(e *lofamov1.Envelope) { e.Signature[0] ^= 1 }), RefusedSignature, false},
		{"no payload, summed", forge(t, b, func(e *lofamov1.Envelope) { e.Payload = nil }), RefusedMalformed, false},
		{"no certificate, summed", forge(t, b, func(e *lofamov1.Envelope) { e.Certificate = nil }), RefusedMalformed, false},
		{"session and signature, summed", forge(t, b, func(e *lofamov1.Envelope) { e.Session = 1 }), RefusedMalformed, false},
		{"MAC and signature, summed", forge(t, b, func(e *lofamov1.Envelope) { e.Mac = make([]byte, MACSize) }), RefusedMalformed, false},
	}
	for _, tt := range tests {
		_, err := Open(tt.b, newSessions())
		if RefusalOf(err) != tt.want || IsDamaged(err) != tt.dam {
			t.Errorf("%s: %v, damaged %t; want %s, %t", tt.name, err, IsDamaged(err), tt.want, tt.dam)
		}
	}
	if IsDamaged(nil) || IsDamaged(errBadMAC) {
		t.Error("what is no refusal is damage")
	}
}

func TestSealOptions(t *testing.T) {
	for _, a := range Checksums() {
		env := envelopeRaw(t, sealedWith(t, a, nil))
		if env.GetChecksumAlgorithm() != a {
			t.Errorf("%s: sealed with %s", ChecksumName(a), env.GetChecksumAlgorithm())
		}
		env = envelopeRaw(t, sealedWith(t, a, testKey(5)))
		if env.GetChecksumAlgorithm() != a || env.GetSession() != 5 || len(env.GetCertificate())+len(env.GetSignature()) != 0 {
			t.Errorf("%s, MAC: %v", ChecksumName(a), env)
		}
	}
	if a := envelopeOf(t, sealedReport(t)).GetChecksumAlgorithm(); a != lofamov1.Checksum_CHECKSUM_CRC32C {
		t.Errorf("the default is %s", a)
	}
	later := lofamov1.Checksum(7)
	if _, err := SealWith(again(), supSigner, SealOptions{Checksum: &later}); RefusalOf(err) != RefusedField ||
		!strings.Contains(err.Error(), "given 7") {
		t.Errorf("an unknown algorithm: %v", err)
	}
}

// The sum as wire.proto defines it: over the bytes before it in the encoding.
func TestSumIsAsWritten(t *testing.T) {
	for _, a := range Checksums() {
		for _, session := range []*SessionKey{nil, testKey(5)} {
			b := sealedWith(t, a, session)
			want := ChecksumOf(a, b[:len(b)-9])
			if a == lofamov1.Checksum_CHECKSUM_NONE {
				want = 1<<64 - 1
			}
			if env := envelopeRaw(t, b); env.GetChecksum() != want {
				t.Errorf("%s: %#x, want %#x", ChecksumName(a), env.GetChecksum(), want)
			}
		}
	}
}

// Written by hand, and the same bytes as the protobuf encoder's.
func TestPacketIsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SliceOfN(rapid.Byte(), 0, 300)
		p := packet{
			payload: part.Draw(t, "payload"), certificate: part.Draw(t, "certificate"), signature: part.Draw(t,
				"signature"), mac: part.Draw(t, "mac"),
			session:   rapid.Uint64().Draw(t, "session"),
			algorithm: rapid.SampledFrom(Checksums()).Draw(t, "algorithm"),
		}
		b := p.encode()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&lofamov1.Envelope{
			Payload: p.payload, Certificate: p.certificate, Signature: p.signature, Mac: p.mac,
			Session: p.session, ChecksumAlgorithm: p.algorithm, Checksum: p.sum,
		})
		if err != nil || !bytes.Equal(b, want) {
			t.Fatalf("%x\nwant %x, %v", b, want, err)
		}
		got, err := parsePacket(b)
		if got.summed == nil || got.computeSumOfParts(NewChecksummer(p.algorithm)) != p.sum {
			t.Errorf("summed: %x, of the parts %#x, want %#x", got.summed, got.computeSumOfParts(NewChecksummer(p.algorithm)), p.sum)
		}
		if err != nil || got.checkSum() != nil {
			t.Errorf("read back: %v, %v", err, got.checkSum())
		}
	})
}

// Fields that a later version adds to the envelope are skipped, and kept by a relay.
func TestUnknownEnvelopeFields(t *testing.T) {
	later := protowire.AppendTag(nil, 99, protowire.BytesType)
	later = protowire.AppendBytes(later, []byte("from a later version"))
	b := append(sealedReport(t), later...)
	if _, err := Open(b, fakeVerifier{}); err != nil {
		t.Fatal(err)
	}
	wrapped, err := SealRelayed(b, relayHops, relaySigner)
	o, err2 := Open(mustSeal(t, wrapped, err), fakeVerifier{})
	if err2 != nil || !bytes.Equal(o.Msg.GetRelayed().GetInner().ProtoReflect().GetUnknown(), later) {
		t.Errorf("%v, %v", o.Msg, err2)
	}
}

// FuzzPacket compares the reader made by hand with the protobuf decoder.
func FuzzPacket(f *testing.F) {
	f.Add(sealedReport(f))
	f.Add(sealedWith(f, lofamov1.Checksum_CHECKSUM_FLETCHER64, testKey(1)))
	f.Add([]byte{0x0b, 0x0c, 0x08, 0x01, 0x30, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > MaxDatagram {
			return
		}
		env := new(lofamov1.Envelope)
		wantErr := proto.Unmarshal(b, env)
		got, err := parsePacket(b)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, the protobuf decoder says %v", err, wantErr)
		}
		want := packetOf(env)
		if err == nil && (!bytes.Equal(got.payload, want.payload) || !bytes.Equal(got.certificate, want.certificate) ||
			!bytes.Equal(got.signature, want.signature) || !bytes.Equal(got.mac, want.mac) ||
			got.session != want.session || got.algorithm != want.algorithm || got.sum != want.sum) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
	})
}
