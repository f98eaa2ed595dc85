package durable

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLockWaitsForItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	over, end := context.WithCancel(t.Context())
	end()
	first, second := open(), open()
	if err := Lock(over, first, time.Hour); err != nil {
		t.Fatalf("a free lock, without time to wait: %v", err)
	}
	if err := Lock(over, second, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a held lock, without time to wait: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = first.Close() })
	if err := Lock(t.Context(), second, time.Millisecond); err != nil {
		t.Errorf("a lock that becomes free: %v", err)
	}
}

func TestLockReportsOtherErrorsAtOnce(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := Lock(t.Context(), f, time.Hour); !errors.Is(err, unix.EBADF) {
		t.Errorf("a closed file: %v", err)
	}
}
