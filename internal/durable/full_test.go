package durable

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestReplaceOnFullDisk: the old file stays whole if the new content does not fit, also into the blocks of the old one. Content that
// fits there is written.
func TestReplaceOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 16<<10)
	path := filepath.Join(dir, "file")
	old := bytes.Repeat([]byte("old "), 50)
	if err := Replace(path, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	read := func() []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := Replace(path, bytes.Repeat([]byte("new "), 3000)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a file of three blocks: %v: want %v", err, unix.ENOSPC)
	}
	if b := read(); !bytes.Equal(b, old) {
		t.Errorf("the old file of %d bytes now has %d", len(old), len(b))
	}
	for _, n := range []int{1000, 10} { // longer and shorter, in the same block
		want := bytes.Repeat([]byte("new "), n/4)
		if err := Replace(path, want); err != nil || !bytes.Equal(read(), want) {
			t.Errorf("a file that fits: %d bytes, %v: want %d", len(read()), err, len(want))
		}
	}
}

// TestReserveMakesRoom: a reserved file can be replaced on a full disk, and a reservation does not change a content.
func TestReserveMakesRoom(t *testing.T) {
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 16<<10)
	path := filepath.Join(dir, "file")
	if err := Reserve(path, 1000); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || len(b) != 0 {
		t.Errorf("a reserved file has %d bytes, %v: want none", len(b), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	want := bytes.Repeat([]byte("new "), 250)
	if err := errors.Join(Replace(path, want), Reserve(path, 1000)); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, want) {
		t.Errorf("%d bytes, %v: want the %d that were written", len(b), err, len(want))
	}
}
