package kubernetes

import (
	"context"
	"errors"
	"testing"
)

// TestRefusalIsReportedAndNotTheWantOfTimeAfterIt: the last try of an attempt may find no time to send its request.
func TestRefusalIsReportedAndNotTheWantOfTimeAfterIt(t *testing.T) {
	refused, late := errors.New("connection refused"), unpaced{context.DeadlineExceeded}
	if got := cause(late, refused); got != refused {
		t.Errorf("%v: want %v", got, refused)
	}
	if got := cause(late, nil); got != error(late) || !errors.Is(got, errNotSent) || !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("%v: want %v", got, late)
	}
	if got := cause(refused, late); got != refused {
		t.Errorf("%v: want %v", got, refused)
	}
}
