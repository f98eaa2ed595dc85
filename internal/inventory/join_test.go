package inventory

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/pki"
)

// placed opens a bundle and installs it below root.
func placed(t *testing.T, root, bundle string) error {
	t.Helper()
	b, err := OpenBundle(bundle)
	if err != nil {
		t.Fatal(err)
	}
	return b.Install(root, -1, -1, ConfigSafe)
}

// TestJoinKeepsOtherClusterApart: bundles of a node and of a replica have some files in common, and node names recur in every cluster.
func TestJoinKeepsOtherClusterApart(t *testing.T) {
	first, inv := made(t)
	inv.Cluster = "hall8"
	second := Open(filepath.Join(t.TempDir(), "hall8"))
	if err := second.Init(inv); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ installed, given, file string }{
		{"supervisors/s1", "nodes/n0-0-0", "supervisor.yaml"},
		{"nodes/n0-0-0", "supervisors/s1", "agent.yaml"},
		{"nodes/n0-0-0", "nodes/n0-0-0", "agent.yaml"},
		{"supervisors/s1", "supervisors/s1", "supervisor.yaml"},
	} {
		root := t.TempDir()
		etc := filepath.Join(root, Etc)
		if err := placed(t, root, first.file(tc.installed)); err != nil {
			t.Fatal(err)
		}
		before := map[string][]byte{"gossip.key": nil, "pki/ca.pem": nil}
		for name := range before {
			before[name] = read(t, filepath.Join(etc, name))
		}
		want := "cluster: given hall8: want hall7, as in " + filepath.Join(etc, tc.file)
		if err := placed(t, root, second.file(tc.given)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s of hall8 over %s of hall7: %v: want %q", tc.given, tc.installed, err, want)
		}
		for name, b := range before {
			if !bytes.Equal(b, read(t, filepath.Join(etc, name))) {
				t.Errorf("%s of hall8 has replaced %s of hall7's %s", tc.given, name, tc.installed)
			}
		}
	}
}

// TestJoinIgnoresConfigurationWithoutCluster: a package's or an operator's half-filled file belongs to no cluster.
func TestJoinIgnoresConfigurationWithoutCluster(t *testing.T) {
	d, _ := made(t)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, Etc), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, Etc, "supervisor.yaml"), []byte("logLevel: debug\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := placed(t, root, d.file("nodes", "n0-0-0")); err != nil {
		t.Error(err)
	}
}

// TestSecondCopyInsideBundleIsRefused: 'scp -r' into an existing directory writes the new bundle beside the files of the former one.
func TestSecondCopyInsideBundleIsRefused(t *testing.T) {
	d, _ := made(t)
	root := t.TempDir()
	for _, member := range []string{"nodes/n0-0-0", "supervisors/s1"} {
		carried, inner := filepath.Join(t.TempDir(), "bundle"), filepath.Base(member)
		copied := func(to string) {
			t.Helper()
			if err := os.CopyFS(to, os.DirFS(d.file(member))); err != nil {
				t.Fatal(err)
			}
		}
		copied(carried)
		copied(filepath.Join(carried, ".place-1"))
		if _, err := OpenBundle(carried); err != nil {
			t.Errorf("with a hidden directory: %v", err)
		}
		copied(filepath.Join(carried, inner))
		want := "bundle " + carried + ": " + filepath.Join(carried, inner) + " is a bundle too"
		if _, err := OpenBundle(carried); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
		if err := placed(t, root, d.file(member)); err != nil {
			t.Fatal(err)
		}
		copied(filepath.Join(root, Etc, "former-"+inner))
		if _, err := OpenBundle(filepath.Join(root, Etc)); err != nil {
			t.Errorf("an installed bundle with a copy of the operator's: %v", err)
		}
	}
	if _, err := OpenBundle(d.path); err == nil || !strings.Contains(err.Error(), "want nodes/ID or supervisors/ID") {
		t.Errorf("the operator's directory: %v", err)
	}
}

// TestListenerAtAllAddressesNeedsNone: settings may have a replica listen at all addresses of its machine.
func TestListenerAtAllAddressesNeedsNone(t *testing.T) {
	d, inv := made(t)
	if err := os.MkdirAll(d.file(settingsDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, all := range []string{"0.0.0.0:7946", "[::]:7946"} {
		if err := os.WriteFile(d.file(settingsDir, supervisorFile), []byte("grpc: \""+all+"\"\nreport: 127.0.0.1:7945\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Update(inv); err != nil {
			t.Fatal(err)
		}
		b, err := OpenBundle(d.file(supervisors, "s1"))
		if err != nil {
			t.Fatal(err)
		}
		if missing, err := b.Missing(); err != nil || len(missing) != 0 {
			t.Errorf("grpc %s: this machine lacks %s, %v: want none", all, missing, err)
		}
	}
}

// wantPairs checks that the certificates and keys of an installed bundle belong together.
func wantPairs(t *testing.T, root, when string, names ...string) {
	t.Helper()
	for _, name := range names {
		base := filepath.Join(root, Etc, "pki", name)
		if _, err := pki.LoadSigner(base+".pem", base+".key"); err != nil {
			t.Errorf("%s: the %s pair cannot be loaded: %v", when, name, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(root, Etc, "*", "*.key.new"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			t.Errorf("%s: %s is left over", when, path)
		}
	}
}

// TestFailedJoinLeavesOldBundle: a new key beside the former certificate would keep a running half from starting again.
func TestFailedJoinLeavesOldBundle(t *testing.T) {
	d, inv := made(t)
	root, bundle := t.TempDir(), d.file("nodes", "n0-0-0")
	if err := placed(t, root, bundle); err != nil {
		t.Fatal(err)
	}
	before := map[string][]byte{}
	for _, name := range []string{agentFile, gossipFile, "pki/ca.pem", "pki/dnp.key", "pki/dnp.pem", "pki/host.key", "pki/host.pem"} {
		before[name] = read(t, filepath.Join(root, Etc, name))
	}
	inv.Ports.AgentHTTP = 7150
	if _, err := d.Update(inv, "n0-0-0"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Rotate(StepAdd, false); err != nil {
		t.Fatal(err)
	}
	for name := range before {
		inTheWay := filepath.Join(root, Etc, name+".new")
		if err := os.Mkdir(inTheWay, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := placed(t, root, bundle); err == nil {
			t.Errorf("%s cannot be written: want an error", name)
		}
		for other, b := range before {
			if !bytes.Equal(b, read(t, filepath.Join(root, Etc, other))) {
				t.Errorf("%s could not be written, and join replaced %s", name, other)
			}
		}
		wantPairs(t, root, name+" cannot be written", "host", "dnp")
		if err := os.Remove(inTheWay); err != nil {
			t.Fatal(err)
		}
	}
	if err := placed(t, root, bundle); err != nil {
		t.Fatal(err)
	}
	wantPairs(t, root, "at last", "host", "dnp")
	if !bytes.Equal(read(t, filepath.Join(root, Etc, agentFile)), read(t, filepath.Join(bundle, agentFile))) {
		t.Error("the configuration is not the bundle's")
	}
}
