package servicenet

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// AgreeKey returns the secret of two X25519 public keys that were exchanged in signed messages: for the sessions whose
// MAC may stand for a signature, and for the chunks of a bulk transfer. It proves no identity: the signatures around the
// exchanged keys do. A key is used for one exchange only.
//
// The secret is HKDF-SHA-256 over the X25519 result, with no salt. The label names the
// purpose of the secret, so that no two uses share one; the context is both ends' knowledge of this exchange, in the
// same order. Both public keys are always included, in an order that does not depend on the end.
//
// A peer's key of the wrong length, or one that gives the all-zero result with any private key (RFC 7748 §6.1), is
// refused.
func AgreeKey(private *ecdh.PrivateKey, peer []byte, label string, context ...[]byte) ([KeySize]byte, error) {
	var secret [KeySize]byte
	if private == nil || private.Curve() != ecdh.X25519() {
		return secret, errors.New("agree on a key: private key: want one of X25519")
	}
	if label == "" {
		return secret, errors.New("agree on a key: label: given nothing: want the purpose")
	}
	if len(peer) != KeySize {
		return secret, fmt.Errorf("agree on a key: peer's key: given %d bytes: want %d", len(peer), KeySize)
	}
	public, err := ecdh.X25519().NewPublicKey(peer)
	if err != nil {
		return secret, fmt.Errorf("agree on a key: peer's key: %w", err)
	}
	shared, err := private.ECDH(public)
	if err != nil {
		return secret, fmt.Errorf("agree on a key: peer's key: %w", err)
	}
	out, err := hkdf.Key(sha256.New, shared, nil, keyInfo(private.PublicKey().Bytes(), peer, label, context), KeySize)
	if err != nil {
		return secret, fmt.Errorf("agree on a key: %w", err)
	}
	copy(secret[:], out)
	return secret, nil
}

// keyInfo joins the parts that the secret is bound to. The length of each part precedes it, so that no two lists give
// the same bytes.
func keyInfo(mine, theirs []byte, label string, context [][]byte) string {
	first, second := mine, theirs
	if slices.Compare(first, second) > 0 {
		first, second = second, first
	}
	var out []byte
	for _, p := range append([][]byte{[]byte(label), first, second}, context...) {
		out = binary.BigEndian.AppendUint32(out, uint32(len(p)))
		out = append(out, p...)
	}
	return string(out)
}
