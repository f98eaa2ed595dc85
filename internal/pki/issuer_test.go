package pki

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
)

// withIssuer adds an issuer to the world's ca.pem.
func (w *world) withIssuer() *Issuer {
	w.t.Helper()
	i, err := NewIssuer(w.ca.Cluster())
	if err != nil {
		w.t.Fatal(err)
	}
	b, err := os.ReadFile(w.file("ca.pem"))
	if err == nil {
		err = os.WriteFile(w.file("ca.pem"), slices.Concat(b, i.CertPEM()), 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return i
}

// forge has a stolen issuer key sign any identity, with all uses and with the names of a supervisor and an executor
// process.
func (w *world) forge(i *Issuer, name string, id Identity) (cert, key string) {
	w.t.Helper()
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	tmpl, err := leafTemplate(id, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		w.t.Fatal(err)
	}
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	tmpl.DNSNames, tmpl.IPAddresses = []string{"localhost", SupervisorName("c1"), ExecutorName("c1")}, []net.IP{net.IPv4(127, 0, 0, 1)}
	der, err := signLeaf(tmpl, i.cert, pub, i.key)
	if err != nil {
		w.t.Fatal(err)
	}
	cert = w.file(name + ".pem")
	if err := SaveKept(cert, der, priv); err != nil {
		w.t.Fatal(err)
	}
	keyPEM, err := encodeKey(priv)
	if err == nil {
		err = os.WriteFile(w.file(name+".key"), keyPEM, 0o600)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return cert, w.file(name + ".key")
}

// TestIssuerMakesNodesOnly: with a stolen issuer key a thief makes nodes only. Every verifier refuses all other roles,
// and software that does not know issuers, such as etcd and earlier versions, refuses nodes too.
func TestIssuerMakesNodesOnly(t *testing.T) {
	w := newWorld(t, "c1")
	i := w.withIssuer()
	ca := w.file("ca.pem")
	v := w.verifier()
	sc, sk := w.issue("s0", SupervisorIdentity("c1", "s0"))
	oc, ok := w.issue("operator", Identity{"c1", RoleOperator, "o"})
	dc, dk := w.issue("dnp", NodeIdentity("c1", "n0-0-0", fault.HalfDNP))
	must := func(c *tls.Config, err error) *tls.Config {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	linkOf := func(cert, key string) *tls.Config {
		s, err := LoadSigner(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return must(LinkTLS(s, ca, nil))
	}
	plain := x509.NewCertPool() // as etcd and earlier versions read the file
	pem, err := os.ReadFile(ca)
	if err != nil || !plain.AppendCertsFromPEM(pem) {
		t.Fatal(err)
	}
	for _, role := range Roles() {
		id := Identity{"c1", role, "thief"}
		if role == RoleNode {
			id = NodeIdentity("c1", "n1-0-0", fault.HalfDNP)
		}
		cert, key := w.forge(i, "forged-"+string(role), id)
		s, err := LoadSigner(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		word := []byte("x")
		_, err = v.Verify(s.Cert(), word, s.Sign(word))
		_, _, serr := v.VerifyStatement("k", s.Cert(), word, s.SignStatement("k", word))
		_, aerr := v.VerifyStatementAt(time.Now(), "k", s.Cert(), word, s.SignStatement("k", word))
		server, client := handshake(t, linkOf(dc, dk), linkOf(cert, key))
		for what, err := range map[string]error{"message": err, "statement": serr, "stored statement": aerr,
			"link": errors.Join(server, client)} {
			if (err == nil) != (role == RoleNode) {
				t.Errorf("%s: %s: %v", role, what, err)
			}
		}
		for what, c := range map[string][2]*tls.Config{
			"API":          {must(ServerTLS(sc, sk, ca, nil)), must(ClientTLS(cert, key, ca, nil))},
			"API's server": {must(ServerTLS(cert, key, ca, nil)), must(ClientTLS(oc, ok, ca, nil))},
			"etcd": {{Certificates: []tls.Certificate{*mustLoad(t, sc, sk)}, ClientAuth: tls.RequireAndVerifyClientCert,
				ClientCAs: plain, MinVersion: tls.VersionTLS12}, must(EtcdTLS(cert, key, ca))},
			"etcd's server": {{Certificates: []tls.Certificate{*mustLoad(t, cert, key)}, MinVersion: tls.VersionTLS12},
				must(EtcdTLS(oc, ok, ca))},
			"an earlier peer": {must(ServerTLS(sc, sk, ca, nil)),
				{Certificates: []tls.Certificate{*mustLoad(t, cert, key)}, RootCAs: plain, ServerName: "localhost", MinVersion: tls.VersionTLS13}},
			"an earlier client": {{Certificates: []tls.Certificate{*mustLoad(t, cert, key)}, MinVersion: tls.VersionTLS13},
				{RootCAs: plain, ServerName: "localhost", MinVersion: tls.VersionTLS13}},
		} {
			if server, client := handshake(t, c[0], c[1]); server == nil && client == nil {
				t.Errorf("%s: %s: accepted", role, what)
			}
		}
	}
	// The same listeners accept a certificate of the authority.
	if s, c := handshake(t, &tls.Config{Certificates: []tls.Certificate{*mustLoad(t, sc, sk)},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: plain, MinVersion: tls.VersionTLS12}, must(EtcdTLS(oc, ok,
		ca))); s != nil || c != nil {
		t.Errorf("etcd: the authority's: %v, %v", s, c)
	}
}

func mustLoad(t *testing.T, cert, key string) *tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// TestIssuerIsNoAuthority: an issuer cannot sign an authority, and neither a file that has only an issuer nor LoadCA
// makes it one. LoadIssuer accepts neither an authority nor another cluster's issuer.
func TestIssuerIsNoAuthority(t *testing.T) {
	w := newWorld(t, "c1")
	i := w.withIssuer()
	if _, err := NewVerifier(i.CertPEM(), "c1"); err == nil {
		t.Error("a file with an issuer alone: accepted")
	}
	if err := i.Save(w.file("issuer.pem"), w.file("issuer.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(w.file("issuer.pem"), w.file("issuer.key")); err == nil {
		t.Error("LoadCA took an issuer")
	}
	if _, err := LoadIssuer(w.file("issuer.pem"), w.file("issuer.key"), "c1"); err != nil {
		t.Error(err)
	}
	for what, f := range map[string][3]string{
		"another cluster": {"issuer.pem", "issuer.key", "c2"}, "an authority": {"ca.pem", "ca.key", "c1"}, "another key": {"issuer.pem",
			"ca.key", "c1"}, "no file": {"none", "issuer.key", "c1"},
	} {
		if _, err := LoadIssuer(w.file(f[0]), w.file(f[1]), f[2]); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	second := &Issuer{cluster: "c1", cert: i.cert, key: i.key}
	tmpl, err := leafTemplate(hostHalf, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.KeyUsage = true, true, x509.KeyUsageCertSign
	pub, key, _ := ed25519.GenerateKey(nil)
	der, err := signLeaf(tmpl, i.cert, pub, i.key)
	if err != nil {
		t.Fatal(err)
	}
	if second.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	second.key = key
	leaf, err := second.Renew(time.Now(), Presented{Identity: hostHalf, NotBefore: time.Now().Add(-time.Hour)}, pub, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.verifier().certificate(leaf); err == nil {
		t.Error("the leaf of an authority that an issuer signed: accepted")
	}
}

// renewed has an issuer renew a signer's certificate, and returns it with its key.
func renewed(t *testing.T, i *Issuer, now time.Time, s *Signer, lifetime time.Duration) ([]byte, ed25519.PrivateKey) {
	t.Helper()
	with, err := ReadPresented(s.Cert())
	if err != nil {
		t.Fatal(err)
	}
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := i.Renew(now, with, pub, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// TestRenewedCertificate: it has the identity of the presented one, begins later, ends after the lifetime or with the
// issuer, is small enough to travel with reports, and no revocation of the presented one spares it.
func TestRenewedCertificate(t *testing.T) {
	w := newWorld(t, "c1")
	i := w.withIssuer()
	registry := NewRegistry()
	v := w.verifier(WithRegistry(registry))
	s := w.signer(hostHalf)
	for _, life := range []time.Duration{40 * time.Second, 24 * time.Hour, 30 * 24 * time.Hour} {
		now := time.Now()
		was, err := v.certificate(s.Cert())
		if err != nil {
			t.Fatal(err)
		}
		der, key := renewed(t, i, now, s, life)
		c, err := v.certificate(der)
		if err != nil {
			t.Fatalf("%s: %v", life, err)
		}
		if got := c.notAfter.Sub(now); c.id != hostHalf || got > life || got < life-2*time.Second {
			t.Errorf("%s: is of %s for %s", life, c.id, got)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if !cert.NotBefore.After(s.Begins()) || !began(cert).Equal(was.began) {
			t.Errorf("%s: begins %s, descends from %s: want after %s, from %s", life, cert.NotBefore, began(cert), s.Begins(), was.began)
		}
		if len(der) > 450 {
			t.Errorf("%s: %d bytes: want at most 450", life, len(der))
		}
		s.pair.Store(&pair{der: der, key: key, from: cert.NotBefore, until: cert.NotAfter})
	}
	// A thief gains nothing by renewals with a stolen key just before the revocation, however many.
	registry.Set([]Denial{{Identity: hostHalf, Before: CutOff(time.Now())}})
	der, _ := renewed(t, i, time.Now().Add(time.Hour), s, 8*time.Hour)
	for what, der := range map[string][]byte{"before": s.Cert(), "after": der} {
		if _, err := v.certificate(der); !errors.Is(err, ErrRevoked) {
			t.Errorf("renewed %s the revocation: %v: want it revoked", what, err)
		}
	}
	if seen := registry.Seen(); len(seen) != 1 || !registry.Revoked(seen[0]) {
		t.Errorf("seen: %v", seen)
	}
	ends := *i
	cert := *i.cert
	cert.NotAfter = time.Now().Add(time.Minute)
	ends.cert = &cert
	der, _ = renewed(t, &ends, time.Now(), w.signer(hostHalf), time.Hour)
	if c, err := x509.ParseCertificate(der); err != nil || c.NotAfter.After(cert.NotAfter) {
		t.Errorf("ends after its issuer: %v, %v", c.NotAfter, err)
	}
	for _, id := range []Identity{SupervisorIdentity("c1", "s0"), NodeIdentity("c2", "n0-0-0", fault.HalfHost)} {
		if _, err := i.Renew(time.Now(), Presented{Identity: id}, make([]byte, ed25519.PublicKeySize), time.Hour); err == nil {
			t.Errorf("renewed %s", id)
		}
	}
}

// TestRenewedPairIsReadAgainAfterFailure: a half whose first reading of its renewed certificate fails, here for lack of a descriptor,
// uses it later, although the file does not change.
func TestRenewedPairIsReadAgainAfterFailure(t *testing.T) {
	w := newWorld(t, "c1")
	i := w.withIssuer()
	cert, key := w.issue("host", hostHalf)
	s, err := LoadSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	v, file := w.verifier(), w.file("host.renewed")
	der, renewedKey := renewed(t, i, time.Now(), s, time.Hour)
	if err := SaveKept(file, der, renewedKey); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	failed := s.KeepIn(file, v)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(failed, unix.EMFILE) {
		t.Fatalf("reading without a free descriptor: %v: want %v", failed, unix.EMFILE)
	}
	if took, err := s.Renew(); err != nil || !took || !bytes.Equal(s.Cert(), der) {
		t.Errorf("the next reading: %t, %v: want the renewed certificate", took, err)
	}
}

// TestShortLivedNodeIsRevokedAsAnyOther: the authority dates short-lived certificates back less, and a revocation
// refuses them all the same.
func TestShortLivedNodeIsRevokedAsAnyOther(t *testing.T) {
	w := newWorld(t, "c1")
	w.ca.SetNodeLifetime(40 * time.Second)
	registry := NewRegistry()
	v := w.verifier(WithRegistry(registry))
	now := time.Now()
	w.ca.now = func() time.Time { return now.Add(-10 * time.Second) }
	before := w.signer(hostHalf)
	if life := before.Expires().Sub(before.Begins()); life < 49*time.Second || life > 51*time.Second {
		t.Errorf("lives %s: want 50s", life)
	}
	registry.Set([]Denial{{Identity: hostHalf, Before: CutOff(now)}})
	if _, err := v.certificate(before.Cert()); !errors.Is(err, ErrRevoked) {
		t.Errorf("issued before the revocation: %v", err)
	}
	w.ca.now = func() time.Time { return now.Add(2 * time.Second) }
	if _, err := v.certificate(w.signer(hostHalf).Cert()); err != nil {
		t.Errorf("issued after the revocation: %v", err)
	}
}

func TestProofOfKey(t *testing.T) {
	pub, key, _ := ed25519.GenerateKey(nil)
	other, _, _ := ed25519.GenerateKey(nil)
	proof := ProveKey(key, hostHalf)
	if err := CheckProof(pub, hostHalf, proof); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"another key": CheckProof(other, hostHalf, proof), "another half": CheckProof(pub, NodeIdentity("c1", "n0-0-0", fault.HalfDNP), proof),
		"no proof": CheckProof(pub, hostHalf, nil), "no key": CheckProof(nil, hostHalf, proof),
	} {
		if !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestKeptPair: of the pair in the files and the renewed one the signer uses the later. It refuses an expired, revoked,
// foreign or damaged pair, with the reason.
func TestKeptPair(t *testing.T) {
	w := newWorld(t, "c1")
	older, i := w.withIssuer(), w.withIssuer()
	at := time.Now()
	registry := NewRegistry()
	open := func() (*Signer, *Verifier) {
		t.Helper()
		v := w.verifier(WithClock(func() time.Time { return at }), WithRegistry(registry))
		s, err := LoadSigner(w.file("signer.pem"), w.file("signer.key"))
		if err != nil {
			t.Fatal(err)
		}
		return s, v
	}
	w.signer(hostHalf)
	file := filepath.Join(w.dir, "host.renewed")
	s, v := open()
	newestCert := v.roots.newest()
	if newestCert.Equal(older.cert) {
		older, i = i, older
	}
	inFiles := s.Cert()
	if err := s.KeepIn(file, v); err != nil || !slices.Equal(s.Cert(), inFiles) {
		t.Fatalf("no renewed pair: %v", err)
	}
	der, key := renewed(t, i, at, s, time.Hour)
	if err := SaveKept(file, der, key); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if changed, err := s.Renew(); !changed || err != nil || !slices.Equal(s.Cert(), der) {
		t.Fatalf("renewed pair: changed %v, %v", changed, err)
	}
	if _, err := v.Verify(s.Cert(), []byte("x"), s.Sign([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	// A later start finds it too.
	again, av := open()
	if err := again.KeepIn(file, av); err != nil || !slices.Equal(again.Cert(), der) {
		t.Errorf("after a restart: %v", err)
	}
	refuses := func(what, why string) {
		t.Helper()
		s, v := open()
		if err := s.KeepIn(file, v); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v: want %q and the file", what, err, why)
		}
		if slices.Equal(s.Cert(), der) {
			t.Errorf("%s: used", what)
		}
	}
	at = at.Add(2 * time.Hour)
	refuses("expired", "expired")
	if changed, err := s.Renew(); !changed || err == nil || !slices.Equal(s.Cert(), inFiles) {
		t.Errorf("expired while in use: changed %v, %v", changed, err)
	}
	at = at.Add(-2 * time.Hour)
	registry.Set([]Denial{{Identity: hostHalf, Before: CutOff(at)}})
	refuses("revoked", "revoked")
	registry.Set(nil)
	foreign := newWorld(t, "c1").withIssuer()
	fder, fkey := renewed(t, foreign, at, s, time.Hour)
	if err := SaveKept(file, fder, fkey); err != nil {
		t.Fatal(err)
	}
	refuses("foreign", "unknown authority")
	if err := SaveKept(file, der, fkey); err != nil {
		t.Fatal(err)
	}
	refuses("another key", "does not belong")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses("damaged", "want a certificate and its key")
	other := w.signer(NodeIdentity("c1", "n9-0-0", fault.HalfHost))
	oder, okey := renewed(t, i, at, other, time.Hour)
	if err := SaveKept(file, oder, okey); err != nil {
		t.Fatal(err)
	}
	w.signer(hostHalf)
	refuses("of another half", "want "+hostHalf.String())

	// An earlier issuer's pair yields to good files, whichever begins later, but not to expired ones.
	s, v = open()
	inFiles = s.Cert()
	oder, okey = renewed(t, older, at, s, 48*time.Hour)
	if err := SaveKept(file, oder, okey); err != nil {
		t.Fatal(err)
	}
	if err := s.KeepIn(file, v); err != nil || !slices.Equal(s.Cert(), inFiles) {
		t.Errorf("an earlier issuer's pair: %v", err)
	}
	w.ca.SetNodeLifetime(time.Hour)
	w.signer(hostHalf)
	at = at.Add(3 * time.Hour)
	s, v = open()
	if err := s.KeepIn(file, v); err != nil || !slices.Equal(s.Cert(), oder) {
		t.Errorf("an earlier issuer's pair beside an expired one: %v", err)
	}
	// New files of the operator take over.
	w.ca.SetNodeLifetime(leafValidity)
	w.ca.now = func() time.Time { return at }
	w.signer(hostHalf)
	if changed, err := s.Renew(); !changed || err != nil || slices.Equal(s.Cert(), oder) {
		t.Errorf("new files: changed %v, %v", changed, err)
	}
}
