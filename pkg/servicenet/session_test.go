package servicenet

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The MAC as wire.proto defines it.
func TestMACIsAsWritten(t *testing.T) {
	key := sha256.Sum256([]byte("key"))
	h := hmac.New(sha256.New, key[:])
	h.Write([]byte("lofamo.v1 session\x00"))
	h.Write(binary.BigEndian.AppendUint64(nil, 0x0102030405060708))
	h.Write([]byte("payload"))
	want := h.Sum(nil)[:16]
	k := NewSession(0x0102030405060708, key)
	for range 2 {
		if got := k.MAC([]byte("payload")); !bytes.Equal(got[:], want) || !k.Verify([]byte("payload"), want) {
			t.Fatalf("%x, want %x", got, want)
		}
	}
	other := NewSession(9, key) // the same key under another name
	for name, bad := range map[string]bool{
		"another payload": k.Verify([]byte("payloaD"), want),
		"cut short":       k.Verify([]byte("payload"), want[:15]),
		"nothing":         k.Verify([]byte("payload"), nil),
		"too long":        k.Verify([]byte("payload"), append(bytes.Clone(want), 0)),
		"another session": other.Verify([]byte("payload"), want),
	} {
		if bad {
			t.Errorf("%s: taken", name)
		}
	}
	if k.ID() != 0x0102030405060708 {
		t.Errorf("id %#x", k.ID())
	}
}

// At any length, it equals the library's HMAC.
func TestMACIsHMAC(t *testing.T) {
	key := sha256.Sum256([]byte("key"))
	k := NewSession(7, key)
	for n := range MaxDatagram {
		h := hmac.New(sha256.New, key[:])
		h.Write(binary.BigEndian.AppendUint64([]byte(macPrefix), 7))
		payload := bytes.Repeat([]byte{byte(n)}, n)
		h.Write(payload)
		if got := k.MAC(payload); !bytes.Equal(got[:], h.Sum(nil)[:MACSize]) {
			t.Fatalf("%d bytes: %x", n, got)
		}
	}
}

func TestSessionKeyIsShared(t *testing.T) {
	k := testKey(1)
	want := k.MAC([]byte("payload"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if k.MAC([]byte("payload")) != want {
					t.Error("another MAC")
				}
			}
		})
	}
	wg.Wait()
}

// Permissions, signed and under a MAC: every message, every role.
func TestWhoMaySayWhat(t *testing.T) {
	for _, s := range everything(t) {
		b := seal(t, s.msg, s.signer)
		if o, err := Open(b, newSessions()); err != nil || o.Session != 0 || !o.is(s.msg) {
			t.Errorf("%s: %v, %v", s.name, o, err)
		}
		role, _, err := fakeVerifier{}.VerifyName(s.signer.cert, s.msg.ProtoReflect().GetUnknown(), s.signer.Sign(nil))
		if err != nil {
			t.Fatal(err)
		}
		own, other := uint64(1), newSigner(RoleSupervisor, "s0")
		if role == RoleSupervisor {
			own, other = 2, nodeSigner
		}
		if _, err := Open(seal(t, s.msg, other), newSessions()); RefusalOf(err) != RefusedRole {
			t.Errorf("%s by the other role: %v", s.name, err)
		}
		if role == RoleNode {
			if _, err := Open(seal(t, s.msg, newSigner(RoleNode, "n9-9-9/host")), newSessions()); RefusalOf(err) != RefusedOrigin {
				t.Errorf("%s by another half: %v", s.name, err)
			}
		}
		testUnderMAC(t, s, own)
	}
}

// testUnderMAC seals and opens messages for which a MAC suffices, and neither seals nor opens any other.
func testUnderMAC(t *testing.T, s said, own uint64) {
	t.Helper()
	b, err := SealWith(s.msg, nil, SealOptions{Session: testKey(own)})
	if !s.mac {
		if RefusalOf(err) != RefusedRole {
			t.Errorf("%s: sealed under a MAC: %v", s.name, err)
		}
		if s.name != "relayed" { // which has another signer than session 1
			if _, err := Open(macSeal(t, s.msg, own), newSessions()); RefusalOf(err) != RefusedRole {
				t.Errorf("%s: opened under a MAC: %v", s.name, err)
			}
		}
		return
	}
	o, err2 := Open(mustSeal(t, b, err), newSessions())
	if err2 != nil || o.Session != own || !o.is(s.msg) {
		t.Errorf("%s under a MAC: %+v, %v", s.name, o, err2)
	}
	// Thrown back at its sender, where the same key belongs to the other role.
	mirror := newSessions()
	mirror.keys[own] = fakeSession{testKey(own), mirror.keys[3-own].role, mirror.keys[3-own].name}
	if _, err := Open(b, mirror); RefusalOf(err) != RefusedRole {
		t.Errorf("%s thrown back: %v", s.name, err)
	}
}

// macSeal does without the checks of SealWith, as a malicious holder of a key would.
func macSeal(t testing.TB, m *lofamov1.Message, session uint64) []byte {
	t.Helper()
	payload := marshal(t, m)
	mac := testKey(session).MAC(payload)
	p := packet{payload: payload, session: session, mac: mac[:], algorithm: lofamov1.Checksum_CHECKSUM_CRC32C}
	return p.encode()
}

func TestSessionRefusals(t *testing.T) {
	b, err := SealReports([]fault.Report{sampleDigest()}, nil, nil, SealOptions{Session: testKey(1)})
	mustSeal(t, b, err)
	stranger := sampleDigest()
	stranger.ID.Origin = origin("n9-9-9/host")
	for name, tt := range map[string]struct {
		b    []byte
		v    Verifier
		want Refusal
	}{
		"no sessions here":      {b, fakeVerifier{}, RefusedSession},
		"unknown session":       {forge(t, b, func(e *lofamov1.Envelope) { e.Session = 3 }), newSessions(), RefusedSession},
		"another's session":     {forge(t, b, func(e *lofamov1.Envelope) { e.Session = 2 }), newSessions(), RefusedSignature},
		"changed payload":       {forge(t, b, func(e *lofamov1.Envelope) { e.Payload[5] ^= 1 }), newSessions(), RefusedSignature},
		"changed MAC":           {forge(t, b, func(e *lofamov1.Envelope) { e.Mac[15] ^= 1 }), newSessions(), RefusedSignature},
		"short MAC":             {forge(t, b, func(e *lofamov1.Envelope) { e.Mac = e.Mac[:8] }), newSessions(), RefusedSignature},
		"no MAC":                {forge(t, b, func(e *lofamov1.Envelope) { e.Mac = nil }), newSessions(), RefusedSignature},
		"no session":            {forge(t, b, func(e *lofamov1.Envelope) { e.Session = 0 }), newSessions(), RefusedMalformed},
		"another half's digest": {macSeal(t, reportsMessage(EncodeReport(stranger)), 1), newSessions(), RefusedOrigin},
		"a digest with acks": {macSeal(t, &lofamov1.Message{Body: statusMessage().Body, Acks: ackMessage().Acks}, 1), newSessions(),
			RefusedRole},
		"acks under the node's":   {macSeal(t, ackMessage(), 1), newSessions(), RefusedRole},
		"not a message":           {macSealRaw([]byte("\xff\xff\xff"), 1), newSessions(), RefusedMalformed},
		"a relayed MAC":           {rawSeal(marshal(t, relayedMessage(envelopeRaw(t, b), relayHops)), relaySigner), newSessions(), RefusedNested},
		"a MAC within a downcall": {rawSeal(marshal(t, downcallMessage(envelopeRaw(t, b))), supSigner), newSessions(), RefusedNested},
	} {
		if _, err := Unwrap(tt.b, fault.PathDirect, tt.v); RefusalOf(err) != tt.want || IsDamaged(err) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	if _, err := Open(forge(t, b, func(e *lofamov1.Envelope) { e.Session = 3 }), newSessions()); !errors.Is(err, ErrUnknownSession) {
		t.Errorf("unknown session: %v", err)
	}
	if _, err := SealRelayed(b, relayHops, relaySigner); RefusalOf(err) != RefusedNested {
		t.Errorf("relay a MAC: %v", err)
	}
	if _, err := SealDowncall("n0", b, supSigner); RefusalOf(err) != RefusedNested {
		t.Errorf("downcall of a MAC: %v", err)
	}
}

func macSealRaw(payload []byte, session uint64) []byte {
	mac := testKey(session).MAC(payload)
	p := packet{payload: payload, session: session, mac: mac[:]}
	return p.encode()
}

func envelopeRaw(t testing.TB, b []byte) *lofamov1.Envelope {
	t.Helper()
	env := new(lofamov1.Envelope)
	if err := proto.Unmarshal(b, env); err != nil {
		t.Fatal(err)
	}
	return env
}
