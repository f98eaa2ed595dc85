package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMissingContextsNeedNoOwnDirectory: without a file nobody can have planted one, as in a toolbox whose /home belongs to another user. A
// file there is neither read nor written.
func TestMissingContextsNeedNoOwnDirectory(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	dir := filepath.Join(home, ".config", "lofamo")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o777); err != nil {
		t.Fatal(err)
	}
	a := &App{Env: Env{Getenv: func(name string) string { return map[string]string{"HOME": home}[name] }}}
	if c, path, err := a.Contexts(); err != nil || len(c.List) > 0 || filepath.Dir(path) != dir {
		t.Errorf("without a file: %+v, %s, %v: want an empty configuration", c, path, err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "another user can change it") {
			t.Errorf("%s: %v: want a refusal", what, err)
		}
	}
	_, err := a.LockContexts()
	refused("lock", err)
	_, err = a.SaveContexts(Contexts{})
	refused("write", err)
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = a.Contexts()
	refused("read", err)
}
