package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// TestRefusalIsReportedBeforeTimeout: if time runs out before the last try is sent or answered, the attempt reports the error of the try
// before.
func TestRefusalIsReportedBeforeTimeout(t *testing.T) {
	refused, late := errors.New("connection refused"), unpaced{context.DeadlineExceeded}
	if got := cause(t.Context(), late, refused); !errors.Is(got, refused) {
		t.Errorf("%v: want %v", got, refused)
	}
	if got := cause(t.Context(), late, nil); !errors.Is(got, errNotSent) || !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("%v: want %v", got, late)
	}
	if got := cause(t.Context(), refused, late); !errors.Is(got, refused) {
		t.Errorf("%v: want %v", got, refused)
	}
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	cut, slow := fmt.Errorf("get: %w", context.DeadlineExceeded), errors.New("no answer within 5s")
	if got := cause(over, cut, refused); !errors.Is(got, refused) {
		t.Errorf("the end of the attempt cut the answer off: %v: want %v", got, refused)
	}
	if got := cause(over, refused, slow); !errors.Is(got, refused) {
		t.Errorf("the attempt ended after an answer: %v: want %v", got, refused)
	}
	if got := cause(t.Context(), cut, refused); !errors.Is(got, cut) {
		t.Errorf("one request ended, and not the attempt: %v: want %v", got, cut)
	}
}
