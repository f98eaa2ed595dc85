package servicenet

import (
	"errors"
	"fmt"
)

// Refusal says why a datagram was not accepted; one counter each.
type Refusal uint8

// The refusals.
const (
	RefusedTooLong        Refusal = iota + 1 // longer than MaxDatagram
	RefusedMalformed                         // not a protobuf of the expected type
	RefusedSignature                         // certificate, signature or MAC not good
	RefusedRole                              // the signer's role may not send this message, or not under a MAC
	RefusedOrigin                            // the signer is not who the message says
	RefusedField                             // a field outside its allowed range
	RefusedUnknownMessage                    // a message body of a later version
	RefusedNested                            // a wrapper within a wrapper, or around the wrong message
	RefusedChecksum                          // damaged on the way: only the path is at fault
	RefusedSession                           // a MAC of a session that is not known, as after a restart
	RefusedRevoked                           // the signer's certificate is revoked
)

// NumRefusals bounds Refusal values from above, for arrays of counters.
const NumRefusals = int(RefusedRevoked) + 1

var refusalNames = [NumRefusals]string{"", "too-long", "malformed", "signature", "role", "origin", "field",
	"unknown-message", "nested", "checksum", "session", "revoked"}

func (r Refusal) String() string {
	if r == 0 || int(r) >= NumRefusals {
		return fmt.Sprintf("Refusal(%d)", uint8(r))
	}
	return refusalNames[r]
}

// errUnknownMessage is in the chain of the error for a message whose body this version does not know: it may be valid
// and merely newer, so it is counted separately from malformed ones.
var errUnknownMessage = errors.New("unknown message body")

// RefusedError is the error of every refusal.
type RefusedError struct {
	Refusal Refusal
	Err     error
	damaged bool
}

func (e *RefusedError) Error() string { return e.Refusal.String() + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// RefusalOf returns the class of a refusal, and 0 for any other error and for nil.
func RefusalOf(err error) Refusal {
	var r *RefusedError
	if errors.As(err, &r) {
		return r.Refusal
	}
	return 0
}

// IsDamaged reports whether a datagram was refused because bytes changed on the way: its checksum is wrong, or the
// envelope does not parse. The receiver should request it again (Again); it is never an attack.
func IsDamaged(err error) bool {
	var r *RefusedError
	return errors.As(err, &r) && r.damaged
}

func refuse(r Refusal, format string, args ...any) error {
	return &RefusedError{Refusal: r, Err: fmt.Errorf(format, args...)}
}

func refuseDamaged(r Refusal, format string, args ...any) error {
	return &RefusedError{Refusal: r, Err: fmt.Errorf(format, args...), damaged: true}
}
