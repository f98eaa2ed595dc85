package servicenet

import (
	"encoding/binary"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet/checksum"
)

// Field numbers of lofamo.v1.Envelope.
const (
	fieldPayload protowire.Number = iota + 1
	fieldCertificate
	fieldSignature
	fieldSession
	fieldMAC
	fieldAlgorithm
	fieldChecksum
)

const signatureSize = 64 // Ed25519

// packet is an Envelope whose parts still lie where they came from: written and read by hand, so that
// checksum and copy are one pass over the bytes (seed 002 §5.1), and nothing is allocated for what is
// refused.
type packet struct {
	payload, certificate, signature, mac []byte
	session                              uint64
	algorithm                            lofamov1.Checksum
	sum                                  uint64
}

// encode marshals the packet, exactly as a deterministic protobuf encoder would, and fills in its sum.
func (p *packet) encode() []byte {
	size := 0
	for _, part := range [...][]byte{p.payload, p.certificate, p.signature, p.mac} {
		if len(part) > 0 {
			size += 1 + protowire.SizeBytes(len(part))
		}
	}
	// Session, algorithm and sum take one byte each beside their values.
	b := make([]byte, 0, size+9+1+protowire.SizeVarint(uint64(p.algorithm))+9)
	sum := checksum.New(p.algorithm)
	_, _ = sum.Write(p.sessionBytes(new([8]byte)))
	b = appendCopy(b, fieldPayload, p.payload, sum)
	b = appendCopy(b, fieldCertificate, p.certificate, sum)
	b = appendCopy(b, fieldSignature, p.signature, sum)
	b = appendFixed(b, fieldSession, p.session)
	b = appendCopy(b, fieldMAC, p.mac, sum)
	if p.algorithm != lofamov1.Checksum_CHECKSUM_NONE {
		b = protowire.AppendTag(b, fieldAlgorithm, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(p.algorithm))
	}
	p.sum = sum.Sum64()
	return appendFixed(b, fieldChecksum, p.sum)
}

func appendCopy(b []byte, field protowire.Number, src []byte, sum *checksum.Digest) []byte {
	if len(src) == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(src)))
	n := len(b)
	b = b[:n+len(src)]
	sum.Copy(b[n:], src)
	return b
}

func appendFixed(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), v)
}

// sessionBytes is the session as the sum and the MAC see it; without a session it is nothing.
func (p *packet) sessionBytes(buf *[8]byte) []byte {
	if p.session == 0 {
		return nil
	}
	binary.BigEndian.PutUint64(buf[:], p.session)
	return buf[:]
}

// parsePacket reads an Envelope. The parts are the caller's bytes. As protobuf has it, of a field
// that comes twice the last one counts, and what is not known is passed over.
func parsePacket(b []byte) (packet, error) {
	var p packet
	if len(b) > MaxDatagram {
		return p, refuse(RefusedTooLong, "envelope: given %d bytes: want at most %d", len(b), MaxDatagram)
	}
	for rest := b; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || field > protowire.MaxValidNumber {
			return p, refuseDamaged(RefusedMalformed, "envelope of %d bytes: tag at %d", len(b), len(b)-len(rest))
		}
		rest = rest[n:]
		if n = p.parseField(field, kind, rest); n < 0 {
			return p, refuseDamaged(RefusedMalformed, "envelope of %d bytes: field %d at %d: %w", len(b), field, len(b)-len(rest), protowire.ParseError(n))
		}
		rest = rest[n:]
	}
	return p, nil
}

// parseField returns the length of the field's value, and less than 0 for none that is right.
func (p *packet) parseField(field protowire.Number, kind protowire.Type, b []byte) (n int) {
	switch {
	case field == fieldPayload && kind == protowire.BytesType:
		p.payload, n = protowire.ConsumeBytes(b)
	case field == fieldCertificate && kind == protowire.BytesType:
		p.certificate, n = protowire.ConsumeBytes(b)
	case field == fieldSignature && kind == protowire.BytesType:
		p.signature, n = protowire.ConsumeBytes(b)
	case field == fieldMAC && kind == protowire.BytesType:
		p.mac, n = protowire.ConsumeBytes(b)
	case field == fieldSession && kind == protowire.Fixed64Type:
		p.session, n = protowire.ConsumeFixed64(b)
	case field == fieldChecksum && kind == protowire.Fixed64Type:
		p.sum, n = protowire.ConsumeFixed64(b)
	case field == fieldAlgorithm && kind == protowire.VarintType:
		var v uint64
		v, n = protowire.ConsumeVarint(b)
		p.algorithm = lofamov1.Checksum(v)
	default:
		n = protowire.ConsumeFieldValue(field, kind, b)
	}
	return n
}

// packetOf is the packet of an envelope that stood within another one.
func packetOf(env *lofamov1.Envelope) packet {
	return packet{
		payload: env.GetPayload(), certificate: env.GetCertificate(), signature: env.GetSignature(), mac: env.GetMac(),
		session: env.GetSession(), algorithm: env.GetChecksumAlgorithm(), sum: env.GetChecksum(),
	}
}

// checkSum is the first check of all: what it refuses was damaged on the way, or is of a version
// whose algorithm is not known here, and says nothing about anybody.
func (p *packet) checkSum() error {
	if !checksum.Known(p.algorithm) {
		return refuseDamaged(RefusedChecksum, "envelope.checksum_algorithm: given %d: want one of the %d that are known", p.algorithm, len(checksum.Algorithms()))
	}
	got := checksum.Sum(p.algorithm, p.sessionBytes(new([8]byte)), p.payload, p.certificate, p.signature, p.mac)
	if got != p.sum { // with NONE both are 0
		return refuseDamaged(RefusedChecksum, "envelope.checksum: given %s %#x: the bytes have %#x", checksum.Name(p.algorithm), p.sum, got)
	}
	return nil
}

// checkParts asks for a payload with either certificate and signature or session and MAC.
func (p *packet) checkParts() error {
	signed := len(p.certificate) > 0 || len(p.signature) > 0
	switch {
	case len(p.payload) == 0:
		return p.malformed("payload missing")
	case p.session == 0 && len(p.mac) > 0:
		return p.malformed("session missing")
	case p.session == 0 && len(p.certificate) == 0:
		return p.malformed("certificate and session missing")
	case p.session != 0 && signed:
		return p.malformed("both a session and a certificate or signature")
	}
	return nil
}

// malformed refuses what lacks a part. Where a checksum vouches for it, it was sent like that.
func (p *packet) malformed(what string) error {
	return &RefusedError{
		Refusal: RefusedMalformed, Err: errors.New("envelope: " + what),
		damaged: p.algorithm == lofamov1.Checksum_CHECKSUM_NONE,
	}
}

// prove verifies the signature or the MAC.
func (p *packet) prove(v Verifier) (role, name string, err error) {
	if p.session != 0 {
		return proveMAC(p, v)
	}
	if n := len(p.signature); n != signatureSize {
		return "", "", refuse(RefusedSignature, "signature: given %d bytes: want %d", n, signatureSize)
	}
	if role, name, err = v.VerifyName(p.certificate, p.payload, p.signature); err != nil {
		return "", "", refuse(RefusedSignature, "%w", err)
	}
	return role, name, nil
}
