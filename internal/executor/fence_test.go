package executor

import (
	"errors"
	"testing"
)

func TestFenced(t *testing.T) {
	if err := Fenced(t.Context()); err != nil {
		t.Errorf("without a fence: %v", err)
	}
	var stale error
	ctx := WithFence(t.Context(), func() error { return stale })
	if err := Fenced(ctx); err != nil {
		t.Error(err)
	}
	stale = errors.New("token 6 has been seen")
	if err := Fenced(ctx); !errors.Is(err, stale) {
		t.Errorf("%v, want %v", err, stale)
	}
}
