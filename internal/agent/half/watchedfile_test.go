package half

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/internal/durable"
)

// Two files of one size, written within one tick of the file system's clock, have equal times. The second one is a change all the same.
func TestReplacedFileOfSameSizeAndTimeHasChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	put := func(content string) {
		t.Helper()
		if err := durable.Replace(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	put("peers of order 1")
	first, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f := Watch(path)
	if f.Changed() {
		t.Error("the present state counts as seen")
	}
	put("peers of order 2")
	if err := os.Chtimes(path, first.ModTime(), first.ModTime()); err != nil {
		t.Fatal(err)
	}
	if !f.Changed() {
		t.Error("the replacement is not noticed")
	}
	if f.Changed() {
		t.Error("the replacement is a change twice")
	}
}
