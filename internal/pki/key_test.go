package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
)

// newWorldOf is newWorld with a chosen type of authority key.
func newWorldOf(t *testing.T, k KeyType) *world {
	t.Helper()
	ca, err := NewCAOf(k, "c1")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ca: ca, dir: t.TempDir()}
	if err := ca.Save(w.file("ca.pem"), w.file("ca.key")); err != nil {
		t.Fatal(err)
	}
	if w.ca, err = LoadCA(w.file("ca.pem"), w.file("ca.key")); err != nil || w.ca.KeyType() != k {
		t.Fatalf("load the authority: %v: want one with %s", err, k)
	}
	return w
}

// issueKey writes NAME.pem and NAME.key with a type of key.
func (w *world) issueKey(name string, id Identity, k KeyType) (cert, key string) {
	w.t.Helper()
	cert, key = w.file(name+".pem"), w.file(name+".key")
	if err := w.ca.IssueTo(cert, key, id, []net.IP{net.IPv4(127, 0, 0, 1)}, nil, WithKey(k)); err != nil {
		w.t.Fatal(err)
	}
	return cert, key
}

// TestKeyTypesWorkTogether: with an authority and an operator of either type, nodes' messages and the operator's
// statements are accepted, TLS works in both directions, and one revocation ends all certificates of an identity.
func TestKeyTypesWorkTogether(t *testing.T) {
	for _, authority := range KeyTypes() {
		for _, person := range KeyTypes() {
			t.Run(string(authority)+" authority and "+string(person)+" operator", func(t *testing.T) {
				w, registry := newWorldOf(t, authority), NewRegistry()
				v := w.verifier(WithRegistry(registry))
				half, message := w.signer(hostHalf), []byte("a report")
				if id, err := v.Verify(half.Cert(), message, half.Sign(message)); err != nil || id != hostHalf {
					t.Errorf("message of %v: %v", id, err)
				}
				operator := Identity{"c1", RoleOperator, "o"}
				cert, key := w.issueKey("operator", operator, person)
				s, err := LoadSigner(cert, key)
				if err != nil {
					t.Fatal(err)
				}
				login, err := NewWebLogin(s, "s0", time.Now())
				if err != nil {
					t.Fatal(err)
				}
				if c, _, err := OpenWeb(v, "c1", "s0", login, time.Now(), WebLogin); err != nil || c.Subject != "operator/o" {
					t.Errorf("login of %q: %v", c.Subject, err)
				}
				if _, _, err := v.VerifyStatement("other", s.Cert(), message, s.SignStatement("kind", message)); !errors.Is(err, ErrSignature) {
					t.Errorf("statement of another kind: %v", err)
				}
				servers := w.dials(cert, key)
				w.revokes(v, registry, s, servers)
			})
		}
	}
}

// dials connects a client to a server with both pairs of a replica, once with and once without Ed25519. It returns the
// replica's certificates that the client saw.
func (w *world) dials(cert, key string) []*x509.Certificate {
	w.t.Helper()
	id := SupervisorIdentity("c1", "s0")
	sc, sk := w.issue("s0", id)
	ec, ek := w.issueKey("s0-ecdsa", id, KeyECDSA)
	second, err := LoadECDSA(ec, ek, w.file("ca.pem"), id)
	if err != nil {
		w.t.Fatal(err)
	}
	server, err := ServerTLS(sc, sk, w.file("ca.pem"), AllowRoles(RoleOperator))
	if err != nil {
		w.t.Fatal(err)
	}
	server = second.WithTLS(server)
	client, err := ClientTLS(cert, key, w.file("ca.pem"), AllowRoles(RoleSupervisor))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []*x509.Certificate
	given := client.VerifyConnection
	client.VerifyConnection = func(cs tls.ConnectionState) error {
		out = append(out, cs.PeerCertificates[0])
		return given(cs)
	}
	choose := server.GetCertificate
	for _, scheme := range []tls.SignatureScheme{tls.Ed25519, tls.ECDSAWithP256AndSHA256} { // Go's clients always offer both
		server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return choose(&tls.ClientHelloInfo{SignatureSchemes: []tls.SignatureScheme{scheme}})
		}
		if s, c := handshake(w.t, server, client); s != nil || c != nil {
			w.t.Errorf("client with %v: %v, %v", scheme, s, c)
		}
	}
	if len(out) != 2 || typeOf(out[0].PublicKey) != KeyEd25519 || typeOf(out[1].PublicKey) != KeyECDSA {
		w.t.Fatalf("a server with two pairs showed %d certificates: want Ed25519 and ECDSA", len(out))
	}
	return out
}

// revokes has an operator revoke the replica, and checks that the certificates are refused.
func (w *world) revokes(v *Verifier, r *Registry, by *Signer, certs []*x509.Certificate) {
	w.t.Helper()
	d := &denyWorld{T: w.t, ca: w.ca, registry: r, verifier: v}
	k, _ := NewDenyListKeeper("", "c1", v, r)
	list := listOf(1, denial(SupervisorIdentity("c1", "s0")), denial(Identity{"c1", RoleViewer, "v"}))
	if taken, err := k.Take(d.signed(list, by)); !taken || err != nil {
		w.t.Fatalf("list taken %t: %v", taken, err)
	}
	for _, c := range certs {
		if err := r.CheckCertificate(c); !errors.Is(err, ErrRevoked) {
			w.t.Errorf("%s certificate of a revoked replica: %v", typeOf(c.PublicKey), err)
		}
	}
	forged, err := SignDenyList(listOf(2), by)
	if err != nil {
		w.t.Fatal(err)
	}
	forged.List = append(forged.GetList(), 0x10, 0x03) // version 3
	raw, err := proto.Marshal(forged)
	if err != nil {
		w.t.Fatal(err)
	}
	if taken, err := k.Take(raw); taken || !errors.Is(err, ErrSignature) {
		w.t.Errorf("a list under another list's signature: taken %t, %v", taken, err)
	}
}

// TestMembersSignWithEd25519: an ECDSA key is for TLS and for people's statements; a message that it signed is refused.
func TestMembersSignWithEd25519(t *testing.T) {
	w := newWorld(t, "c1")
	v, word := w.verifier(), []byte("a report")
	for _, id := range []Identity{hostHalf, SupervisorIdentity("c1", "s0"), {"c1", RoleExecutor, "x"}} {
		cert, key := w.issueKey("member", id, KeyECDSA)
		if _, err := LoadSigner(cert, key); err == nil || !strings.Contains(err.Error(), "want Ed25519") {
			t.Errorf("%s signs with ECDSA: %v", id, err)
		}
		s, err := loadTLS(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Verify(s.Cert(), word, s.Sign(word)); !errors.Is(err, ErrCertificate) {
			t.Errorf("message of %s under ECDSA: %v", id, err)
		}
		if _, _, err := v.VerifyStatement("kind", s.Cert(), word, s.SignStatement("kind", word)); !errors.Is(err, ErrCertificate) {
			t.Errorf("statement of %s under ECDSA: %v", id, err)
		}
	}
	s, err := LoadSigner(w.issueKey("viewer", Identity{"c1", RoleViewer, "v"}, KeyECDSA))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(s.Cert(), word, s.Sign(word)); !errors.Is(err, ErrSignature) || s.Key() != nil {
		t.Errorf("message of a viewer under ECDSA: %v", err)
	}
}

// p384 writes NAME.pem and NAME.key with a key of P-384, as other authorities' programs make.
func (w *world) p384(name string, id Identity) (cert, key string) {
	w.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	tmpl, err := leafTemplate(id, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		w.t.Fatal(err)
	}
	der, err := signLeaf(tmpl, w.ca.cert, private.Public(), w.ca.key)
	if err != nil {
		w.t.Fatal(err)
	}
	keyPEM, err := encodeKey(private)
	if err != nil {
		w.t.Fatal(err)
	}
	cert, key = w.file(name+".pem"), w.file(name+".key")
	if err := WritePair(cert, key, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der}), keyPEM); err != nil {
		w.t.Fatal(err)
	}
	return cert, key
}

// TestErrorsNameTheCurve: P-256 and P-384 have one type in Go; errors name the curve and the keys that the role may have.
func TestErrorsNameTheCurve(t *testing.T) {
	w := newWorld(t, "c1")
	replica, person := SupervisorIdentity("c1", "s0"), Identity{"c1", RoleViewer, "v"}
	sc, sk := w.p384("s0", replica)
	pc, _ := w.p384("viewer", person)
	der := func(file string) []byte {
		b, err := readPEM("certificate", file, pemCert)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{second(LoadECDSA(sc, sk, w.file("ca.pem"), replica)), "s0.key: of type ECDSA P-384: want Ed25519 or ECDSA P-256"},
		{second(w.verifier().Check(der(pc))), person.String() + " has a key of type ECDSA P-384: want Ed25519 or ECDSA P-256"},
		{second(w.verifier().Check(der(sc))), replica.String() + " has a key of type ECDSA P-384: want Ed25519"},
		{second(LoadSigner(w.issueKey("s1", replica, KeyECDSA))), replica.String() + " has a key of type ECDSA P-256: want Ed25519"},
	} {
		if tc.err == nil || !strings.HasSuffix(tc.err.Error(), tc.want) {
			t.Errorf("%v: want %q", tc.err, tc.want)
		}
	}
}

// TestReloadedSecondPairIsChecked: a running replica checks a new second pair like one at its start.
func TestReloadedSecondPairIsChecked(t *testing.T) {
	w, other := newWorld(t, "c1"), newWorld(t, "c1")
	id := SupervisorIdentity("c1", "s0")
	cert, key := w.issueKey("s0-ecdsa", id, KeyECDSA)
	s, err := LoadECDSA(cert, key, w.file("ca.pem"), id)
	if err != nil {
		t.Fatal(err)
	}
	was := s.Cert()
	replace := func(certFile, keyFile string) error {
		t.Helper()
		for from, to := range map[string]string{certFile: cert, keyFile: key} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
		renewed, err := s.Renew()
		if renewed || !bytes.Equal(s.Cert(), was) {
			t.Error("the new pair is in use")
		}
		return err
	}
	for want, err := range map[string]error{
		"has a key of type Ed25519: want ECDSA P-256": replace(w.issue("ed25519", id)),
		"unknown authority":                           replace(other.issueKey("other", id, KeyECDSA)),
		"expired":                                     replace(w.ended("ended", id)),
		"want " + id.String():                         replace(w.issueKey("s1", SupervisorIdentity("c1", "s1"), KeyECDSA)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if err := w.ca.IssueTo(cert, key, id, nil, nil, WithKey(KeyECDSA)); err != nil {
		t.Fatal(err)
	}
	if renewed, err := s.Renew(); !renewed || err != nil {
		t.Errorf("a good pair: renewed %t, %v", renewed, err)
	}
}

// ended writes a second pair that has expired.
func (w *world) ended(name string, id Identity) (cert, key string) {
	w.t.Helper()
	w.ca.now = func() time.Time { return time.Now().Add(-leafValidity - time.Hour) }
	defer func() { w.ca.now = time.Now }()
	return w.issueKey(name, id, KeyECDSA)
}

// TestEndedSecondPairIsNotShown: a second pair that has expired is loaded, so that its successor can replace it, but
// clients see the first one.
func TestEndedSecondPairIsNotShown(t *testing.T) {
	w := newWorld(t, "c1")
	id := SupervisorIdentity("c1", "s0")
	cert, key := w.ended("s0-ecdsa", id)
	s, err := LoadECDSA(cert, key, w.file("ca.pem"), id)
	if err != nil || s.CheckTime() == nil {
		t.Fatalf("an expired second pair: %v", err)
	}
	shown := w.shown(s)
	if got := shown(); got != KeyEd25519 {
		t.Errorf("shown beside an expired second pair: %s", got)
	}
	if err := w.ca.IssueTo(cert, key, id, nil, nil, WithKey(KeyECDSA)); err != nil {
		t.Fatal(err)
	}
	if got := shown(); got != KeyECDSA || s.CheckTime() != nil {
		t.Errorf("shown after the renewal: %s", got)
	}
}

// TestSlowClockDelaysSecondPair: a replica that boots before its clock is set loads its second pair, and shows it once the clock is right.
func TestSlowClockDelaysSecondPair(t *testing.T) {
	w := newWorld(t, "c1")
	id := SupervisorIdentity("c1", "s0")
	cert, key := w.issueKey("s0-ecdsa", id, KeyECDSA)
	foreign, foreignKey := newWorld(t, "c1").issueKey("s0-ecdsa", id, KeyECDSA)
	synctest.Test(t, func(t *testing.T) { // the clock begins in 2000, before the authority and the pair
		if _, err := LoadECDSA(foreign, foreignKey, w.file("ca.pem"), id); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("another authority's pair: %v", err)
		}
		s, err := LoadECDSA(cert, key, w.file("ca.pem"), id)
		if err != nil {
			t.Fatal(err)
		}
		want := "certificate " + cert + ": not valid until "
		if err := s.CheckTime(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("checked before its beginning: %v: want %q", err, want)
		}
		shown := w.shown(s)
		if got := shown(); got != KeyEd25519 {
			t.Errorf("shown with a slow clock: %s", got)
		}
		time.Sleep(time.Until(s.Begins()))
		if got := shown(); got != KeyECDSA || s.CheckTime() != nil {
			t.Errorf("shown with the right clock: %s", got)
		}
	})
}

// shown returns the type of the key that a server with a second pair shows to clients that refuse Ed25519.
func (w *world) shown(second *Signer) func() KeyType {
	w.t.Helper()
	t := w.t
	sc, sk := w.issue("s0", second.Identity())
	server, err := ServerTLS(sc, sk, w.file("ca.pem"), nil)
	if err != nil {
		t.Fatal(err)
	}
	server = second.WithTLS(server)
	return func() KeyType {
		t.Helper()
		c, err := server.GetCertificate(&tls.ClientHelloInfo{SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}})
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return typeOf(leaf.PublicKey)
	}
}

func TestLoadECDSARefuses(t *testing.T) {
	w, other := newWorld(t, "c1"), newWorld(t, "c1")
	id, ca := SupervisorIdentity("c1", "s0"), w.file("ca.pem")
	load := func(cert, key string) error { _, err := LoadECDSA(cert, key, ca, id); return err }
	for want, err := range map[string]error{
		"has a key of type Ed25519: want ECDSA P-256": load(w.issue("ed25519", id)),
		"want " + id.String():                         load(w.issueKey("other", SupervisorIdentity("c1", "s1"), KeyECDSA)),
		"unknown authority":                           load(other.issueKey("s0", id, KeyECDSA)),
		"no such file":                                load(w.file("none.pem"), w.file("none.key")),
		`given "rsa": want one of ecdsa, ed25519`:     second(NewCAOf("rsa", "c1")),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}
