package pki

import (
	"crypto/ed25519"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestJoinTokenText(t *testing.T) {
	t.Parallel()
	tok := NewJoinToken([32]byte{1, 2, 3})
	back, err := ParseJoinToken(tok.String())
	if err != nil || back != tok {
		t.Fatalf("parse %s: %+v, %v: want %+v", tok, back, err, tok)
	}
	sum := tok.Sum()
	if other := NewJoinToken(tok.Pin); !tok.Is(sum[:]) || other.Is(sum[:]) || tok.Is(nil) {
		t.Error("a token does not match its own checksum, or matches another one")
	}
	text := tok.String()
	for name, s := range map[string]string{
		"empty": "", "cut": text[:len(text)-1], "longer": text + "a", "other version": "x" + text, "upper case": strings.ToUpper(text),
		"no secret": strings.Replace(text, tok.Secret, "", 1), "huge": strings.Repeat("a", 1<<20),
	} {
		_, err := ParseJoinToken(s)
		if err == nil || strings.Contains(err.Error(), tok.Secret) || len(err.Error()) > 200 {
			t.Errorf("%s: error %v: want one that does not quote the secret", name, err)
		}
	}
}

func FuzzJoinToken(f *testing.F) {
	f.Add(NewJoinToken([32]byte{}).String())
	f.Fuzz(func(t *testing.T, s string) {
		if tok, err := ParseJoinToken(s); err == nil && tok.String() != s {
			t.Errorf("%q is read as %q", s, tok)
		}
	})
}

// The authorities of a supervisor's answer are refused, or there is an authority among them.
func FuzzParseRoots(f *testing.F) {
	ca, err := NewCA("c")
	if err != nil {
		f.Fatal(err)
	}
	issuer, err := NewIssuer("c")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.CertPEM())
	f.Add(append(ca.CertPEM(), issuer.CertPEM()...))
	f.Add(issuer.CertPEM())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseRoots(b)
		certs, bad := parseCerts(b)
		if err == nil && (bad != nil || len(certs) <= len(a.issuers)) {
			t.Errorf("%q: %d certificates, %d issuers, %v: want an authority", b, len(certs), len(a.issuers), bad)
		}
	})
}

// A node that knows only the pin of a token, or only the authority, accepts its own cluster's supervisors, and nobody else.
func TestJoinTrustAcceptsOwnSupervisorsAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	server := func(name string, id Identity) (*CA, *tls.Config) {
		ca, err := NewCA("c")
		if err == nil {
			err = ca.Save(file(name+"ca.pem"), file(name+"ca.key"))
		}
		if err == nil {
			err = ca.IssueTo(file(name+".pem"), file(name+".key"), id, nil, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		conf, err := EnrolServerTLS(file(name+".pem"), file(name+".key"), file(name+"ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return ca, conf
	}
	supervisor := SupervisorIdentity("c", "s1")
	ca, good := server("good", supervisor)
	_, other := server("other", supervisor)
	operator := Identity{Cluster: "c", Role: RoleOperator, Name: "o"}
	opCA, person := server("person", operator)
	pin, personPin := PinOf(ca.cert), PinOf(opCA.cert)
	roots, err := Roots(file("goodca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		server *tls.Config
		trust  JoinTrust
		wrong  string // text of the error; empty: accepted
	}{
		"pin":                      {good, JoinTrust{Pin: &pin}, ""},
		"authority":                {good, JoinTrust{Roots: roots}, ""},
		"other cluster, pin":       {other, JoinTrust{Pin: &pin}, "another cluster than the token"},
		"other cluster, authority": {other, JoinTrust{Roots: roots}, "another cluster"},
		"an operator as server":    {person, JoinTrust{Pin: &personPin}, "want a supervisor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var who atomic.Pointer[Identity]
			a, b := net.Pipe()
			defer func() { _, _ = a.Close(), b.Close() }()
			go func() { _ = tls.Server(b, c.server).Handshake() }()
			err := tls.Client(a, c.trust.TLS(&who)).Handshake()
			if c.wrong == "" && (err != nil || *who.Load() != supervisor) {
				t.Errorf("handshake: %v", err)
			}
			if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong) || who.Load() != nil) {
				t.Errorf("handshake: %v: want %q", err, c.wrong)
			}
		})
	}
}

// A first certificate of an issuer is good for its key and its identity alone, and a revocation at its time ends it.
func TestIssuedCertificateIsCheckedAndRevocable(t *testing.T) {
	t.Parallel()
	ca, err := NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := NewIssuer("c")
	if err != nil {
		t.Fatal(err)
	}
	pem := append(ca.CertPEM(), issuer.CertPEM()...)
	id, now := NodeIdentity("c", "n1", 1), time.Now()
	file := filepath.Join(t.TempDir(), "key")
	key, err := KeepHalfKey(file)
	if err != nil || CheckProof(key.Public().(ed25519.PublicKey), id, ProveKey(key, id)) != nil {
		t.Fatalf("the key does not prove itself: %v", err)
	}
	if again, err := KeepHalfKey(file); err != nil || !again.Equal(key) {
		t.Errorf("the key is another one the second time: %v", err)
	}
	pub := key.Public().(ed25519.PublicKey)
	for _, lifetime := range []time.Duration{time.Minute, 720 * time.Hour} {
		der, err := issuer.Issue(now, id, pub, lifetime)
		if err != nil {
			t.Fatal(err)
		}
		check := func(pin *[32]byte, id Identity, key ed25519.PrivateKey) error {
			return CheckEnrolled(pem, pin, now, map[Identity][]byte{id: der}, map[Identity]ed25519.PrivateKey{id: key})
		}
		right, wrong := PinOf(ca.cert), [32]byte{}
		if err := check(&right, id, key); err != nil {
			t.Errorf("lifetime %s: %v", lifetime, err)
		}
		_, other, _ := ed25519.GenerateKey(nil)
		if check(&wrong, id, key) == nil || check(nil, NodeIdentity("c", "n2", 1), key) == nil || check(nil, id, other) == nil {
			t.Errorf("lifetime %s: a wrong pin, name or key is accepted", lifetime)
		}
		p, err := ReadPresented(der)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Descends.Before(CutOff(now)) || p.Descends.Before(CutOff(now.Add(-2*time.Second))) {
			t.Errorf("lifetime %s: descends from %s: want it revoked by a revocation of now, not by one before", lifetime, p.Descends)
		}
	}
	if _, err := issuer.Issue(now, SupervisorIdentity("c", "s"), pub, time.Hour); err == nil {
		t.Error("an issuer signs for a supervisor")
	}
	if _, err := issuer.Issue(now, NodeIdentity("d", "n1", 1), pub, time.Hour); err == nil {
		t.Error("an issuer signs for another cluster")
	}
}
