package kubernetes

import (
	"context"
	"errors"
	"testing"
)

// TestRefusalIsReportedBeforeTimeout: the last try of an attempt may find no time to send its request.
func TestRefusalIsReportedBeforeTimeout(t *testing.T) {
	refused, late := errors.New("connection refused"), unpaced{context.DeadlineExceeded}
	if got := cause(late, refused); !errors.Is(got, refused) {
		t.Errorf("%v: want %v", got, refused)
	}
	if got := cause(late, nil); !errors.Is(got, errNotSent) || !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("%v: want %v", got, late)
	}
	if got := cause(refused, late); !errors.Is(got, refused) {
		t.Errorf("%v: want %v", got, refused)
	}
}
