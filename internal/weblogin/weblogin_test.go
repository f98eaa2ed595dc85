package weblogin_test

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
	"github.com/lofamo/lofamo/internal/weblogin"
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

func (w world) claims(change func(*weblogin.Claims)) weblogin.Claims {
	c := weblogin.Claims{Cluster: cluster, Subject: "approver/ann", Audience: "s1", ID: "x", Issued: w.now.Unix(),
		Expires: w.now.Add(weblogin.LoginLife).Unix()}
	if change != nil {
		change(&c)
	}
	return c
}

func (w world) sign(t testing.TB, s *pki.Signer, kind weblogin.Kind, change func(*weblogin.Claims)) string {
	t.Helper()
	token, err := weblogin.Sign(s, kind, w.claims(change))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestLogin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token, err := weblogin.NewLogin(w.person, "s1", w.now)
	if err != nil {
		t.Fatal(err)
	}
	c, kind, err := weblogin.Open(w.verify, cluster, "s1", token, w.now, weblogin.Login, weblogin.Handover)
	if err != nil || kind != weblogin.Login || c.Subject != "approver/ann" || c.Role() != pki.RoleApprover {
		t.Fatalf("%+v %q %v", c, kind, err)
	}
	if until := time.Unix(c.Until, 0); until.Before(w.now.Add(time.Hour)) {
		t.Errorf("sessions of it end at %v: want the end of the certificate", until)
	}
	if _, err := weblogin.NewLogin(w.node, "s1", w.now); err == nil {
		t.Error("a node may log in")
	}
	if _, err := weblogin.NewLogin(w.supervisor, "s1", w.now); err == nil {
		t.Error("a supervisor may log in")
	}
}

// TestRefused: whatever a token says beyond what its signer may say is refused, whoever signs it.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := []weblogin.Kind{weblogin.Login, weblogin.Handover, weblogin.Session, weblogin.Address}
	good := w.sign(t, w.person, weblogin.Login, nil)
	parts := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"cluster":"c1","sub":"approver/eve","aud":"s1","id":"x","iat":1,"exp":2}`))
	for name, token := range map[string]string{
		"nothing":                   "",
		"too long":                  strings.Repeat("a", weblogin.MaxToken+1),
		"no base64":                 "!.!.!",
		"two parts":                 parts[0] + "." + parts[1],
		"other claims":              forged + "." + parts[1] + "." + parts[2],
		"another authority":         w.sign(t, w.elsewhere, weblogin.Login, nil),
		"a node":                    w.sign(t, w.node, weblogin.Login, func(c *weblogin.Claims) { c.Subject = "node/n0-0-0/host" }),
		"for somebody else":         w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Subject = "approver/eve" }),
		"with more rights":          w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Subject = "supervisor/s1" }),
		"a person's session":        w.sign(t, w.person, weblogin.Session, nil),
		"a person's handover":       w.sign(t, w.person, weblogin.Handover, nil),
		"a supervisor's login":      w.sign(t, w.supervisor, weblogin.Login, nil),
		"a session of a supervisor": w.sign(t, w.supervisor, weblogin.Session, func(c *weblogin.Claims) { c.Subject = "supervisor/s1" }),
		"for another supervisor":    w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Audience = "s2" }),
		"of another cluster":        w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Cluster = "c2" }),
		"handover to anybody":       w.sign(t, w.supervisor, weblogin.Handover, func(c *weblogin.Claims) { c.Audience = "" }),
		"without id":                w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.ID = "" }),
		"for an hour":               w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Expires = c.Issued + 3600 }),
		"for ever by overflow": w.sign(t, w.person, weblogin.Login,
			func(c *weblogin.Claims) { c.Issued, c.Expires = math.MinInt64+200, math.MaxInt64-200 }),
		"for a year by overflow": w.sign(t, w.person, weblogin.Login,
			func(c *weblogin.Claims) { c.Issued, c.Expires = math.MinInt64+300, w.now.Add(365*24*time.Hour).Unix() }),
		"ends before it begins":     w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Expires = c.Issued - 1 }),
		"session to a negative end": w.sign(t, w.supervisor, weblogin.Handover, func(c *weblogin.Claims) { c.Until = -1 }),
		"from the future":           w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Issued += 600; c.Expires += 600 }),
		"old":                       w.sign(t, w.person, weblogin.Login, func(c *weblogin.Claims) { c.Issued -= 600; c.Expires -= 600 }),
	} {
		if c, kind, err := weblogin.Open(w.verify, cluster, "s1", token, w.now, all...); err == nil {
			t.Errorf("%s: taken as %s: %+v", name, kind, c)
		}
	}
	if _, _, err := weblogin.Open(w.verify, cluster, "s1", good, w.now, weblogin.Session); err == nil {
		t.Error("a login is taken for a session")
	}
	session := w.sign(t, w.supervisor, weblogin.Session, func(c *weblogin.Claims) { c.Audience = "" })
	if _, _, err := weblogin.Open(w.verify, cluster, "s2", session, w.now, weblogin.Session); err != nil {
		t.Errorf("a session at another replica: %v", err)
	}
	if _, _, err := weblogin.Open(w.verify, cluster, "s2", session, w.now.Add(weblogin.LoginLife), weblogin.Session); !errors.Is(err,
		weblogin.ErrExpired) {
		t.Errorf("a session at its end: %v: want ErrExpired", err)
	}
}

// FuzzOpen: whatever comes, nothing that was not signed is taken.
func FuzzOpen(f *testing.F) {
	w := newWorld(f)
	good := w.sign(f, w.person, weblogin.Login, nil)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		c, _, err := weblogin.Open(w.verify, cluster, "s1", token, w.now, weblogin.Login, weblogin.Handover, weblogin.Session, weblogin.Address)
		if err == nil && c.Subject != "approver/ann" {
			t.Fatalf("%+v of %q", c, token)
		}
	})
}
