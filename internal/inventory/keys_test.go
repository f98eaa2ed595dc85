package inventory

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// keysOf returns the types of the keys of a person, and of the authority that signed the certificate.
func keysOf(t *testing.T, d *Dir, name string) [2]pki.KeyType {
	t.Helper()
	own, signer, err := pki.KeyTypeOf(d.file("operators", name+".pem"))
	if err != nil {
		t.Fatal(err)
	}
	return [2]pki.KeyType{own, signer}
}

// hasBothPairs checks the bundle of a replica, and that its second pair has an ECDSA key.
func hasBothPairs(t *testing.T, d *Dir) {
	t.Helper()
	dir := d.file("supervisors", "s1")
	if _, err := OpenBundle(dir); err != nil {
		t.Error(err)
	}
	cfg, err := config.LoadSupervisor(filepath.Join(dir, "supervisor.yaml"), nil)
	if err != nil || cfg.ECDSA.Cert == "" {
		t.Fatalf("%+v, %v: want a second pair", cfg.ECDSA, err)
	}
	first, _, err := pki.KeyTypeOf(filepath.Join(dir, "pki", "supervisor.pem"))
	second, _, err2 := pki.KeyTypeOf(filepath.Join(dir, "pki", ecdsaPair+".pem"))
	if err := errors.Join(err, err2); err != nil || first != pki.KeyEd25519 || second != pki.KeyECDSA {
		t.Errorf("pairs with %s and %s, %v: want ed25519 and ecdsa", first, second, err)
	}
}

// TestKeyTypes: a new cluster has an ECDSA authority. People's keys have the authority's type unless they are issued
// with another one.
func TestKeyTypes(t *testing.T) {
	d, inv := made(t)
	hasBothPairs(t, d)
	const ec, ed = pki.KeyECDSA, pki.KeyEd25519
	if got := keysOf(t, d, "operator"); got != [2]pki.KeyType{ec, ec} {
		t.Errorf("operator of a new cluster: %v", got)
	}
	if _, err := d.WithKeys(ed).Issue(pki.RoleViewer, "anna"); err != nil {
		t.Fatal(err)
	}
	old := Open(filepath.Join(t.TempDir(), "old")).WithKeys(ed)
	if err := old.Init(inv); err != nil {
		t.Fatal(err)
	}
	hasBothPairs(t, old)
	if _, err := Open(old.path).Issue(pki.RoleViewer, "bob"); err != nil {
		t.Fatal(err)
	}
	if _, err := old.WithKeys(ec).Issue(pki.RoleViewer, "eve"); err != nil {
		t.Fatal(err)
	}
	if _, err := old.WithKeys(ec).Issue(pki.RoleExecutor, "x1"); err == nil ||
		!strings.Contains(err.Error(), "key type: given ecdsa: want ed25519") {
		t.Errorf("an executor process with ECDSA: %v", err)
	}
	for _, tc := range []struct {
		d    *Dir
		name string
		want [2]pki.KeyType
	}{
		{d, "viewer-anna", [2]pki.KeyType{ed, ec}}, {old, "operator", [2]pki.KeyType{ed, ed}},
		{old, "viewer-bob", [2]pki.KeyType{ed, ed}}, {old, "viewer-eve", [2]pki.KeyType{ec, ed}},
	} {
		if got := keysOf(t, tc.d, tc.name); got != tc.want {
			t.Errorf("%s: %v: want %v", tc.name, got, tc.want)
		}
	}
}

// TestOldDirectoryBecomesECDSA: a directory of an earlier version, with an Ed25519 authority and one pair for each replica,
// gets second pairs with the next change, and an ECDSA authority by a change of keys in which all members trust each other.
func TestOldDirectoryBecomesECDSA(t *testing.T) {
	_, inv := made(t)
	d := Open(filepath.Join(t.TempDir(), "old")).WithKeys(pki.KeyEd25519)
	if err := d.Init(inv); err != nil {
		t.Fatal(err)
	}
	d = Open(d.path)
	for _, s := range inv.Supervisors {
		base := d.file("supervisors", s.ID, "pki", ecdsaPair)
		if err := errors.Join(os.Remove(base+".pem"), os.Remove(base+".key")); err != nil {
			t.Fatal(err)
		}
	}
	changed, err := d.Update(inv)
	if err != nil || len(changed) != len(inv.Supervisors) || !strings.HasPrefix(changed[0], "supervisors/") {
		t.Fatalf("changed: %v, %v: want the supervisors", changed, err)
	}
	hasBothPairs(t, d)
	before := memberOf(t, d, "n0-0-0")
	for _, step := range []Step{StepAdd, StepUse, StepRemove} {
		if _, err := d.Rotate(step, step == StepAdd); err != nil {
			t.Fatal(err)
		}
		now := memberOf(t, d, "n0-0-0")
		if !now.understands(before) || !before.understands(now) {
			t.Errorf("%s: members with and without the step do not accept each other", step)
		}
		before = now
		hasBothPairs(t, d)
	}
	if got := keysOf(t, d, "operator"); got != [2]pki.KeyType{pki.KeyECDSA, pki.KeyECDSA} {
		t.Errorf("operator under the new authority: %v", got)
	}
}

// TestBundleWithWrongSecondPair: join refuses a second pair of another replica.
func TestBundleWithWrongSecondPair(t *testing.T) {
	d, _ := made(t)
	for _, ext := range []string{".pem", ".key"} {
		b := read(t, d.file("supervisors", "s2", "pki", ecdsaPair+ext))
		if err := os.WriteFile(d.file("supervisors", "s1", "pki", ecdsaPair+ext), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenBundle(d.file("supervisors", "s1")); err == nil || !strings.Contains(err.Error(), "want lofamo://hall7/supervisor/s1") {
		t.Errorf("a bundle with another replica's second pair: %v", err)
	}
}

// TestOpenSSLVerifiesDuringRotation: OpenSSL chooses among the authorities of a file by name. While a cluster changes from
// one authority to another one with the same type of key, OpenSSL verifies the certificates of both.
func TestOpenSSLVerifiesDuringRotation(t *testing.T) {
	openssl := requirements.Program(t, "Debian's package openssl", "openssl")
	for _, k := range pki.KeyTypes() {
		t.Run(string(k), func(t *testing.T) {
			_, inv := made(t)
			d := Open(filepath.Join(t.TempDir(), "d")).WithKeys(k)
			if err := d.Init(inv); err != nil {
				t.Fatal(err)
			}
			member := []string{d.file("supervisors", "s1", "pki", "supervisor.pem"), d.file("supervisors", "s1", "pki", ecdsaPair+".pem"),
				d.file("operators", "operator.pem"), d.file("nodes", "n0-0-0", "pki", "host.pem")}
			for _, step := range []Step{StepAdd, StepUse, StepRemove, StepAdd, StepUse} { // a second change has a third authority
				if step != StepAdd {
					d = Open(d.path)
				} else {
					d = d.WithKeys(k)
				}
				if _, err := d.Rotate(step, step == StepAdd); err != nil {
					t.Fatal(err)
				}
				ca := d.file("operators", caCert)
				for _, cert := range member {
					if out, err := exec.CommandContext(t.Context(), openssl, "verify", "-CAfile", ca, cert).CombinedOutput(); err != nil {
						t.Errorf("step %s: %v: %s", step, err, out)
					}
				}
			}
		})
	}
}

// TestKeyTypeOfRotation: a type of key is given with the step that makes the authority, and not changed afterwards.
func TestKeyTypeOfRotation(t *testing.T) {
	d, _ := made(t)
	const ec, ed = pki.KeyECDSA, pki.KeyEd25519
	refused := func(k pki.KeyType, step Step, authority bool, want string) {
		t.Helper()
		if _, err := d.WithKeys(k).Rotate(step, authority); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s with %s: %v: want %q", step, k, err, want)
		}
	}
	refused(ed, StepAdd, false, "key type: given ed25519 without a change of the authority: want both")
	if _, err := d.Rotate(StepAdd, true); err != nil {
		t.Fatal(err)
	}
	refused(ed, StepAdd, true, "key type: given ed25519: want ecdsa, the type of the next authority's key in "+d.file(nextDir, caCert))
	if _, err := d.WithKeys(ec).Rotate(StepAdd, true); err != nil {
		t.Errorf("the same type again: %v", err)
	}
	refused(ec, StepUse, true, "key type: given ecdsa with step use: want it with step add, which makes the authority")
}

// TestBadSecondPairHoldsBackNoFirstPair: a renewed first pair is copied though the second one is refused, and the other way.
func TestBadSecondPairHoldsBackNoFirstPair(t *testing.T) {
	d, inv := made(t)
	own := func(name string) string { return d.file("supervisors", "s1", "pki", name) }
	others := func(name string) {
		t.Helper()
		for _, ext := range []string{".pem", ".key"} {
			if err := os.WriteFile(own(name+ext), read(t, d.file("supervisors", "s2", "pki", name+ext)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct {
		name, copied, kept string
		spoil              func()
		want               string
	}{
		{"another replica's second pair", "supervisor.pem", ecdsaPair + ".pem", func() { others(ecdsaPair) },
			"want lofamo://hall7/supervisor/s1"},
		{"an expired second pair", "supervisor.pem", ecdsaPair + ".pem",
			func() { supervisortest.Expire(t, d.path, own(ecdsaPair+".pem")) }, ecdsaPair + ".pem: expired"},
		{"a second pair that has not begun", "supervisor.pem", ecdsaPair + ".pem",
			func() { supervisortest.BeginAt(t, d.path, own(ecdsaPair+".pem"), time.Now().Add(time.Hour)) }, ecdsaPair + ".pem: not valid until "},
		{"another replica's first pair", ecdsaPair + ".pem", "supervisor.pem", func() { others("supervisor") },
			"want lofamo://hall7/supervisor/s1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := d.Update(inv, "s1"); err != nil {
				t.Fatal(err)
			}
			p := Placement{Keys: d.file("supervisors", "s1"), Etc: t.TempDir()}
			if _, err := inv.PlaceSupervisor(0, p); err != nil {
				t.Fatal(err)
			}
			placed := func(name string) string { return string(read(t, filepath.Join(p.Etc, "pki", name))) }
			before := placed(tc.kept)
			if _, err := d.Update(inv, "s1"); err != nil {
				t.Fatal(err)
			}
			tc.spoil()
			renewed, err := inv.Renew(0, p)
			if !renewed || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("renewed %t, %v: want a renewal, and an error with %q", renewed, err, tc.want)
			}
			if placed(tc.copied) != string(read(t, own(tc.copied))) || placed(tc.kept) != before {
				t.Errorf("want %s copied, and %s as before", tc.copied, tc.kept)
			}
		})
	}
}

// TestExpiredSecondPairDoesNotStopJoin: join takes a bundle whose second pair has expired, and warns.
func TestExpiredSecondPairDoesNotStopJoin(t *testing.T) {
	d, _ := made(t)
	cert := d.file("supervisors", "s1", "pki", ecdsaPair+".pem")
	if b, err := OpenBundle(d.file("supervisors", "s1")); err != nil || b.Warning != "" {
		t.Errorf("a good bundle: %q, %v", b.Warning, err)
	}
	supervisortest.Expire(t, d.path, cert)
	b, err := OpenBundle(d.file("supervisors", "s1"))
	if err != nil || !strings.Contains(b.Warning, cert+": expired ") {
		t.Errorf("an expired second pair: %q, %v: want a warning that names %s", b.Warning, err, cert)
	}
}

// TestSecondPairThatHasNotBegunDoesNotStopJoin: the clock of a new machine may not be set yet. The first pair must be valid.
func TestSecondPairThatHasNotBegunDoesNotStopJoin(t *testing.T) {
	d, _ := made(t)
	cert := d.file("supervisors", "s1", "pki", ecdsaPair+".pem")
	supervisortest.BeginAt(t, d.path, cert, time.Now().Add(time.Hour))
	b, err := OpenBundle(d.file("supervisors", "s1"))
	if err != nil || !strings.Contains(b.Warning, cert+": not valid until ") {
		t.Errorf("a second pair that has not begun: %q, %v: want a warning that names %s", b.Warning, err, cert)
	}
}
