package servicenet

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
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

// packet is an Envelope whose parts stay in their original buffer. It is written and read by hand: the payload is
// built where it is sent from, without a copy (seed 002 §5.1), and a refused packet costs no allocation.
type packet struct {
	payload, certificate, signature, mac []byte
	session                              uint64
	algorithm                            lofamov1.Checksum
	sum                                  uint64
	// summed is the input of the checksum, at its place in a deterministic encoding; nil: the encoding is not
	// deterministic.
	summed []byte
}

// noSum is the checksum of an envelope that was sealed without one.
const noSum = ^uint64(0)

// appendProof ends the envelope in b, which has the payload, as a deterministic protobuf encoder would,
// and fills in the sum.
func (p *packet) appendProof(b []byte) []byte {
	b = appendBytes(b, fieldCertificate, p.certificate)
	b = appendBytes(b, fieldSignature, p.signature)
	b = appendFixed(b, fieldSession, p.session)
	b = appendBytes(b, fieldMAC, p.mac)
	b = appendAlgorithm(b, p.algorithm)
	p.sum = noSum
	if p.algorithm != lofamov1.Checksum_CHECKSUM_NONE {
		p.sum = ChecksumOf(p.algorithm, b)
	}
	return appendFixed(b, fieldChecksum, p.sum)
}

// computeSum is the sum that appendProof would fill in.
func (p *packet) computeSum() uint64 {
	sum := NewChecksummer(p.algorithm)
	if p.summed != nil {
		_, _ = sum.Write(p.summed) // a digest never fails
		return finishSum(sum)
	}
	return p.computeSumOfParts(sum)
}

func (p *packet) computeSumOfParts(sum *Checksummer) uint64 {
	var buf [20]byte
	add := func(field protowire.Number, part []byte) {
		if len(part) > 0 {
			_, _ = sum.Write(protowire.AppendVarint(protowire.AppendTag(buf[:0], field, protowire.BytesType), uint64(len(part))))
			_, _ = sum.Write(part)
		}
	}
	add(fieldPayload, p.payload)
	add(fieldCertificate, p.certificate)
	add(fieldSignature, p.signature)
	_, _ = sum.Write(appendFixed(buf[:0], fieldSession, p.session))
	add(fieldMAC, p.mac)
	_, _ = sum.Write(appendAlgorithm(buf[:0], p.algorithm))
	return finishSum(sum)
}

func finishSum(sum *Checksummer) uint64 {
	if sum.Algorithm() == lofamov1.Checksum_CHECKSUM_NONE {
		return noSum
	}
	return sum.Sum64()
}

func appendBytes(b []byte, field protowire.Number, src []byte) []byte {
	if len(src) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), src)
}

func appendAlgorithm(b []byte, a lofamov1.Checksum) []byte {
	if a == lofamov1.Checksum_CHECKSUM_NONE {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, fieldAlgorithm, protowire.VarintType), uint64(a))
}

func appendFixed(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), v)
}

// parsePacket reads an Envelope. The parts alias the caller's bytes. As in protobuf, the last occurrence of a field
// counts, and unknown fields are skipped.
func parsePacket(b []byte) (packet, error) {
	var p packet
	if len(b) > MaxDatagram {
		return p, refuse(RefusedTooLong, "envelope: given %d bytes: want at most %d", len(b), MaxDatagram)
	}
	if len(b) == 0 {
		return p, refuseDamaged(RefusedMalformed, "envelope: given 0 bytes: want at least a payload")
	}
	ascending, last := true, protowire.Number(0)
	for rest := b; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || field > protowire.MaxValidNumber {
			return p, refuseDamaged(RefusedMalformed, "envelope of %d bytes: tag at %d", len(b), len(b)-len(rest))
		}
		rest = rest[n:]
		ascending, last = ascending && field > last, field
		if n = p.parseField(field, kind, rest); n < 0 {
			return p, refuseDamaged(RefusedMalformed, "envelope of %d bytes: field %d at %d: %w", len(b), field, len(b)-len(rest),
				protowire.ParseError(n))
		}
		rest = rest[n:]
	}
	if n := p.sizeOfSummed(); ascending && len(b) == n+sizeFixed(p.sum) {
		p.summed = b[:n]
	}
	return p, nil
}

// sizeOfSummed returns the length of the fields before the sum in a minimal encoding.
func (p *packet) sizeOfSummed() int {
	return stringSize(len(p.payload)) + stringSize(len(p.certificate)) + stringSize(len(p.signature)) +
		sizeFixed(p.session) + stringSize(len(p.mac)) + varintSize(uint64(p.algorithm))
}

func sizeFixed(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeFixed64()
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

// checkSum is the first check of all. A message that it refuses was damaged on the way, or is of a version whose
// algorithm is unknown here, and incriminates no sender.
func (p *packet) checkSum() error {
	if !KnownChecksum(p.algorithm) {
		return refuseDamaged(RefusedChecksum, "envelope.checksum_algorithm: given %d: want one of the %d that are known", p.algorithm,
			len(Checksums()))
	}
	if got := p.computeSum(); got != p.sum {
		return refuseDamaged(RefusedChecksum, "envelope.checksum: given %s %#x: want %#x", ChecksumName(p.algorithm), p.sum, got)
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

// malformed refuses an envelope that lacks a part. Where a checksum vouches for it, the sender made it like that.
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
		var revoked interface{ Revoked() bool }
		if errors.As(err, &revoked) && revoked.Revoked() {
			return "", "", refuse(RefusedRevoked, "%w", err)
		}
		return "", "", refuse(RefusedSignature, "%w", err)
	}
	return role, name, nil
}
