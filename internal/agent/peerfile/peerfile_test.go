package peerfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/peers"
)

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	if s, err := Load(path); s != (peers.State{}) || err != nil {
		t.Errorf("without a file: %v, %v", s, err)
	}
	for _, want := range []peers.State{{Number: 12, Placed: true, Coord: grid.Coord{Y: 3}}, {Number: 13}} {
		if err := Save(path, want); err != nil {
			t.Fatal(err)
		}
		if s, err := Load(path); s != want || err != nil {
			t.Errorf("%v, %v: want %v", s, err, want)
		}
	}
}

// A damaged file is reported as lost, and none of its content is used.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	for name, content := range map[string][]byte{"empty": {}, "garbage": []byte("0123456789abcdef0123"), "huge": make([]byte, 1<<20)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Load(path); s != (peers.State{}) || !errors.Is(err, peers.ErrState) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if err := Save(filepath.Join(t.TempDir(), "absent", Name), peers.State{}); err == nil {
		t.Error("no error in a directory that is not there")
	}
}
