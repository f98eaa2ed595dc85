package supervisortest

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Expire replaces a certificate by one of the same key and names that expired an hour ago. Directory ca has the ca.pem and
// ca.key of its authority.
func Expire(t testing.TB, ca, certFile string) {
	t.Helper()
	EndAt(t, ca, certFile, time.Now().Add(-time.Hour))
}

// EndAt is Expire with another end.
func EndAt(t testing.TB, ca, certFile string, end time.Time) {
	t.Helper()
	again(t, ca, certFile, func(cert, authority *x509.Certificate) {
		cert.NotBefore, cert.NotAfter = cert.NotBefore.Add(-24*time.Hour), end
		if cert.NotBefore.Before(authority.NotBefore) {
			cert.NotBefore = authority.NotBefore
		}
	})
}

// BeginAt replaces a certificate like Expire. The new one is valid from begin on.
func BeginAt(t testing.TB, ca, certFile string, begin time.Time) {
	t.Helper()
	again(t, ca, certFile, func(cert, _ *x509.Certificate) { cert.NotBefore = begin })
}

// again signs a certificate again after a change.
func again(t testing.TB, ca, certFile string, change func(cert, authority *x509.Certificate)) {
	t.Helper()
	authority, err := tls.LoadX509KeyPair(filepath.Join(ca, "ca.pem"), filepath.Join(ca, "ca.key"))
	must(t, err)
	b, err := os.ReadFile(certFile)
	must(t, err)
	block, _ := pem.Decode(b)
	cert, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	change(cert, authority.Leaf)
	der, err := x509.CreateCertificate(rand.Reader, cert, authority.Leaf, cert.PublicKey, authority.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}
