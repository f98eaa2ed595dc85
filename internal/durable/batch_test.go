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

// contents returns the files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

func TestBatchKeepsOldFilesUntilCommit(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := WriteFile(filepath.Join(dir, name), []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	killed := Batch{} // as by a signal before Commit
	if err := killed.Add(filepath.Join(dir, "a"), []byte("longer than the next"), 0o644, -1, -1); err != nil {
		t.Fatal(err)
	}
	var b Batch
	for _, name := range []string{"a", "b", "c"} {
		if err := b.Add(filepath.Join(dir, name), []byte("new"), 0o600, os.Getuid(), os.Getgid()); err != nil {
			t.Fatal(err)
		}
	}
	if got := contents(t, dir); got["a"] != "old" || got["b"] != "old" || got["c"] != "" {
		t.Errorf("before Commit: %v", got)
	}
	if err := errors.Join(b.Commit(), b.Discard()); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, dir); len(got) != 3 || got["a"] != "new" || got["b"] != "new" || got["c"] != "new" {
		t.Errorf("after Commit: %v", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v: want 0600", info.Mode(), err)
	}
}

func TestDiscardedBatchLeavesOldFilesAlone(t *testing.T) {
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 16<<10)
	if err := WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b Batch
	if err := b.Add(filepath.Join(dir, "a"), []byte("new"), 0o600, -1, -1); err != nil {
		t.Fatal(err)
	}
	if err := b.Add(filepath.Join(dir, "b"), bytes.Repeat([]byte("new "), 8<<10), 0o600, -1, -1); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without room: %v: want %v", err, unix.ENOSPC)
	}
	if err := b.Discard(); err != nil {
		t.Error(err)
	}
	if got := contents(t, dir); len(got) != 1 || got["a"] != "old" {
		t.Errorf("after Discard: %v: want the old file alone", got)
	}
}

func TestFailedRenameLeavesNoNewFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	var b Batch
	if err := b.Add(path, []byte("new"), 0o600, -1, -1); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err == nil {
		t.Error("a directory was replaced")
	}
	if err := b.Discard(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%d files left, %v: want the directory alone", len(left), err)
	}
}
