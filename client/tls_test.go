package client_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

func filesIn(dir, name string) client.TLSFiles {
	return client.TLSFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key")}
}

func clientOf(t *testing.T, files client.TLSFiles, rounds int, target string) *client.Client {
	t.Helper()
	conf, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Targets: []string{target}, TLS: conf, TryTimeout: bound, Rounds: rounds})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// copyPKI replaces the files of one directory by those of another.
func copyPKI(t *testing.T, from, to string) {
	t.Helper()
	for _, name := range []string{"ca.pem", "viewer.pem", "viewer.key"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChangedFilesAreUsedAtTheNextHandshake moves a cluster to another authority. The same client follows, and a
// half-written file does not hurt it.
func TestChangedFilesAreUsedAtTheNextHandshake(t *testing.T) {
	first, second, mine := t.TempDir(), t.TempDir(), t.TempDir()
	clienttest.PKI(t, first)
	clienttest.PKI(t, second)
	copyPKI(t, first, mine)
	m := clienttest.NewMap()
	old := clienttest.Serve(t, first, m)
	c := clientOf(t, filesIn(mine, "viewer"), 50, old.Address)
	if _, err := c.ListSupervisors(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mine, "viewer.key"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	old.Stop()
	again := clienttest.ServeAt(t, first, m, old.Address)
	if _, err := c.ListSupervisors(bounded(t)); err != nil {
		t.Fatalf("with a half-written key: %v", err)
	}
	copyPKI(t, second, mine)
	again.Stop()
	clienttest.ServeAt(t, second, m, old.Address)
	if _, err := c.ListSupervisors(bounded(t)); err != nil {
		t.Fatalf("after the change of authority: %v", err)
	}
}

func TestOnlySupervisorsOfTheClusterAreTrusted(t *testing.T) {
	dir, other, swapped := t.TempDir(), t.TempDir(), t.TempDir()
	clienttest.PKI(t, dir)
	clienttest.PKI(t, other)
	copyPKI(t, dir, swapped)
	for to, from := range map[string]string{"sup.pem": "viewer.pem", "sup.key": "viewer.key"} {
		b, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(swapped, to), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct{ serves, want string }{
		"foreign authority":    {other, "certificate"},
		"a viewer that serves": {swapped, "certificate"},
	} {
		s := clienttest.Serve(t, tc.serves, clienttest.NewMap())
		if _, err := clientOf(t, filesIn(dir, "viewer"), 1, s.Address).ListSupervisors(bounded(t)); err == nil ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error about its certificate", name, err)
		}
	}
}

func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	good := filesIn(dir, "viewer")
	for name, tc := range map[string]struct {
		files client.TLSFiles
		want  string
	}{
		"no certificate":        {client.TLSFiles{CA: good.CA, Cert: "nowhere.pem", Key: good.Key}, "nowhere.pem"},
		"another key":           {client.TLSFiles{CA: good.CA, Cert: good.Cert, Key: filepath.Join(dir, "sup.key")}, "sup.key"},
		"no authority":          {client.TLSFiles{CA: "nowhere.pem", Cert: good.Cert, Key: good.Key}, "certificate authority"},
		"a key as authority":    {client.TLSFiles{CA: good.Key, Cert: good.Cert, Key: good.Key}, "no PEM certificate"},
		"authority as a pair":   {client.TLSFiles{CA: good.CA, Cert: good.CA, Key: filepath.Join(dir, "ca.key")}, "names no member"},
		"nothing is configured": {client.TLSFiles{}, "certificate"},
	} {
		if _, err := tc.files.Config(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
