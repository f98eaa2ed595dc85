package storage

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/peers"
)

// keepsOrders checks a file with two good states, and contents that must count as lost with an error.
func keepsOrders[S comparable](t *testing.T, f OrderFile[S], good [2]S, damaged map[string][]byte, refusal error) {
	t.Helper()
	dir := t.TempDir()
	if s, err := f.Load(dir); s != f.none || err != nil {
		t.Errorf("without a file: %v, %v", s, err)
	}
	for _, want := range good {
		if err := f.Save(dir, want); err != nil {
			t.Fatal(err)
		}
		if s, err := f.Load(dir); s != want || err != nil {
			t.Errorf("%v, %v: want %v", s, err, want)
		}
	}
	if _, err := os.Lstat(f.Path(dir) + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a second file is left: %v", err)
	}
	damaged["empty"], damaged["garbage"], damaged["huge"] = nil, []byte("0123456789abcdef0123"), make([]byte, 1<<20)
	for name, content := range damaged {
		if err := os.WriteFile(f.Path(dir), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := f.Load(dir); s != f.none || !errors.Is(err, refusal) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if err := errors.Join(os.Remove(f.Path(dir)), os.Mkdir(f.Path(dir), 0o700)); err != nil {
		t.Fatal(err)
	}
	if s, err := f.Load(dir); s != f.none || err == nil {
		t.Errorf("a directory: %v, %v", s, err)
	}
	if err := f.Save(filepath.Join(dir, "absent"), good[0]); err == nil {
		t.Error("no error in a directory that does not exist")
	}
}

func TestMaskOrdersSurviveRestart(t *testing.T) {
	whole := chanmask.State{Own: 0, Ordered: 1, Number: 3}.Append(nil)
	flipped := bytes.Clone(whole)
	flipped[5] ^= 0x10
	keepsOrders(t, MaskOrders(), [2]chanmask.State{
		{Own: chanmask.All, Ordered: chanmask.All.Without(grid.XPlus), Number: 12},
		{Own: chanmask.All.Without(grid.ZMinus), Ordered: chanmask.All, Number: 1 << 50},
	}, map[string][]byte{"truncated": whole[:11], "too long": append(bytes.Clone(whole), 0), "flipped": flipped}, chanmask.ErrState)
}

func TestPeerOrdersSurviveRestart(t *testing.T) {
	keepsOrders(t, PeerOrders(), [2]peers.State{{Number: 12, Placed: true, Coord: grid.Coord{Y: 3}}, {Number: 13}}, map[string][]byte{},
		peers.ErrState)
}

// The target of a symbolic link in the file's place is neither read nor written.
func TestOrderFileFollowsNoLink(t *testing.T) {
	dir, other, f := t.TempDir(), t.TempDir(), MaskOrders()
	if err := f.Save(other, chanmask.State{Number: 9}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(f.Path(other), f.Path(dir)); err != nil {
		t.Fatal(err)
	}
	if s, err := f.Load(dir); s != chanmask.Fresh() || err == nil {
		t.Errorf("a link was read: %+v, %v", s, err)
	}
	if err := f.Save(dir, chanmask.Fresh()); err != nil {
		t.Fatal(err)
	}
	if s, err := f.Load(other); s.Number != 9 || err != nil {
		t.Errorf("the link's target: %+v, %v", s, err)
	}
}
