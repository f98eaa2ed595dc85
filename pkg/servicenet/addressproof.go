package servicenet

import "bytes"

// Sizes of an address challenge, in bytes.
const (
	ListeningSize    = 16
	AddressProofSize = 32
)

// addressMark begins an address challenge. No envelope begins so.
var addressMark = [...]byte{0, 'L', 'F', 'A'}

// AppendAddressChallenge appends the datagram by which a supervisor challenges the owner of a service address:
//
//	mark (4) listening (16) proof (32)
//
// The machine that receives it returns the proof to the supervisor in its enrolment request. listening is from that request, so that
// the machine recognises the answer to its own. It must have ListeningSize bytes, and proof AddressProofSize.
func AppendAddressChallenge(b, listening, proof []byte) []byte {
	return append(append(append(b, addressMark[:]...), listening...), proof...)
}

// AddressProof returns the proof in an address challenge for a listener; false: the datagram is none.
func AddressProof(b, listening []byte) (proof []byte, ok bool) {
	proof, ok = bytes.CutPrefix(b, append(addressMark[:], listening...))
	return proof, ok && len(proof) == AddressProofSize
}
