package storage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

func TestEpochGrowsWithEachStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.epoch")
	first, garbled, err := NextEpoch(path)
	if first < 1 || first > maxFirst || garbled != nil || err != nil {
		t.Fatalf("epoch %d, %v, %v; want one from 1 to %d", first, garbled, err, maxFirst)
	}
	for want := first + 1; want < first+4; want++ {
		if e, garbled, err := NextEpoch(path); e != want || garbled != nil || err != nil {
			t.Fatalf("epoch %d, %v, %v; want %d", e, garbled, err, want)
		}
	}
	if err := SetEpoch(path, 41); err != nil {
		t.Fatal(err)
	}
	if e, _, err := NextEpoch(path); e != 42 || err != nil {
		t.Errorf("epoch %d, %v; want 42", e, err)
	}
}

func TestGarbledEpochIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.epoch")
	for _, content := range []string{"", "x", "-3", "7 8", "99999999999999999999999", "\x00\x00"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, garbled, err := NextEpoch(path); e < 1 || e > maxFirst || garbled == nil || err != nil {
			t.Errorf("file %q: epoch %d, %v, %v; want one from 1 to %d and a warning", content, e, garbled, err, maxFirst)
		}
	}
}

// A half whose file is lost does not start at its first epoch again: the supervisors would mistake its new reports
// for copies of the old ones.
func TestLostEpochIsNotBegunAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.epoch")
	seen := map[fault.Epoch]int{}
	for range 100 {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		e, _, err := NextEpoch(path)
		if err != nil {
			t.Fatal(err)
		}
		seen[e]++
	}
	if len(seen) < 90 {
		t.Errorf("%d different epochs in 100 losses", len(seen))
	}
}

func TestUnwritableEpochFails(t *testing.T) {
	if _, _, err := NextEpoch(filepath.Join(t.TempDir(), "absent", "host.epoch")); err == nil {
		t.Error("no error in a directory that is not there")
	}
	dir := t.TempDir()
	if _, _, err := NextEpoch(dir); err == nil {
		t.Error("no error for a directory in the file's place")
	}
}

// The target of a symbolic link in the place of the new file stays unchanged.
func TestLinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "host.epoch"), filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path+".new"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := NextEpoch(path); err == nil {
		t.Error("a link was followed")
	}
	if b, err := os.ReadFile(victim); string(b) != "precious" {
		t.Errorf("what it points to now holds %q, %v", b, err)
	}
}

// A half starts on a full disk too, if it has started there before.
func TestEpochIsStoredOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 16<<10)
	path := filepath.Join(dir, "host.epoch")
	if err := SetEpoch(path, 998); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	for want := fault.Epoch(999); want < 1003; want++ { // one digit more on the way
		if e, garbled, err := NextEpoch(path); e != want || garbled != nil || err != nil {
			t.Fatalf("epoch %d, %v, %v; want %d", e, garbled, err, want)
		}
	}
	if _, err := os.Lstat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that did not fit is left: %v", err)
	}
	if _, _, err := NextEpoch(filepath.Join(dir, "dnp.epoch")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a first start without room: %v", err)
	}
}
