package servicenet

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// MACSize is the length of a MAC on the wire, in bytes: the first half of an HMAC-SHA-256.
const MACSize = 16

// macPrefix keeps these MACs apart from all others that a key might ever serve for.
const macPrefix = "lofamo.v1 session\x00"

// ErrUnknownSession is the error of a SessionVerifier for a session that it does not have: after a restart that is no
// forgery, and the half requests the path again.
var ErrUnknownSession = errors.New("unknown session")

// SessionVerifier is an optional extension of a Verifier. Without it, every MAC is refused.
type SessionVerifier interface {
	// VerifyMAC returns the other end of the session, when the MAC is good. It keeps none of the slices.
	VerifyMAC(session uint64, payload, mac []byte) (role, name string, err error)
}

// SessionKey proves messages between two parties that exchanged PathRequest and PathReply. Both ends have the same
// key, so a message thrown back at its sender has a good MAC; the check of the role refuses it, since no message is
// allowed to both. It does not change, and many goroutines may use it at once.
type SessionKey struct {
	id     uint64
	key    [32]byte
	prefix [len(macPrefix) + 8]byte // and the session
}

// NewSession makes the key of a session. The id is not 0.
func NewSession(id uint64, key [32]byte) *SessionKey {
	k := &SessionKey{id: id, key: key}
	n := copy(k.prefix[:], macPrefix)
	binary.BigEndian.PutUint64(k.prefix[n:], id)
	return k
}

// ID returns the session's name.
func (k *SessionKey) ID() uint64 { return k.id }

// MAC returns the MAC of a payload.
func (k *SessionKey) MAC(payload []byte) [MACSize]byte {
	h := hmac.New(sha256.New, k.key[:])
	h.Write(k.prefix[:])
	h.Write(payload)
	var sum [sha256.Size]byte
	return [MACSize]byte(h.Sum(sum[:0]))
}

// Verify reports whether the MAC is that of the payload, in a time that does not depend on where it differs.
func (k *SessionKey) Verify(payload, mac []byte) bool {
	want := k.MAC(payload)
	return hmac.Equal(want[:], mac)
}

func proveMAC(p *packet, v Verifier) (role, name string, err error) {
	sv, ok := v.(SessionVerifier)
	if !ok {
		return "", "", refuse(RefusedSession, "session %#x: sessions are not accepted here", p.session)
	}
	role, name, err = sv.VerifyMAC(p.session, p.payload, p.mac)
	switch {
	case errors.Is(err, ErrUnknownSession):
		return "", "", refuse(RefusedSession, "session %#x: %w", p.session, err)
	case err != nil:
		return "", "", refuse(RefusedSignature, "%w", err)
	}
	return role, name, nil
}

// checkUnderMAC reports whether a MAC suffices for msg, which has passed checkMessage. It does for digests, which the
// next one replaces, and for messages of a supervisor to one half. A message that others may have to believe, or that
// a key is agreed on with, is signed.
func checkUnderMAC(msg *lofamov1.Message) error {
	switch b := msg.GetBody().(type) {
	case nil, *lofamov1.Message_Again, *lofamov1.Message_Challenge, *lofamov1.Message_Downcall, *lofamov1.Message_FaultUpdate:
		return nil
	case *lofamov1.Message_Reports:
		for i, r := range b.Reports.GetReports() {
			if !r.GetDigest() {
				return refuseUnderMAC(i)
			}
		}
		return nil
	}
	return refuse(RefusedRole, "%T: given under a MAC: want a signature", msg.GetBody())
}

func refuseUnderMAC(i int) error {
	return refuse(RefusedRole, "reports[%d].digest: given false under a MAC: want true, or a signature", i)
}
