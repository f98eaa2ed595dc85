package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestReadBoundedReadsFilesAndPipes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("a: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	go func() {
		time.Sleep(50 * time.Millisecond) // a slow command
		_, _ = w.WriteString("a: 1\n")
		_ = w.Close()
	}()
	for _, tc := range []struct{ path, want string }{
		{file, "a: 1\n"}, {fmt.Sprintf("/dev/fd/%d", r.Fd()), "a: 1\n"}, {"/dev/null", ""},
	} {
		if b, err := ReadBounded(tc.path, 5); err != nil || string(b) != tc.want {
			t.Errorf("%s: %q, %v: want %q", tc.path, b, err, tc.want)
		}
	}
	if _, err := ReadBounded("/no/such", 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestReadBoundedNamesFileSizeAndLimit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadBounded(file, 5); err == nil || err.Error() != "read "+file+": 6 bytes: want at most 5" {
		t.Errorf("%v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }() // its writer never ends
	if _, err := w.WriteString("abcdef"); err != nil {
		t.Fatal(err)
	}
	pipe := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if _, err := ReadBounded(pipe, 5); err == nil || err.Error() != "read "+pipe+": more than 5 bytes: want at most 5" {
		t.Errorf("%v", err)
	}
}

// TestConfigurationIsNeitherPipeWithoutWriterNorDevice: reading one would never end.
func TestConfigurationIsNeitherPipeWithoutWriterNorDevice(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	sparse := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long, longer := sparse("long", MaxFile+1), sparse("longer", MaxNodesFile+1)
	agent := func(path string) error { _, err := ReadAgent(path, nil); return err }
	for _, tc := range []struct {
		path string
		read func(path string) error
		want string
	}{
		{pipe, agent, "a named pipe: want a regular file or a pipe"},
		{dir, agent, "a directory: want a regular file or a pipe"},
		{"/dev/zero", agent, "a device: want a regular file or a pipe"},
		{long, agent, "1048577 bytes: want at most 1048576"},
		{long, func(path string) error { _, err := AgentStateDir(path, nil); return err }, "1048577 bytes: want at most 1048576"},
		{pipe, func(path string) error { _, err := AgentStateDir(path, nil); return err }, "a named pipe"},
		{pipe, func(path string) error { _, err := ReadSupervisor(path, nil); return err }, "a named pipe"},
		{longer, func(path string) error { _, err := ReadSupervisor(path, nil); return err }, "67108865 bytes: want at most 67108864"},
		{long, func(path string) error { return ReadStrict(path, MaxFile, &Agent{}) }, "1048577 bytes: want at most 1048576"},
	} {
		done := make(chan error, 1)
		go func() { done <- tc.read(tc.path) }()
		select {
		case err := <-done:
			if want := "configuration " + tc.path + ": read " + tc.path + ": " + tc.want; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v: want %q", tc.path, err, want)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: reading it does not end", tc.path)
		}
	}
}

func TestLongSupervisorConfigurationIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, append([]byte("id: s1\n"), bytes.Repeat([]byte("# a node\n"), MaxFile/4)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := ReadSupervisor(path, nil); err != nil || s.ID != "s1" {
		t.Errorf("%q, %v", s.ID, err)
	}
}
