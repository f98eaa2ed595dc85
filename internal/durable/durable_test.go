package durable

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFileReplacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, mode := range []os.FileMode{0o600, 0o644, 0o600} {
		if err := WriteFile(path, []byte(mode.String()), mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != mode.String() || info.Mode() != mode {
			t.Errorf("content %q, mode %s: want %s", got, info.Mode(), mode)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("%d files left, %v: want one", len(left), err)
	}
}

func TestWriteFileReplacesLinkAndNotItsTarget(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(link, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(target)
	if err != nil || string(old) != "old" {
		t.Errorf("target %q, %v: want it unchanged", old, err)
	}
	if b, err := Read(link, 10); err != nil || string(b) != "new" {
		t.Errorf("link %q, %v: want the new file", b, err)
	}
}

func TestFailedWriteLeavesOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, path+".new"); err != nil { // in the way of the new file
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new"), 0o600); err == nil {
		t.Error("a link in the way of the new file was followed")
	}
	if b, err := Read(path, 10); err != nil || string(b) != "old" {
		t.Errorf("%q, %v: want the old file", b, err)
	}
}
