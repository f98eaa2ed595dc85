package inventory

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// issuerOf returns the issuer with which a replica renews certificates; nil: it does not renew.
func issuerOf(t *testing.T, d *Dir) (*pki.Issuer, config.RenewalConfig) {
	t.Helper()
	cfg, err := config.LoadSupervisor(d.file("supervisors", "s1", "supervisor.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Renewal.Cert == "" {
		return nil, cfg.Renewal
	}
	b := Bundle{Dir: d.file("supervisors", "s1"), etc: Etc}
	i, err := pki.LoadIssuer(b.here(cfg.Renewal.Cert), b.here(cfg.Renewal.Key), "hall7")
	if err != nil {
		t.Fatal(err)
	}
	return i, cfg.Renewal
}

// renewedBy has an issuer renew a certificate of node n0-0-0.
func renewedBy(t *testing.T, i *pki.Issuer) []byte {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	der, err := i.Renew(now, pki.Presented{Identity: pki.NodeIdentity("hall7", "n0-0-0", fault.HalfHost),
		NotBefore: now.Add(-time.Hour * 9), Descends: now.Add(-time.Hour * 9)}, pub, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// TestIssuerReachesSupervisorsOnly: every member trusts the issuer, supervisors alone have its key, and halves have
// certificates of the given lifetime.
func TestIssuerReachesSupervisorsOnly(t *testing.T) {
	d, inv := Open(filepath.Join(t.TempDir(), "hall7")), load(t)
	inv.NodeCertificateDays = 7
	if err := d.Init(inv); err != nil {
		t.Fatal(err)
	}
	i, renewal := issuerOf(t, d)
	if i == nil || renewal.Lifetime.D() != 7*24*time.Hour {
		t.Fatalf("renewal: %+v", renewal)
	}
	der := renewedBy(t, i)
	for _, id := range []string{"n0-0-0", "n1-1-1"} {
		m := memberOf(t, d, id)
		if _, err := m.verify.Check(der); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if left := time.Until(m.signer.Expires()); left > 7*24*time.Hour || left < 7*24*time.Hour-time.Minute {
			t.Errorf("%s: lives for %s: want 7 days", id, left)
		}
	}
	err := filepath.WalkDir(d.path, func(p string, e os.DirEntry, err error) error {
		rel, _ := filepath.Rel(d.path, p)
		if err == nil && e.Name() == issuerKey && rel != issuerKey && !strings.HasPrefix(rel, "supervisors/") {
			t.Errorf("%s: want the issuer's key with supervisors only", rel)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if b, err := OpenBundle(d.file("supervisors", "s1")); err != nil {
		t.Errorf("%+v, %v", b, err)
	}
	if err := os.WriteFile(d.file("supervisors", "s1", "pki", issuerKey), read(t, d.file(caKey)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBundle(d.file("supervisors", "s1")); err == nil || !strings.Contains(err.Error(), issuerKey) {
		t.Errorf("a bundle with another key for its issuer: %v", err)
	}
}

// TestRotateReplacesIssuer: a change of keys creates another issuer, which all members trust before a replica uses it;
// in the end no member trusts the old one. A directory of an earlier version, without an issuer, gets one in the same
// way.
func TestRotateReplacesIssuer(t *testing.T) {
	for _, had := range []bool{true, false} {
		d, inv := made(t)
		if !had {
			if err := errors.Join(os.Remove(d.file(issuerCert)), os.Remove(d.file(issuerKey))); err != nil {
				t.Fatal(err)
			}
			if err := d.write(inv, mustCA(t, d), everyone); err != nil {
				t.Fatal(err)
			}
			short := inv
			short.NodeCertificateDays = 7
			if _, err := d.Update(short); err == nil || !strings.Contains(err.Error(), "nodeCertificateDays: given 7: want none") {
				t.Errorf("short lifetimes without an issuer: %v", err)
			}
		}
		first, _ := issuerOf(t, d)
		if (first != nil) != had {
			t.Fatalf("issuer before: %v", first)
		}
		for _, step := range []Step{StepAdd, StepUse, StepRemove} {
			before := memberOf(t, d, "n1-1-1")
			if _, err := d.Rotate(step, false); err != nil {
				t.Fatal(err)
			}
			now, _ := issuerOf(t, d)
			if (now != nil) != (had || step != StepAdd) {
				t.Fatalf("had %t, %s: issuer %v", had, step, now)
			}
			if now == nil {
				continue
			}
			der := renewedBy(t, now)
			for what, m := range map[string]member{"gone on": memberOf(t, d, "n1-1-1"), "not gone on": before} {
				if _, err := m.verify.Check(der); err != nil {
					t.Errorf("had %t, %s: a member that has %s: %v", had, step, what, err)
				}
			}
		}
		if first != nil {
			if _, err := memberOf(t, d, "n1-1-1").verify.Check(renewedBy(t, first)); err == nil {
				t.Error("the earlier issuer is still trusted")
			}
		}
	}
}

func mustCA(t *testing.T, d *Dir) *pki.CA {
	t.Helper()
	ca, err := pki.LoadCA(d.file(caCert), d.file(caKey))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}
