package torus

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// KeySize is the size of a session key: AES-128.
const KeySize = 16

// PreviousSessionLife is how long frames of the previous session are still opened: those in flight when it was
// replaced.
const PreviousSessionLife = time.Second

const nonceSize = 12

// ErrSequenceReused is Seal's refusal to use a sequence number that is not above the last one:
// with GMAC, one nonce used twice gives the key away.
var ErrSequenceReused = errors.New("sequence number is not above the last one sealed in this session")

// Session holds the keys of one handshake, one for each way. Seal may be called by one goroutine
// and Open by one other; neither allocates.
type Session struct {
	id       uint32
	tx, rx   cipher.AEAD
	lastSeq  uint64 // highest sealed
	txN, rxN [nonceSize]byte

	txKey, rxKey [KeySize]byte
}

// NewSession returns the session with an id. Both ends derive it from the handshake together with the keys: the txKey
// of one end is the rxKey of the other. A session id is not 0.
func NewSession(id uint32, txKey, rxKey [KeySize]byte) *Session {
	return &Session{id: id, tx: gmac(txKey), rx: gmac(rxKey), txKey: txKey, rxKey: rxKey}
}

// gmac returns AES-GCM, used without plaintext. It cannot fail for a key of this size.
func gmac(key [KeySize]byte) cipher.AEAD {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic("torus: " + err.Error())
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("torus: " + err.Error())
	}
	return aead
}

// ID returns the session's id.
func (s *Session) ID() uint32 { return s.id }

func nonce(n *[nonceSize]byte, session uint32, seq uint64) []byte {
	binary.BigEndian.PutUint32(n[:], session)
	binary.BigEndian.PutUint64(n[4:], seq)
	return n[:]
}

// Seal implements Sealer.
func (s *Session) Seal(dst []byte, session uint32, seq uint64, data []byte) ([]byte, error) {
	if session != s.id {
		return dst, fmt.Errorf("seal for session %08x with the key of %08x: %w", session, s.id, ErrSession)
	}
	if seq <= s.lastSeq {
		return dst, fmt.Errorf("seal %d after %d: %w", seq, s.lastSeq, ErrSequenceReused)
	}
	s.lastSeq = seq
	return s.tx.Seal(dst, nonce(&s.txN, session, seq), nil, data), nil
}

// Open implements Opener.
func (s *Session) Open(session uint32, seq uint64, data, mac []byte) error {
	if session != s.id {
		return ErrSession
	}
	if _, err := s.rx.Open(nil, nonce(&s.rxN, session, seq), mac, data); err != nil {
		return ErrMAC
	}
	return nil
}

// Keyring holds a link's current session and, for a while, the one before. It seals with the
// current one. The zero Keyring has no session and refuses everything with ErrSession. It belongs
// to the goroutine that owns the link machine.
type Keyring struct {
	current, previous *Session
	replaced          time.Time // when current took previous's place
}

// Add makes s the current session.
func (k *Keyring) Add(now time.Time, s *Session) {
	k.previous, k.current, k.replaced = k.current, s, now
}

// Expire forgets the previous session when its time is over. Call it with the link's tick.
func (k *Keyring) Expire(now time.Time) {
	if k.previous != nil && now.Sub(k.replaced) >= PreviousSessionLife {
		k.previous = nil
	}
}

// Confirm forgets the previous session: a frame of the current one has arrived.
func (k *Keyring) Confirm(session uint32) {
	if k.current != nil && k.current.id == session {
		k.previous = nil
	}
}

// Current returns the id of the session to send with, and false before the first handshake.
func (k *Keyring) Current() (uint32, bool) {
	if k.current == nil {
		return 0, false
	}
	return k.current.id, true
}

// Seal implements Sealer.
func (k *Keyring) Seal(dst []byte, session uint32, seq uint64, data []byte) ([]byte, error) {
	if k.current == nil {
		return dst, fmt.Errorf("seal before the first handshake: %w", ErrSession)
	}
	return k.current.Seal(dst, session, seq, data)
}

// Open implements Opener.
func (k *Keyring) Open(session uint32, seq uint64, data, mac []byte) error {
	for _, s := range [2]*Session{k.current, k.previous} {
		if s != nil && s.id == session {
			return s.Open(session, seq, data, mac)
		}
	}
	return ErrSession
}
