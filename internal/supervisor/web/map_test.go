package web

import (
	"context"
	"errors"
	"testing"
)

// TestSnapshotIsSharedAndNeverOlder: many callers share one answer, but no caller gets one that is older than its own position, or an
// error of another caller's read.
func TestSnapshotIsSharedAndNeverOlder(t *testing.T) {
	var c snapshot
	reads, fails := 0, error(nil)
	ask := func(after uint64) string {
		t.Helper()
		b, err := c.bytes(t.Context(), after, func(context.Context) (uint64, []byte, error) {
			reads++
			return uint64(reads) * 10, []byte{'0' + byte(reads)}, fails
		})
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	for i, q := range []struct {
		after uint64
		fails error
		want  string
	}{
		{0, nil, "1"}, {10, nil, "1"}, {11, nil, "2"}, {10, nil, "2"}, {21, errors.New("no room"), "no room"}, {20, nil, "2"}, {21, nil, "4"},
	} {
		if fails = q.fails; ask(q.after) != q.want {
			t.Errorf("%d: after %d: want %s", i, q.after, q.want)
		}
	}
	c.at = c.at.Add(-snapshotAge)
	if got := ask(0); got != "5" {
		t.Errorf("%s: want an old one to be read anew", got)
	}
}
