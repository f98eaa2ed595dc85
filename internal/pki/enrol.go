package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// EnrolClocks is the largest difference between the clocks of a node that enrols and a supervisor.
const EnrolClocks = time.Hour

// Issue signs a first certificate for a key of a half, as the authority would.
func (i *Issuer) Issue(now time.Time, id Identity, key ed25519.PublicKey, lifetime time.Duration) ([]byte, error) {
	fail := func(err error) ([]byte, error) { return nil, fmt.Errorf("issue certificate for %s: %w", id, err) }
	if err := id.Validate(); err != nil {
		return fail(err)
	}
	if id.Role != RoleNode || id.Cluster != i.cluster {
		return fail(fmt.Errorf("want a node of cluster %s", i.cluster))
	}
	tmpl, err := firstTemplate(id, now, i.end(now, lifetime), lifetime)
	if err != nil {
		return fail(err)
	}
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := signLeaf(tmpl, i.cert, key, i.key)
	if err != nil {
		return fail(err)
	}
	return der, nil
}

// Authority returns the certificate of the authority in a PEM file that signed a certificate.
func Authority(caFile, certFile string) (*x509.Certificate, error) {
	cert, err := readCert(certFile)
	if err != nil {
		return nil, err
	}
	certs, err := certificatesOf(caFile)
	if err != nil {
		return nil, err
	}
	for _, ca := range certs {
		if !isIssuer(ca) && cert.CheckSignatureFrom(ca) == nil {
			return ca, nil
		}
	}
	return nil, fmt.Errorf("certificate %s: none of the authorities in %s has signed it", certFile, caFile)
}

// EnrolServerTLS makes the TLS configuration of a server for nodes that have no certificate yet, or one that the caller
// checks: a client may show any. The server also shows its authority's certificate, for clients that know only its pin.
func EnrolServerTLS(certFile, keyFile, caFile string) (*tls.Config, error) {
	own, err := loadTLS(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	if _, err := Authority(caFile, certFile); err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequestClientCert, SessionTicketsDisabled: true}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		ca, err := Authority(caFile, certFile) // both may have been replaced
		if err != nil {
			return nil, err
		}
		shown := *own.tls()
		shown.Certificate = append(slices.Clone(shown.Certificate), ca.Raw)
		return &shown, nil
	}
	return c, nil
}

// JoinTrust is how a node without any configuration recognises the supervisors of its cluster.
type JoinTrust struct {
	// Pin is PinOf the authority; nil: Roots counts.
	Pin *[32]byte
	// Roots are the authorities; used without Pin.
	Roots *x509.CertPool
	// Present is the certificate that the node shows; nil: none.
	Present *tls.Certificate
}

// TLS makes the TLS configuration of a node that enrols. The server must be a supervisor whose certificate a trusted
// authority has signed; its address does not matter. After a handshake, server has the supervisor.
func (t JoinTrust) TLS(server *atomic.Pointer[Identity]) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
	c.InsecureSkipVerify = true //nolint:gosec // replaced by VerifyConnection
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		roots := t.Roots
		if t.Pin != nil {
			roots = x509.NewCertPool()
			for _, cert := range cs.PeerCertificates {
				if cert.IsCA && PinOf(cert) == *t.Pin {
					roots.AddCert(cert)
				}
			}
		}
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the supervisor shows no certificate")
		}
		leaf := cs.PeerCertificates[0]
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			if t.Pin != nil {
				return fmt.Errorf("the supervisor belongs to another cluster than the token, or the clocks differ: %w", err)
			}
			return fmt.Errorf("the supervisor belongs to another cluster, or the clocks differ: %w", err)
		}
		id, err := IdentityOf(leaf)
		if err != nil {
			return err
		}
		if id.Role != RoleSupervisor || isIssuer(leaf) {
			return fmt.Errorf("the server's certificate is of %s: want a supervisor", id)
		}
		server.Store(&id)
		return nil
	}
	if t.Present != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.Present, nil }
	}
	return c
}

// CheckEnrolled returns an error unless ca, a PEM text, has an authority that vouches for both of a node's certificates.
// With a pin, the authority must have it.
func CheckEnrolled(ca []byte, pin *[32]byte, now time.Time, certs map[Identity][]byte, keys map[Identity]ed25519.PrivateKey) error {
	trusted, err := parseCerts(ca)
	if err != nil {
		return fmt.Errorf("authorities: %w", err)
	}
	roots, err := rootsOf(trusted)
	if err != nil {
		return fmt.Errorf("authorities: %w", err)
	}
	if pin != nil && !slices.ContainsFunc(trusted, func(c *x509.Certificate) bool { return PinOf(c) == *pin }) {
		return errors.New("authorities: none has the pin of the token")
	}
	for id, der := range certs {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("certificate of %s: %w", id, err)
		}
		got, err := verifyChain(cert, roots, id.Cluster, now)
		if err != nil {
			return fmt.Errorf("certificate of %s: %w", id, err)
		}
		if got.id != id {
			return fmt.Errorf("certificate of %s: is of %s", id, got.id)
		}
		if key, ok := keys[id]; !ok || !key.Public().(ed25519.PublicKey).Equal(got.key) {
			return fmt.Errorf("certificate of %s: its key is not that of the request", id)
		}
	}
	return nil
}

// KeepHalfKey returns the key of a half that enrols, from a file, which it makes at the first call: a request that is
// repeated after a crash has the same key.
func KeepHalfKey(file string) (ed25519.PrivateKey, error) {
	k, err := readKey(file)
	if err == nil {
		key, ok := k.(ed25519.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("key %s: of type %s: want Ed25519", file, nameOf(k.Public()))
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("new key %s: %w", file, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := durable.WriteFile(file, keyPEM, 0o600); err != nil {
		return nil, fmt.Errorf("write key %s: %w", file, err)
	}
	return key, nil
}

// WriteHalf writes a half's certificate and key, as LoadSigner reads them.
func WriteHalf(certFile, keyFile string, certDER []byte, key ed25519.PrivateKey) error {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	return WritePair(certFile, keyFile, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: certDER}), keyPEM)
}

// PresentedPair loads a certificate and its key for JoinTrust.Present.
func PresentedPair(certFile, keyFile string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", certFile, err)
	}
	return &c, nil
}
