package ingest

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Field numbers on the path from an envelope to its message's body.
var (
	payloadField = fieldOf((*lofamov1.Envelope)(nil).ProtoReflect(), "payload")
	macField     = fieldOf((*lofamov1.Envelope)(nil).ProtoReflect(), "mac")
	nonceField   = fieldOf((*lofamov1.Answer)(nil).ProtoReflect(), "nonce")
	answerField  = fieldOf((*lofamov1.Message)(nil).ProtoReflect(), "answer")
	relayedField = fieldOf((*lofamov1.Message)(nil).ProtoReflect(), "relayed")
	innerField   = fieldOf((*lofamov1.Relayed)(nil).ProtoReflect(), "inner")

	challengeField = fieldOf((*lofamov1.Message)(nil).ProtoReflect(), "challenge")
	askedField     = fieldOf((*lofamov1.Challenge)(nil).ProtoReflect(), "nonce")
)

func fieldOf(m protoreflect.Message, name protoreflect.Name) protowire.Number {
	return m.Descriptor().Fields().ByName(name).Number()
}

// claimedNonce returns the nonce of the answer that an unverified envelope claims to contain, direct or relayed,
// or nil if there is none. The claim only decides the place in the queue, and only while the answer to that
// challenge is pending.
func claimedNonce(envelope []byte) []byte {
	msg := field(envelope, payloadField)
	if answer := field(msg, answerField); answer != nil {
		return field(answer, nonceField)
	}
	inner := field(field(msg, relayedField), innerField)
	return field(field(field(inner, payloadField), answerField), nonceField)
}

// claimsMAC reports whether an unverified envelope claims to be under a session's MAC. Such an envelope needs no signature
// check: with a signature beside the MAC it is refused before any check, and so are relayed messages under a MAC.
func claimsMAC(envelope []byte) bool { return field(envelope, macField) != nil }

// field returns the first length-delimited field of that number. It returns nil if there is none before the first
// parse error.
func field(b []byte, want protowire.Number) []byte {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil
		}
		b = b[n:]
		if num == want && typ == protowire.BytesType {
			if v, n := protowire.ConsumeBytes(b); n >= 0 {
				return v[:len(v):len(v)]
			}
			return nil
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return nil
		}
		b = b[n:]
	}
	return nil
}
