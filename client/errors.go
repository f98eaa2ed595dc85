package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrStop ends a watch from its handler. Watch then returns nil.
	ErrStop = errors.New("stop the watch")
	// ErrCompacted reports that the supervisors no longer keep the changes after the wanted revision. List again and
	// watch from the revision of the list.
	ErrCompacted = errors.New("history compacted")
)

// NoAnswerError reports that no supervisor answered. errors.As and errors.Is also find the errors of the single
// attempts.
type NoAnswerError struct {
	Tried []Try // in order, of the last round
}

// Try is an attempt at one supervisor that failed.
type Try struct {
	Target string // host:port as configured
	Err    error
}

func (e *NoAnswerError) Error() string {
	var b strings.Builder
	b.WriteString("no supervisor answered; tried ")
	for i, t := range e.Tried {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%s)", t.Target, reason(t.Err))
	}
	return b.String()
}

// Unwrap returns the errors of the attempts.
func (e *NoAnswerError) Unwrap() []error {
	out := make([]error, len(e.Tried))
	for i, t := range e.Tried {
		out[i] = t.Err
	}
	return out
}

// UnknownOutcomeError reports that a call failed with UNAVAILABLE, but that the supervisor may have made the change. For example, the
// connection ended before the answer. Read the state, and repeat the change only if it is missing. errors.As and errors.Is also find the
// error of the attempt.
type UnknownOutcomeError struct {
	Try
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("%s did not confirm the change (%s): it may have been made: read the state before you try again", e.Target,
		reason(e.Err))
}

// Unwrap returns the error of the attempt.
func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// reason shortens an error of gRPC to the words that help a person.
func reason(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	msg := st.Message()
	if i := strings.LastIndex(msg, "transport: "); i >= 0 {
		msg = strings.Trim(msg[i+len("transport: "):], `"`)
	}
	if st.Code() == codes.DeadlineExceeded && strings.Contains(msg, context.DeadlineExceeded.Error()) {
		return "no answer in time" // other messages are the supervisor's own
	}
	return msg
}

// otherMayAnswer reports whether another replica may answer after this error.
func otherMayAnswer(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown, codes.Aborted, codes.Unimplemented, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

// finalError is an error that ends all attempts: the call had effects, or the caller ended it.
type finalError struct{ err error }

func (e finalError) Error() string { return reason(e.err) }
func (e finalError) Unwrap() error { return e.err }

// compactedError has the supervisor's own words.
type compactedError struct {
	words string
	cause error // with its gRPC code; may be nil
}

func (e compactedError) Error() string        { return e.words }
func (e compactedError) Unwrap() error        { return e.cause }
func (e compactedError) Is(target error) bool { return target == ErrCompacted }
