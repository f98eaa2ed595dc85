package maskfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if s, err := Load(path); s != chanmask.Fresh() || err != nil {
		t.Errorf("without a file: %+v, %v", s, err)
	}
	for _, want := range []chanmask.State{
		{Own: chanmask.All, Ordered: chanmask.All.Without(grid.XPlus), Number: 12},
		{Own: chanmask.All.Without(grid.ZMinus), Ordered: chanmask.All, Number: 1 << 50},
	} {
		if err := Save(path, want); err != nil {
			t.Fatal(err)
		}
		if s, err := Load(path); s != want || err != nil {
			t.Errorf("%+v, %v: want %+v", s, err, want)
		}
	}
	if _, err := os.Lstat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a second file is left: %v", err)
	}
}

// A damaged file is reported as lost, and none of its content is used.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	good := chanmask.State{Own: 0, Ordered: 1, Number: 3}.Append(nil)
	flipped := bytes.Clone(good)
	flipped[5] ^= 0x10
	for name, content := range map[string][]byte{
		"empty": {}, "truncated": good[:11], "too long": append(bytes.Clone(good),
			0), "flipped": flipped, "garbage": []byte("0123456789abcdef0123"),
		"huge": make([]byte, 1<<20),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Load(path); s != chanmask.Fresh() || !errors.Is(err, chanmask.ErrState) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if s, err := Load(path); s != chanmask.Fresh() || err == nil {
		t.Errorf("a directory: %+v, %v", s, err)
	}
}

func TestUnwritableIsAFailure(t *testing.T) {
	if err := Save(filepath.Join(t.TempDir(), "absent", Name), chanmask.Fresh()); err == nil {
		t.Error("no error in a directory that is not there")
	}
}

// The target of a symbolic link in the file's place is neither read nor written.
func TestLinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, Name), filepath.Join(dir, "other")
	if err := Save(other, chanmask.State{Number: 9}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, path); err != nil {
		t.Fatal(err)
	}
	if s, err := Load(path); s != chanmask.Fresh() || err == nil {
		t.Errorf("a link was read: %+v, %v", s, err)
	}
	if err := Save(path, chanmask.Fresh()); err != nil {
		t.Fatal(err)
	}
	if s, err := Load(other); s.Number != 9 || err != nil {
		t.Errorf("what the link pointed to: %+v, %v", s, err)
	}
}
