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
	RefusedSignature                         // certificate or signature not good
	RefusedRole                              // the signer's role may not send this message
	RefusedOrigin                            // the signer is not who the message says
	RefusedField                             // a field outside its allowed range
	RefusedUnknownMessage                    // a message body of a later version
	RefusedNested                            // a wrapper within a wrapper, or around the wrong message
)

// NumRefusals bounds Refusal values from above, for arrays of counters.
const NumRefusals = int(RefusedNested) + 1

var refusalNames = [NumRefusals]string{"", "too-long", "malformed", "signature", "role", "origin", "field",
	"unknown-message", "nested"}

func (r Refusal) String() string {
	if r == 0 || int(r) >= NumRefusals {
		return fmt.Sprintf("Refusal(%d)", uint8(r))
	}
	return refusalNames[r]
}

// ErrUnknownMessage is in the chain of the error for a message whose body this version does not
// know: it may be right and merely newer, so it is counted apart from malformed ones.
var ErrUnknownMessage = errors.New("unknown message body")

// RefusedError is the error of every refusal.
type RefusedError struct {
	Refusal Refusal
	Err     error
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

func refuse(r Refusal, format string, args ...any) error {
	return &RefusedError{Refusal: r, Err: fmt.Errorf(format, args...)}
}
