package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Roots reads the certificates of the authorities in a PEM file, without issuers: certificates from issuers are valid
// only for messages and links of nodes.
func Roots(caFiles ...string) (*x509.CertPool, error) {
	var all []*x509.Certificate
	for _, file := range caFiles {
		certs, err := certificatesOf(file)
		if err != nil {
			return nil, err
		}
		all = append(all, certs...)
	}
	a, err := rootsOf(all)
	if err != nil {
		return nil, fmt.Errorf("CA certificates %s: %w", strings.Join(caFiles, ", "), err)
	}
	return a.full, nil
}

// ShareAuthority reports whether two files have a certificate in common: both are of one cluster, perhaps before and after a change of
// keys.
func ShareAuthority(a, b string) (bool, error) {
	text, err := os.ReadFile(b)
	if err != nil {
		return false, fmt.Errorf("CA certificates %s: %w", b, reason(err))
	}
	return SharesAuthority(a, text)
}

// SharesAuthority is ShareAuthority for a file and a PEM text.
func SharesAuthority(a string, b []byte) (bool, error) {
	first, err := certificatesOf(a)
	if err != nil {
		return false, err
	}
	second, err := parseCerts(b)
	if err != nil {
		return false, fmt.Errorf("CA certificates: %w", err)
	}
	return slices.ContainsFunc(first, func(c *x509.Certificate) bool { return slices.ContainsFunc(second, c.Equal) }), nil
}

// certificatesOf reads a file with authorities and issuers.
func certificatesOf(caFile string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("CA certificates %s: %w", caFile, reason(err))
	}
	certs, err := parseCerts(b)
	if err != nil {
		return nil, fmt.Errorf("CA certificates %s: %w", caFile, err)
	}
	return certs, nil
}

// IsOfNewest reports whether the newest authority in a file signed a certificate: a change of keys removes the others. Of two authorities
// that began at the same time, the later one in the file is newer.
func IsOfNewest(caFile string, der []byte) (bool, error) {
	certs, err := certificatesOf(caFile)
	if err != nil {
		return false, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return false, fmt.Errorf("certificate: %w", err)
	}
	var newest *x509.Certificate
	for _, c := range certs {
		if !isIssuer(c) && (newest == nil || !c.NotBefore.Before(newest.NotBefore)) {
			newest = c
		}
	}
	return newest != nil && cert.CheckSignatureFrom(newest) == nil, nil
}

func loadAuthorities(caFile string) (*authorities, error) {
	certs, err := certificatesOf(caFile)
	if err != nil {
		return nil, err
	}
	pool, err := rootsOf(certs)
	if err != nil {
		return nil, fmt.Errorf("CA certificates %s: %w", caFile, err)
	}
	return pool, nil
}

// AllowRoles returns a check for ServerTLS and ClientTLS that admits these roles.
func AllowRoles(roles ...Role) func(Identity) error {
	return func(id Identity) error {
		if !slices.Contains(roles, id.Role) {
			return fmt.Errorf("%s: role %s: want one of %s", id, id.Role, fault.List(roles))
		}
		return nil
	}
}

// ServerTLS makes the TLS configuration of a server: TLS 1.3, the client must have a certificate of the same cluster,
// and allow, if not nil, must accept its identity. IdentityOf gives the handlers the identity of a connection's first
// peer certificate. After a renewal of the files, new handshakes use the new certificate.
func ServerTLS(certFile, keyFile, caFile string, allow func(Identity) error) (*tls.Config, error) {
	c, own, err := base(certFile, keyFile, caFile)
	if err != nil {
		return nil, err
	}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.tls(), nil }
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.VerifyConnection = checkPeer(own.id.Cluster, allow)
	return c, nil
}

// ClientTLS makes the TLS configuration of a client: TLS 1.3, its own certificate shown, the server's checked for the
// dialled name, for being of the same cluster and, if not nil, by allow. A renewed certificate is shown as by
// ServerTLS.
func ClientTLS(certFile, keyFile, caFile string, allow func(Identity) error) (*tls.Config, error) {
	c, own, err := base(certFile, keyFile, caFile)
	if err != nil {
		return nil, err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.tls(), nil }
	c.VerifyConnection = checkPeer(own.id.Cluster, allow)
	return c, nil
}

// EtcdTLS makes the TLS configuration of a client of etcd, which knows no roles: the server's certificate is checked
// for the dialled name alone.
func EtcdTLS(certFile, keyFile, caFile string) (*tls.Config, error) {
	c, own, err := base(certFile, keyFile, caFile)
	if err != nil {
		return nil, err
	}
	c.MinVersion = tls.VersionTLS12 // an etcd outside may be of any age
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.tls(), nil }
	return c, nil
}

// LinkTLS makes the TLS configuration of a torus link's handshake, for either side. The peer must
// have a node's certificate of the same cluster; the name that was dialled is not checked, for the
// two ends know each other by identity: the caller sets VerifyConnection (left free here) to check
// that it is the neighbour, with VerifyPeerIdentity. Sessions are never resumed, so that every
// handshake looks at certificates.
//
// The configuration presents own's certificate at the time of the handshake and never waits for the disk: the caller
// calls own.Renew. It refuses certificates that the registry revokes; nil: none.
func LinkTLS(own *Signer, caFile string, revoked *Registry) (*tls.Config, error) {
	roots, err := loadAuthorities(caFile)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots.full, ClientCAs: roots.full}
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.current(), nil }
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.current(), nil }
	c.ClientAuth = tls.RequireAnyClientCert // the check below is the whole check, on both sides alike
	c.InsecureSkipVerify = true             //nolint:gosec // replaced by VerifyPeerCertificate
	c.SessionTicketsDisabled = true
	c.VerifyPeerCertificate = func(raw [][]byte, _ [][]*x509.Certificate) error {
		if len(raw) == 0 {
			return errors.New("torus link: peer without a certificate")
		}
		cert, err := x509.ParseCertificate(raw[0])
		if err != nil {
			return fmt.Errorf("torus link: peer's certificate: %w", err)
		}
		v, err := verifyChain(cert, roots, own.id.Cluster, time.Now())
		if err != nil {
			return fmt.Errorf("torus link: peer's certificate: %w", err)
		}
		if err := revoked.CheckCertificate(cert); err != nil {
			return fmt.Errorf("torus link: peer's certificate: %w", err)
		}
		return AllowRoles(RoleNode)(v.id)
	}
	return c, nil
}

// VerifyPeerIdentity returns a check that a certificate, whose chain is checked elsewhere, belongs to want.
func VerifyPeerIdentity(want Identity) func(*x509.Certificate) error {
	return func(cert *x509.Certificate) error {
		id, err := IdentityOf(cert)
		if err != nil {
			return err
		}
		if id != want {
			return fmt.Errorf("peer is %s: want %s", id, want)
		}
		return nil
	}
}

// base loads the common parts of all three, and the own identity.
func base(certFile, keyFile, caFile string) (*tls.Config, *Signer, error) {
	s, err := loadTLS(certFile, keyFile)
	if err != nil {
		return nil, nil, err
	}
	roots, err := Roots(caFile)
	if err != nil {
		return nil, nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ClientCAs: roots}, s, nil
}

// checkPeer runs after the chain was checked.
func checkPeer(cluster string, allow func(Identity) error) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errors.New("peer without a certificate")
		}
		id, err := IdentityOf(cs.PeerCertificates[0])
		if err != nil {
			return err
		}
		if id.Cluster != cluster {
			return fmt.Errorf("peer is %s of cluster %q: want %q", id, id.Cluster, cluster)
		}
		if allow != nil {
			return allow(id)
		}
		return nil
	}
}
