package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// LoadECDSA reads the second pair of a replica, for TLS handshakes with clients that refuse Ed25519: see WithTLS. It
// checks the identity, the key and the chain to the authorities in caFile, and so does every Renew. LoadECDSA also loads
// a pair that has expired, so that Renew can replace it, and one that has not begun, as after a boot with a slow clock:
// see CheckTime.
func LoadECDSA(certFile, keyFile, caFile string, want Identity) (*Signer, error) {
	authorities, err := certificatesOf(caFile)
	if err != nil {
		return nil, err
	}
	roots, err := Roots(caFile)
	if err != nil {
		return nil, err
	}
	s := &Signer{certFile: certFile, keyFile: keyFile, tlsOnly: true}
	s.check = func(cert *x509.Certificate, id Identity) error {
		if id != want {
			return fmt.Errorf("is of %s: want %s", id, want)
		}
		if typeOf(cert.PublicKey) != KeyECDSA {
			return fmt.Errorf("has a key of type %s: want %s", nameOf(cert.PublicKey), KeyECDSA.name())
		}
		at := time.Now()
		if s.pair.Load() == nil {
			at = withinChain(at, cert, authorities)
		}
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at})
		return err
	}
	return load(s)
}

// withinChain returns the time nearest to now at which a certificate and the authorities that signed it can be valid.
func withinChain(now time.Time, cert *x509.Certificate, authorities []*x509.Certificate) time.Time {
	if now.After(cert.NotAfter) {
		return cert.NotAfter
	}
	begins := cert.NotBefore
	for _, a := range authorities {
		if a.NotBefore.After(begins) && cert.CheckSignatureFrom(a) == nil {
			begins = a.NotBefore
		}
	}
	if now.Before(begins) {
		return begins
	}
	return now
}

// CheckTime returns an error if the certificate has expired or has not begun.
func (s *Signer) CheckTime() error {
	switch now, p := time.Now(), s.pair.Load(); {
	case now.After(p.until):
		return fmt.Errorf("certificate %s: expired %s", s.certFile, p.until.UTC().Format(time.RFC3339))
	case now.Before(p.from):
		return fmt.Errorf("certificate %s: not valid until %s: this machine's clock shows %s", s.certFile,
			p.from.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// WithTLS changes a TLS configuration that this package made for a server, and returns it: while this pair is valid, the
// server presents it to clients that do not accept Ed25519. A nil Signer changes nothing.
func (s *Signer) WithTLS(c *tls.Config) *tls.Config {
	if s == nil {
		return c
	}
	given := c.GetCertificate
	c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if slices.Contains(hello.SignatureSchemes, tls.Ed25519) {
			return given(hello)
		}
		if own := s.tls(); s.CheckTime() == nil {
			return own, nil
		}
		return given(hello)
	}
	return c
}
