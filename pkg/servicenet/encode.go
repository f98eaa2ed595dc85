package servicenet

import (
	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Reports and acks, the two messages of every exchange, are written by hand into the datagram that carries them,
// exactly as a deterministic protobuf encoder writes EncodeReports. A half sends these a few times in a second, and
// by then neither the tables of the protobuf runtime nor fresh memory is in the caches. The runtime encodes all other
// messages.

// beginField starts a field with a length, for which it leaves one byte; endField ends it.
func beginField(b []byte, field protowire.Number) (out []byte, at int) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

// endField fills in the length, and makes room where one byte is not enough.
func endField(b []byte, at int) []byte {
	n := len(b) - at
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		for range more {
			b = append(b, 0)
		}
		copy(b[at+more:], b[at:at+n])
	}
	protowire.AppendVarint(b[:at-1], uint64(n))
	return b
}

func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendFlag(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendUint(b, field, 1)
}

func appendWord(b []byte, field protowire.Number, v uint32) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), v)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendStatus(b []byte, s *lofamov1.DeliveryStatus) []byte {
	b = appendUint(b, 1, uint64(s.GetState()))
	b = appendText(b, 2, s.GetPrimary())
	b = appendText(b, 3, s.GetAlternate())
	b = appendUint(b, 4, uint64(s.GetLogged()))
	b = appendUint(b, 5, uint64(s.GetUnanswered()))
	b = appendUint(b, 6, s.GetOldestNs())
	b = appendUint(b, 7, s.GetMigrations())
	b = appendUint(b, 8, s.GetRetries())
	b = appendUint(b, 9, s.GetShortened())
	for _, r := range s.GetRails() {
		var at int
		b, at = beginField(b, 10)
		b = appendText(b, 1, r.GetName())
		b = appendFlag(b, 2, r.GetDown())
		b = appendUint(b, 3, uint64(r.GetInFlight()))
		b = appendUint(b, 4, r.GetSent())
		b = appendUint(b, 5, r.GetAnswered())
		b = appendUint(b, 6, r.GetRttNs())
		b = endField(b, at)
	}
	b = appendUint(b, 11, s.GetIsolatedNs())
	b = appendText(b, 12, s.GetSpool())
	b = appendUint(b, 13, s.GetViewRevision())
	b = appendUint(b, 14, uint64(s.GetInterest()))
	return appendUint(b, 18, s.GetDenied())
}

// appendAcks writes a Message of acks, which have passed checkAck, and nothing else. The acks may come from a leader
// of a later version: its additional fields are kept.
func appendAcks(b []byte, acks []*lofamov1.Ack) []byte {
	for _, a := range acks {
		var at, seqs int
		b, at = beginField(b, 15)
		b = appendUint(b, 1, uint64(a.GetStatus()))
		b = appendText(b, 2, a.GetNode())
		b = appendUint(b, 3, uint64(a.GetHalf()))
		b = appendUint(b, 4, a.GetEpoch())
		b, seqs = beginField(b, 5)
		for _, s := range a.GetSeqs() {
			b = protowire.AppendVarint(b, s)
		}
		b = endField(b, seqs)
		b = appendText(b, 6, a.GetLeader())
		b = appendUint(b, 7, a.GetHighestEpoch())
		b = append(b, a.ProtoReflect().GetUnknown()...)
		b = endField(b, at)
	}
	return b
}
