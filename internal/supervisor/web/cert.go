package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
)

// Lifetime of a replica's own certificate: the longest that all browsers accept, with renewal a month before the
// end.
const (
	ownLife  = 390 * 24 * time.Hour
	ownRenew = 30 * 24 * time.Hour
)

// Certificate returns the certificate for browsers, and its fingerprint. It loads the given files, or else a
// self-made certificate that is kept in dir, so that a browser's exception for it survives a restart.
func Certificate(certFile, keyFile, dir, name string, ips []net.IP, now time.Time) (tls.Certificate, string, error) {
	if certFile == "" {
		certFile, keyFile = filepath.Join(dir, "web.pem"), filepath.Join(dir, "web.key")
		if err := ownCertificate(certFile, keyFile, name, ips, now); err != nil {
			return tls.Certificate{}, "", fmt.Errorf("web certificate %s: %w", certFile, err)
		}
	}
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return tls.Certificate{}, "", fmt.Errorf("web certificate %s: %w", certFile, err)
	}
	if c.Leaf.PublicKeyAlgorithm == x509.Ed25519 {
		return tls.Certificate{}, "", fmt.Errorf("web certificate %s: its key is Ed25519: want ECDSA or RSA, which browsers know", certFile)
	}
	sum := sha256.Sum256(c.Certificate[0])
	return c, hex.EncodeToString(sum[:]), nil
}

// ownCertificate makes the files unless they exist, match the name and addresses, and are valid for long enough.
func ownCertificate(certFile, keyFile, name string, ips []net.IP, now time.Time) error {
	if c, err := tls.LoadX509KeyPair(certFile, keyFile); err == nil && fits(c.Leaf, name, ips, now) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(ownLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		DNSNames: []string{name}, IPAddresses: ips,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o700); err != nil {
		return err
	}
	return pki.WritePair(certFile, keyFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func fits(c *x509.Certificate, name string, ips []net.IP, now time.Time) bool {
	if now.After(c.NotAfter.Add(-ownRenew)) || c.VerifyHostname(name) != nil {
		return false
	}
	for _, ip := range ips {
		if c.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}
