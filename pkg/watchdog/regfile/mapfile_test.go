package regfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAccessAfterTruncation(t *testing.T) {
	const size = 8192
	path := filepath.Join(t.TempDir(), "page")
	file, err := os.Create(path)
	must(t, err)
	must(t, Allocate(file, size))
	must(t, CheckMapped(file, path, size))
	mem, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	write := func() error { mem[size-1] = 1; return nil }
	must(t, AccessMapped(mem, write))
	must(t, os.Truncate(path, 4096))
	if err := AccessMapped(mem, write); !errors.Is(err, ErrFault) {
		t.Errorf("a page that is gone: %v", err)
	}
	if err := CheckMapped(file, path, size); !errors.Is(err, ErrFault) {
		t.Errorf("check of a truncated file: %v", err)
	}
	must(t, Allocate(file, size))
	must(t, AccessMapped(mem, write))
	must(t, os.Remove(path))
	if err := CheckMapped(file, path, size); !errors.Is(err, ErrReplaced) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("check of an unlinked file: %v", err)
	}
	must(t, os.WriteFile(path, make([]byte, size), 0o600))
	if err := CheckMapped(file, path, size); !errors.Is(err, ErrReplaced) {
		t.Errorf("check of a replaced file: %v", err)
	}
	must(t, errors.Join(unix.Munmap(mem), file.Close()))
}

func TestOtherPanicsGoOn(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a mistake was swallowed")
		}
	}()
	var nothing *int
	_ = AccessMapped(make([]byte, 1), func() error { *nothing = 1; return nil })
}
