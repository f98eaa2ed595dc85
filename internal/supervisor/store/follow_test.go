package store

import (
	"context"
	"errors"
	"testing"
)

// TestAnnouncedChangeIsReadUntilItShows: a change that etcd has announced is read again until the copy shows it. Without that, a change was
// missed for good if no other followed.
func TestAnnouncedChangeIsReadUntilItShows(t *testing.T) {
	revisions := []uint64{4, 4, 5, 6}
	reads := 0
	read := func() (uint64, error) {
		reads++
		return revisions[reads-1], nil
	}
	if err := readUntil(t.Context(), 5, read); err != nil || reads != 3 {
		t.Errorf("%d reads, %v: want 3", reads, err)
	}
	if err := readUntil(t.Context(), 0, read); err != nil || reads != 4 { // for a response without events
		t.Errorf("%d reads, %v: want 4", reads, err)
	}
	broken := errors.New("no store")
	if err := readUntil(t.Context(), 5, func() (uint64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := readUntil(ctx, 5, func() (uint64, error) { cancel(); return 4, nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
