package trusted

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// TestPathIsRefusedIfSomebodyElseCanWrite: writable directories and files anywhere on the path, behind links too, are refused, unless only
// the trusted group can write them.
func TestPathIsRefusedIfSomebodyElseCanWrite(t *testing.T) {
	dir := t.TempDir()
	in := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	must(t, os.MkdirAll(in("real", "sub"), 0o755))
	must(t, os.WriteFile(in("real", "sub", "file"), nil, 0o644))
	must(t, os.Mkdir(in("links"), 0o755))
	must(t, os.Symlink("../real/sub", in("links", "sub")))
	must(t, os.Symlink("loop", in("links", "loop")))
	path, own := in("links", "sub", "file"), os.Getegid()
	for _, place := range []string{dir, in("real"), in("real", "sub"), in("real", "sub", "file"), in("links")} {
		for mode, refused := range map[fs.FileMode][2]bool{0o755: {}, 0o775: {true, false}, 0o757: {true, true}} {
			must(t, os.Chmod(place, mode))
			for i, group := range []int{NoGroup, own} {
				at, err := Path(path, group)
				if (err != nil) != refused[i] || err == nil && at != in("real", "sub", "file") || err != nil && !strings.Contains(err.Error(),
					place+": ") {
					t.Errorf("%s has %s, group %d may write: %q, %v; want refused %v", place, mode, group, at, err, refused[i])
				}
			}
		}
		must(t, os.Chmod(place, 0o755))
	}
	must(t, os.Chmod(in("real"), 0o777|fs.ModeSticky))
	if _, err := Path(path, NoGroup); err != nil {
		t.Errorf("a sticky directory: %v", err)
	}
	if _, err := Path(in("links", "loop"), NoGroup); err == nil || !strings.Contains(err.Error(), "symbolic links") {
		t.Errorf("a loop of links: %v", err)
	}
	if _, err := Path(in("none", "file"), NoGroup); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such path: %v", err)
	}
	must(t, os.Chmod(in("real"), 0o777))
	if _, err := Path(in("links", "..", "real", "none"), NoGroup); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such file in a directory of others: %v", err)
	}
}

// TestSharedGroupIsNotTrusted: only a group with the user's number has no other members.
func TestSharedGroupIsNotTrusted(t *testing.T) {
	for _, c := range [][3]int{{0, 0, 0}, {1000, 1000, 1000}, {1000, 100, NoGroup}, {1000, 0, NoGroup}, {0, 100, NoGroup}} {
		if got := ownGroup(c[0], c[1]); got != c[2] {
			t.Errorf("user %d with group %d trusts group %d: want %d", c[0], c[1], got, c[2])
		}
	}
}

// TestPathOfAnotherUserIsRefused: the owner of each place counts, of links too.
func TestPathOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		requirements.Missing(t, "only root may give files away")
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755))
	link := filepath.Join(dir, "link")
	must(t, os.Symlink("real", link))
	for _, place := range []string{dir, filepath.Join(dir, "real"), link} {
		must(t, os.Lchown(place, 65534, 0))
		if _, err := Path(link, NoGroup); err == nil || !strings.Contains(err.Error(), place+": it belongs to user 65534") {
			t.Errorf("%s is another user's: %v", place, err)
		}
		must(t, os.Lchown(place, 0, 0))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
