package pki_test

import (
	"encoding/base64"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
)

const cluster = "c1"

// world is an authority, and those who sign.
type world struct {
	verify                              *pki.Verifier
	person, supervisor, node, elsewhere *pki.Signer
	now                                 time.Time
}

func newWorld(t testing.TB) world {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ca, err := pki.NewCA(cluster)
	must(err)
	other, err := pki.NewCA(cluster) // another authority for a cluster of the same name
	must(err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	must(os.WriteFile(file, ca.CertPEM(), 0o600))
	w := world{now: time.Now()}
	w.verify, err = pki.LoadVerifier(file, cluster)
	must(err)
	issue := func(ca *pki.CA, id pki.Identity) *pki.Signer {
		s, err := ca.IssueSigner(id)
		must(err)
		return s
	}
	w.person = issue(ca, pki.Identity{Cluster: cluster, Role: pki.RoleApprover, Name: "ann"})
	w.supervisor = issue(ca, pki.SupervisorIdentity(cluster, "s1"))
	w.node = issue(ca, pki.Identity{Cluster: cluster, Role: pki.RoleNode, Name: "n0-0-0/host"})
	w.elsewhere = issue(other, pki.Identity{Cluster: cluster, Role: pki.RoleApprover, Name: "ann"})
	return w
}

func (w world) claims(change func(*pki.WebClaims)) pki.WebClaims {
	c := pki.WebClaims{Cluster: cluster, Subject: "approver/ann", Audience: "s1", ID: "x", Issued: w.now.Unix(),
		Expires: w.now.Add(pki.WebLoginLife).Unix()}
	if change != nil {
		change(&c)
	}
	return c
}

func (w world) sign(t testing.TB, s *pki.Signer, kind pki.WebKind, change func(*pki.WebClaims)) string {
	t.Helper()
	token, err := pki.SignWeb(s, kind, w.claims(change))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token, err := pki.NewWebLogin(w.person, "s1", w.now)
	if err != nil {
		t.Fatal(err)
	}
	c, kind, err := pki.OpenWeb(w.verify, cluster, "s1", token, w.now, pki.WebLogin, pki.WebHandover)
	if err != nil || kind != pki.WebLogin || c.Subject != "approver/ann" || c.Role() != pki.RoleApprover {
		t.Fatalf("%+v %q %v", c, kind, err)
	}
	if until := time.Unix(c.Until, 0); until.Before(w.now.Add(time.Hour)) {
		t.Errorf("sessions of it end at %v: want the end of the certificate", until)
	}
	if _, err := pki.NewWebLogin(w.node, "s1", w.now); err == nil {
		t.Error("a node may log in")
	}
	if _, err := pki.NewWebLogin(w.supervisor, "s1", w.now); err == nil {
		t.Error("a supervisor may log in")
	}
}

// TestRefused: tokens with claims that their signer may not make are refused.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := []pki.WebKind{pki.WebLogin, pki.WebHandover, pki.WebSession, pki.WebAddress}
	good := w.sign(t, w.person, pki.WebLogin, nil)
	parts := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"cluster":"c1","sub":"approver/eve","aud":"s1","id":"x","iat":1,"exp":2}`))
	for name, token := range map[string]string{
		"nothing":                   "",
		"too long":                  strings.Repeat("a", pki.MaxWebToken+1),
		"no base64":                 "!.!.!",
		"two parts":                 parts[0] + "." + parts[1],
		"other claims":              forged + "." + parts[1] + "." + parts[2],
		"another authority":         w.sign(t, w.elsewhere, pki.WebLogin, nil),
		"a node":                    w.sign(t, w.node, pki.WebLogin, func(c *pki.WebClaims) { c.Subject = "node/n0-0-0/host" }),
		"for somebody else":         w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Subject = "approver/eve" }),
		"with more rights":          w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Subject = "supervisor/s1" }),
		"a person's session":        w.sign(t, w.person, pki.WebSession, nil),
		"a person's handover":       w.sign(t, w.person, pki.WebHandover, nil),
		"a supervisor's login":      w.sign(t, w.supervisor, pki.WebLogin, nil),
		"a session of a supervisor": w.sign(t, w.supervisor, pki.WebSession, func(c *pki.WebClaims) { c.Subject = "supervisor/s1" }),
		"for another supervisor":    w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Audience = "s2" }),
		"of another cluster":        w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Cluster = "c2" }),
		"handover to anybody":       w.sign(t, w.supervisor, pki.WebHandover, func(c *pki.WebClaims) { c.Audience = "" }),
		"handover for two days": w.sign(t, w.supervisor, pki.WebHandover,
			func(c *pki.WebClaims) { c.Issued -= 24 * 3600; c.Expires += 24 * 3600 }),
		"without id":  w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.ID = "" }),
		"for an hour": w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Expires = c.Issued + 3600 }),
		"for ever by overflow": w.sign(t, w.person, pki.WebLogin,
			func(c *pki.WebClaims) { c.Issued, c.Expires = math.MinInt64+200, math.MaxInt64-200 }),
		"for a year by overflow": w.sign(t, w.person, pki.WebLogin,
			func(c *pki.WebClaims) { c.Issued, c.Expires = math.MinInt64+300, w.now.Add(365*24*time.Hour).Unix() }),
		"ends before it begins":     w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Expires = c.Issued - 1 }),
		"session to a negative end": w.sign(t, w.supervisor, pki.WebHandover, func(c *pki.WebClaims) { c.Until = -1 }),
		"from the future":           w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Issued += 600; c.Expires += 600 }),
		"old":                       w.sign(t, w.person, pki.WebLogin, func(c *pki.WebClaims) { c.Issued -= 600; c.Expires -= 600 }),
	} {
		if c, kind, err := pki.OpenWeb(w.verify, cluster, "s1", token, w.now, all...); err == nil {
			t.Errorf("%s: taken as %s: %+v", name, kind, c)
		}
	}
	if _, _, err := pki.OpenWeb(w.verify, cluster, "s1", good, w.now, pki.WebSession); err == nil {
		t.Error("a login is taken for a session")
	}
	session := w.sign(t, w.supervisor, pki.WebSession, func(c *pki.WebClaims) { c.Audience = "" })
	if _, _, err := pki.OpenWeb(w.verify, cluster, "s2", session, w.now, pki.WebSession); err != nil {
		t.Errorf("a session at another replica: %v", err)
	}
	if _, _, err := pki.OpenWeb(w.verify, cluster, "s2", session, w.now.Add(pki.WebLoginLife), pki.WebSession); !errors.Is(err,
		pki.ErrWebExpired) {
		t.Errorf("a session at its end: %v: want ErrExpired", err)
	}
}

// FuzzOpenWeb: no unsigned token is accepted.
func FuzzOpenWeb(f *testing.F) {
	w := newWorld(f)
	good := w.sign(f, w.person, pki.WebLogin, nil)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		c, _, err := pki.OpenWeb(w.verify, cluster, "s1", token, w.now, pki.WebLogin, pki.WebHandover, pki.WebSession, pki.WebAddress)
		if err == nil && c.Subject != "approver/ann" {
			t.Fatalf("%+v of %q", c, token)
		}
	})
}
