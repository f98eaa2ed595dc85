package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// world is a CA and a folder of certificates.
type world struct {
	t   *testing.T
	ca  *CA
	dir string
}

func newWorld(t *testing.T, cluster string) *world {
	t.Helper()
	ca, err := NewCA(cluster)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ca: ca, dir: t.TempDir()}
	if err := ca.Save(w.file("ca.pem"), w.file("ca.key")); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) file(name string) string { return filepath.Join(w.dir, name) }

// issue writes NAME.pem and NAME.key and returns both paths.
func (w *world) issue(name string, id Identity) (cert, key string) {
	w.t.Helper()
	cert, key = w.file(name+".pem"), w.file(name+".key")
	if err := w.ca.IssueTo(cert, key, id, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}); err != nil {
		w.t.Fatal(err)
	}
	return cert, key
}

func (w *world) signer(id Identity) *Signer {
	w.t.Helper()
	s, err := LoadSigner(w.issue("signer", id))
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) verifier(opts ...VerifierOption) *Verifier {
	w.t.Helper()
	v, err := LoadVerifier(w.file("ca.pem"), w.ca.Cluster(), opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

var hostHalf = NodeIdentity("c1", "n0-0-0", fault.HalfHost)

func TestIdentity(t *testing.T) {
	for _, id := range []Identity{
		hostHalf, SupervisorIdentity("c1", "s0"), {"a.b-c", RoleViewer, "eve@example.org"}, {"c1", RoleApprover, "x"},
	} {
		got, err := ParseIdentity(id.String())
		if err != nil || got != id {
			t.Errorf("%s parses as %v, %v", id, got, err)
		}
	}
	if o, ok := NodeIdentity("c1", "n1-0-1", fault.HalfDNP).Origin(); !ok || o != (fault.Origin{Node: "n1-0-1", Half: fault.HalfDNP}) {
		t.Errorf("origin %v, %t", o, ok)
	}
	if _, ok := SupervisorIdentity("c1", "n0-0-0/host").Origin(); ok {
		t.Error("a supervisor is the origin of a node's reports")
	}
	for _, bad := range []string{
		"", "lofamo://", "https://c1/viewer/x", "lofamo://c1/king/x", "lofamo://c1/node/n0-0-0", "lofamo://c1/node/n0-0-0/both",
		"lofamo://c1/node/a/b/host", "lofamo://c1/viewer/", "lofamo://C1/viewer/x", "lofamo://c1/viewer/x?y", "lofamo://c1/viewer/x#y",
		"lofamo://c1/viewer/%78", "lofamo://u@c1/viewer/x", "lofamo://c1:1/viewer/x", "lofamo://c1//viewer/x", "lofamo://c1/viewer/x y", ":",
	} {
		if id, err := ParseIdentity(bad); err == nil {
			t.Errorf("%q parses as %v", bad, id)
		}
	}
	if _, err := IdentityOf(nil); err == nil {
		t.Error("no certificate has an identity")
	}
	if _, err := IdentityOf(&x509.Certificate{}); err == nil || !strings.Contains(err.Error(), "exactly one") {
		t.Errorf("no SAN: %v", err)
	}
}

func TestFilesAndSizes(t *testing.T) {
	w := newWorld(t, "lofamo-local")
	cert, key := w.file("n.pem"), w.file("n.key")
	if err := w.ca.IssueTo(cert, key, NodeIdentity("lofamo-local", "n10-10-10", fault.HalfHost), nil, nil); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{cert: 0o644, key: 0o600, w.file("ca.pem"): 0o644, w.file("ca.key"): 0o600} {
		st, err := os.Stat(path)
		if err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v: want %v", path, st.Mode(), err, want)
		}
	}
	s, err := LoadSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	// It travels in every datagram of 1,400 bytes.
	if n := len(s.Cert()); n >= 420 {
		t.Errorf("a node's certificate has %d bytes of DER: want less than 420", n)
	} else {
		t.Logf("a node's certificate has %d bytes of DER", n)
	}
	again, err := LoadCA(w.file("ca.pem"), w.file("ca.key"))
	if err != nil || again.Cluster() != "lofamo-local" {
		t.Fatalf("load the CA again: %v", err)
	}
	leaf, _, err := again.Issue(SupervisorIdentity("lofamo-local", "s0"), []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(leaf)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := Roots(w.file("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	// Embedded etcd uses one certificate on both sides.
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		for _, name := range []string{"127.0.0.1", "localhost"} {
			if _, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
				t.Errorf("%s, usage %v: %v", name, usage, err)
			}
		}
	}
}

// TestNextAuthoritiesHaveTheirOwnNames: the names differ, each has the cluster's name, and nodes' certificates stay small.
func TestNextAuthoritiesHaveTheirOwnNames(t *testing.T) {
	w := newWorld(t, "lofamo-local")
	ca, names := w.ca, map[string]bool{}
	for range 12 {
		names[string(ca.cert.RawSubject)] = true
		next, err := ca.Next(KeyECDSA)
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Save(w.file("next.pem"), w.file("next.key")); err != nil {
			t.Fatal(err)
		}
		if ca, err = LoadCA(w.file("next.pem"), w.file("next.key")); err != nil || ca.Cluster() != "lofamo-local" {
			t.Fatalf("load the next authority: %v", err)
		}
	}
	if len(names) != 12 {
		t.Errorf("12 authorities have %d names", len(names))
	}
	der, _, err := ca.issue(NodeIdentity("lofamo-local", "n10-10-10", fault.HalfHost), nil, nil)
	if err != nil || len(der) >= 420 {
		t.Errorf("a node's certificate of the 13th authority has %d bytes, %v: want less than 420", len(der), err)
	}
	ca.cert.Subject.SerialNumber = "x"
	if _, err := ca.Next(KeyECDSA); err == nil || !strings.Contains(err.Error(), `given "x": want a number from 1 on`) {
		t.Errorf("an authority with another program's name: %v", err)
	}
}

// TestNewestAuthorityIsTold: during a change of keys a file has two authorities, and issuers of node certificates, which do not count.
func TestNewestAuthorityIsTold(t *testing.T) {
	w := newWorld(t, "c1")
	of := func(ca *CA) []byte {
		t.Helper()
		der, _, err := ca.issue(Identity{"c1", RoleOperator, "o"}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	next, err := w.ca.Next(KeyECDSA)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := NewIssuer("c1")
	if err != nil {
		t.Fatal(err)
	}
	first, second := of(w.ca), of(next)
	for _, tc := range []struct {
		name          string
		file          []byte
		first, second bool
	}{
		{"before the change", slices.Concat(w.ca.CertPEM(), issuer.CertPEM()), true, false},
		{"during the change", slices.Concat(w.ca.CertPEM(), next.CertPEM(), issuer.CertPEM()), false, true},
		{"after the change", next.CertPEM(), false, true},
	} {
		if err := os.WriteFile(w.file("both.pem"), tc.file, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			der  []byte
			want bool
		}{{first, tc.first}, {second, tc.second}} {
			if got, err := IsOfNewest(w.file("both.pem"), c.der); err != nil || got != c.want {
				t.Errorf("%s: %t, %v: want %t", tc.name, got, err, c.want)
			}
		}
	}
	if _, err := IsOfNewest(w.file("both.pem"), nil); err == nil {
		t.Error("no certificate is accepted")
	}
}

func TestIssueRefuses(t *testing.T) {
	w := newWorld(t, "c1")
	for _, id := range []Identity{
		{"c2", RoleViewer, "x"}, {"c1", "king", "x"}, {"c1", RoleNode, "n0-0-0"}, {"c1", RoleViewer, ""}, {"c1", RoleViewer, "a/b"},
	} {
		if _, _, err := w.ca.Issue(id, nil, nil); err == nil {
			t.Errorf("issued %s", id)
		}
	}
	if _, err := NewCA("Bad Name"); err == nil {
		t.Error("a CA for a bad name")
	}
}

func TestVerify(t *testing.T) {
	w := newWorld(t, "c1")
	s, v := w.signer(hostHalf), w.verifier()
	payload := []byte("a report")
	sig := s.Sign(payload)
	for range 2 { // the second time from the cache
		if id, err := v.Verify(s.Cert(), payload, sig); err != nil || id != hostHalf {
			t.Errorf("%v, %v", id, err)
		}
	}
	if role, name, err := v.VerifyName(s.Cert(), payload, sig); role != "node" || name != "n0-0-0/host" || err != nil {
		t.Errorf("%s, %s, %v", role, name, err)
	}
	stranger := newWorld(t, "c1").signer(hostHalf) // the same names, another CA
	other := newWorld(t, "c2").signer(NodeIdentity("c2", "n0-0-0", fault.HalfHost))
	flipped := append([]byte{}, sig...)
	flipped[5] ^= 1
	for _, tc := range []struct {
		name               string
		cert, payload, sig []byte
		want               error
	}{
		{"other payload", s.Cert(), []byte("a repory"), sig, ErrSignature},
		{"flipped signature", s.Cert(), payload, flipped, ErrSignature},
		{"no signature", s.Cert(), payload, nil, ErrSignature},
		{"signature without the prefix", s.Cert(), payload, ed25519.Sign(s.Key(), payload), ErrSignature},
		{"another CA", stranger.Cert(), payload, stranger.Sign(payload), ErrCertificate},
		{"another cluster", other.Cert(), payload, other.Sign(payload), ErrCertificate},
		{"the CA itself", w.ca.cert.Raw, payload, sign(w.ca.key, prefixed(payload)), ErrCertificate},
		{"no certificate", nil, payload, sig, ErrCertificate},
		{"garbage", []byte("garbage"), payload, sig, ErrCertificate},
		{"too long", make([]byte, maxCertificate+1), payload, sig, ErrCertificate},
		{"trailing bytes", append(append([]byte{}, s.Cert()...), 0), payload, sig, ErrCertificate},
	} {
		if id, err := v.Verify(tc.cert, tc.payload, tc.sig); !errors.Is(err, tc.want) || id != (Identity{}) {
			t.Errorf("%s: %v, %v; want %v", tc.name, id, err, tc.want)
		}
	}
}

// TestVerifyKeepsNoSlice overwrites a receive buffer: the remembered certificate must not change.
func TestVerifyKeepsNoSlice(t *testing.T) {
	w := newWorld(t, "c1")
	s, v := w.signer(hostHalf), w.verifier()
	sig := s.Sign([]byte("a report"))
	buf := append([]byte{}, s.Cert()...)
	if _, err := v.Verify(buf, []byte("a report"), sig); err != nil {
		t.Fatal(err)
	}
	clear(buf)
	if id, err := v.Verify(s.Cert(), []byte("a report"), sig); err != nil || id != hostHalf {
		t.Errorf("from the cache, after the buffer was cleared: %v, %v", id, err)
	}
}

// TestVerifyCluster: signatures of a CA trusted for one cluster do not count for another.
func TestVerifyCluster(t *testing.T) {
	w := newWorld(t, "c1")
	s := w.signer(hostHalf)
	v, err := NewVerifier(w.ca.CertPEM(), "c2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(s.Cert(), nil, s.Sign(nil)); !errors.Is(err, ErrCertificate) || !strings.Contains(err.Error(), `want "c2"`) {
		t.Errorf("%v", err)
	}
}

// TestExpiry checks the time on every call, the cached ones too.
func TestExpiry(t *testing.T) {
	w := newWorld(t, "c1")
	now := time.Now()
	v := w.verifier(WithClock(func() time.Time { return now }))
	s := w.signer(hostHalf)
	sig := s.Sign(nil)
	for _, tc := range []struct {
		at   time.Duration
		good bool
	}{{0, true}, {-time.Hour, true}, {-3 * time.Hour, false}, {leafValidity - time.Minute, true}, {leafValidity + time.Minute, false},
		{0, true}} {
		now = time.Now().Add(tc.at)
		if _, err := v.Verify(s.Cert(), nil, sig); (err == nil) != tc.good || err != nil && !errors.Is(err, ErrCertificate) {
			t.Errorf("at %v: %v", tc.at, err)
		}
	}
	now = time.Now().Add(2 * leafValidity)
	if _, err := w.verifier(WithClock(v.now)).Verify(s.Cert(), nil, sig); !errors.Is(err, ErrCertificate) {
		t.Errorf("expired, not cached: %v", err)
	}
}

// TestCertificatesOfALargeTorusAreRemembered: a chain is verified once in a torus of 10,000 nodes, however many others sign
// meanwhile.
func TestCertificatesOfALargeTorusAreRemembered(t *testing.T) {
	w := newWorld(t, "c1")
	v, s := w.verifier(), w.signer(hostHalf)
	if _, err := v.Verify(s.Cert(), nil, s.Sign(nil)); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * 10_000 {
		v.remember(sha256.Sum256([]byte{byte(i), byte(i >> 8)}), &verified{})
	}
	if v.lookup(sha256.Sum256(s.Cert())) == nil {
		t.Error("the certificate would be verified again")
	}
}

// TestCacheBound fills the cache far beyond its bound and from many goroutines.
func TestCacheBound(t *testing.T) {
	w := newWorld(t, "c1")
	v := w.verifier()
	s := w.signer(hostHalf)
	sig := s.Sign(nil)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 2 * verifierCache {
				var sum [32]byte
				copy(sum[:], fmt.Sprintf("%d/%d", g, i))
				v.remember(sum, &verified{})
				if i%512 == 0 {
					if _, err := v.Verify(s.Cert(), nil, sig); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := len(v.young) + len(v.old); n > verifierCache {
		t.Errorf("%d certificates remembered: want at most %d", n, verifierCache)
	}
}

func TestLoadRefuses(t *testing.T) {
	w := newWorld(t, "c1")
	cert, key := w.issue("a", hostHalf)
	_, otherKey := w.issue("b", hostHalf)
	write := func(name, text string) string {
		if err := os.WriteFile(w.file(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return w.file(name)
	}
	empty, garbage := write("empty", ""), write("garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	ecKey := write("ec.key", string(pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})))
	signer := func(c, k string) error { _, err := LoadSigner(c, k); return err }
	for _, tc := range []struct {
		err   error
		names []string
	}{
		{signer(w.file("none.pem"), key), []string{"certificate ", "none.pem", "no such file"}},
		{signer(w.dir, key), []string{"certificate ", w.dir, "is a directory"}},
		{signer(empty, key), []string{"certificate ", "empty", "no PEM block"}},
		{signer(garbage, key), []string{"certificate ", "garbage", "x509"}},
		{signer(key, key), []string{"certificate ", "a.key", `"PRIVATE KEY": want "CERTIFICATE"`}},
		{signer(cert, w.file("none.key")), []string{"key ", "none.key", "no such file"}},
		{signer(cert, otherKey), []string{"key ", "b.key", "does not belong to certificate", "a.pem"}},
		{signer(cert, ecKey), []string{"key ", "ec.key", "does not belong to certificate"}},
		{signer(w.file("ca.pem"), w.file("ca.key")), []string{"ca.pem", "want exactly one"}},
		{second(LoadCA(cert, key)), []string{"a.pem", "not that of a certificate authority"}},
		{second(LoadCA(w.file("ca.pem"), key)), []string{"a.key", "does not belong"}},
		{second(Roots(w.file("none.pem"))), []string{"CA certificates ", "none.pem", "no such file"}},
		{second(Roots(empty)), []string{"CA certificates ", "empty", "no certificate"}},
		{second(Roots(cert)), []string{"CA certificates ", "a.pem", "not that of a certificate authority"}},
		{second(LoadVerifier(key, "c1")), []string{"CA certificates ", "a.key", `want "CERTIFICATE"`}},
		{second(LoadVerifier(w.file("ca.pem"), "")), []string{`cluster ""`}},
		{second(ServerTLS(cert, key, empty, nil)), []string{"CA certificates ", "empty"}},
		{second(ClientTLS(empty, key, w.file("ca.pem"), nil)), []string{"certificate ", "empty"}},
		{second(LinkTLS(nil, empty, nil)), []string{"CA certificates ", "empty"}},
		{w.ca.Save(w.file("no/such/ca.pem"), w.file("no/such/ca.key")), []string{"write key ", "no/such/ca.key"}},
	} {
		for _, n := range tc.names {
			if tc.err == nil || !strings.Contains(tc.err.Error(), n) {
				t.Errorf("error %v: want one that names %q", tc.err, n)
			}
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestGossipKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gossip.key")
	if err := NewGossipKey(file); err != nil {
		t.Fatal(err)
	}
	keys, err := LoadGossipKeys(file)
	if err != nil || len(keys) != 1 || len(keys[0]) != 32 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	next, err := RandomGossipKey()
	if err != nil {
		t.Fatal(err)
	}
	both := [][]byte{next, keys[0]}
	if err := SaveGossipKeys(file, both); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadGossipKeys(file); err != nil || !slices.EqualFunc(got, both, bytes.Equal) {
		t.Errorf("%d keys, %v: want both in their order", len(got), err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	good := base64.StdEncoding.EncodeToString(next) + "\n"
	for text, names := range map[string]string{"": "0 bytes: want 32", "AAAA": "line 1: 3 bytes: want 32",
		strings.Repeat(good, 4): "4 keys: want at most 3", good + "x": "line 2: not base64", "not base64!": "not base64"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadGossipKeys(file); err == nil || !strings.Contains(err.Error(), names) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := LoadGossipKeys(file + ".none"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v", err)
	}
}

func FuzzVerify(f *testing.F) {
	ca, err := NewCA("c1")
	if err != nil {
		f.Fatal(err)
	}
	v, err := NewVerifier(ca.CertPEM(), "c1")
	if err != nil {
		f.Fatal(err)
	}
	certPEM, _, err := ca.Issue(hostHalf, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(certPEM)
	f.Add(block.Bytes, []byte("payload"), make([]byte, 64))
	f.Add([]byte{0x30}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, cert, payload, sig []byte) {
		if id, err := v.Verify(cert, payload, sig); err == nil { // no party has the key
			t.Errorf("accepted as %s", id)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("lofamo://c1/node/n0-0-0/host")
	f.Add("lofamo://c1/viewer/x")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseIdentity(s); err == nil && id.String() != s {
			t.Errorf("%q parses as %q", s, id)
		}
	})
}

func BenchmarkVerifyCached(b *testing.B) {
	ca, err := NewCA("c1")
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	if err := ca.IssueTo(dir+"/c", dir+"/k", hostHalf, nil, nil); err != nil {
		b.Fatal(err)
	}
	s, err := LoadSigner(dir+"/c", dir+"/k")
	if err != nil {
		b.Fatal(err)
	}
	v, err := NewVerifier(ca.CertPEM(), "c1")
	if err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 400)
	sig := s.Sign(payload)
	for b.Loop() {
		if _, err := v.Verify(s.Cert(), payload, sig); err != nil {
			b.Fatal(err)
		}
	}
}

// A renewed certificate and key are loaded once both files are there; another member's are never.
func TestRenew(t *testing.T) {
	w := newWorld(t, "c1")
	id := SupervisorIdentity("c1", "s0")
	cert, key := w.issue("s0", id)
	s, err := LoadSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	v := w.verifier()
	stays := func(what string, was []byte) {
		t.Helper()
		if renewed, err := s.Renew(); renewed || err == nil {
			t.Errorf("%s: %t, %v: want it refused", what, renewed, err)
		}
		if got, err := v.Verify(s.Cert(), []byte("x"), s.Sign([]byte("x"))); err != nil || got != id || !bytes.Equal(s.Cert(), was) {
			t.Errorf("%s: signed as %v, %v: want it as before", what, got, err)
		}
	}
	if renewed, err := s.Renew(); renewed || err != nil {
		t.Errorf("nothing was renewed: %t, %v", renewed, err)
	}
	was := s.Cert()
	newCert, newKey := w.issue("new", id)
	for _, f := range [][2]string{{newCert, cert}, {newKey, key}} {
		if err := os.Rename(f[0], f[1]); err != nil {
			t.Fatal(err)
		}
		if f[1] == cert {
			stays("its key is missing yet", was)
		}
	}
	if renewed, err := s.Renew(); !renewed || err != nil || bytes.Equal(s.Cert(), was) {
		t.Errorf("renewed: %t, %v", renewed, err)
	}
	otherCert, otherKey := w.issue("s1", SupervisorIdentity("c1", "s1"))
	was = s.Cert()
	for _, f := range [][2]string{{otherCert, cert}, {otherKey, key}} {
		if err := os.Rename(f[0], f[1]); err != nil {
			t.Fatal(err)
		}
	}
	stays("another's", was)
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	stays("nobody's", was)
}
