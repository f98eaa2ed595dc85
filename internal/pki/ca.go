package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// Validities. Certificates begin backdate before their making, so that clocks which are an hour
// apart agree on them.
const (
	caValidity   = 10 * 365 * 24 * time.Hour
	leafValidity = 365 * 24 * time.Hour
	backdate     = 2 * time.Hour
)

// PEM block types.
const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
)

// CA is a cluster's certificate authority. Its key signs nothing but certificates.
type CA struct {
	cluster string
	cert    *x509.Certificate
	key     ed25519.PrivateKey
	now     func() time.Time
	nodes   time.Duration // lifetime of node certificates
}

// SetNodeLifetime changes the lifetime of the node certificates that the authority issues from now on.
func (ca *CA) SetNodeLifetime(d time.Duration) { ca.nodes = d }

// NewCA makes an authority with a new key for a cluster.
func NewCA(cluster string) (*CA, error) {
	if !clusterPattern.MatchString(cluster) {
		return nil, fmt.Errorf("new CA: cluster %q: want 1 to 63 of a-z, 0-9, '-' and '.'", cluster)
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("new CA for %s: %w", cluster, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("new CA for %s: %w", cluster, err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: cluster},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	if err != nil {
		return nil, fmt.Errorf("new CA for %s: %w", cluster, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("new CA for %s: %w", cluster, err)
	}
	return &CA{cluster: cluster, cert: cert, key: key, now: time.Now, nodes: leafValidity}, nil
}

// LoadCA reads an authority that Save wrote.
func LoadCA(certFile, keyFile string) (*CA, error) {
	cert, err := readCert(certFile)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA || isIssuer(cert) {
		return nil, fmt.Errorf("certificate %s: not that of a certificate authority", certFile)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	if !key.Public().(ed25519.PublicKey).Equal(cert.PublicKey) {
		return nil, fmt.Errorf("key %s: does not belong to certificate %s", keyFile, certFile)
	}
	return &CA{cluster: cert.Subject.CommonName, cert: cert, key: key, now: time.Now, nodes: leafValidity}, nil
}

// Cluster returns the cluster's name.
func (ca *CA) Cluster() string { return ca.cluster }

// CertPEM returns the authority's certificate.
func (ca *CA) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: ca.cert.Raw})
}

// Save writes the certificate and, readable by its owner only, the key.
func (ca *CA) Save(certFile, keyFile string) error {
	keyPEM, err := encodeKey(ca.key)
	if err != nil {
		return err
	}
	return WritePair(certFile, keyFile, ca.CertPEM(), keyPEM)
}

// Issue makes a key and a certificate for an identity of the authority's cluster. Addresses and
// names are for those that others dial by TLS: supervisors need their IPs, and 127.0.0.1 and
// localhost for the embedded etcd; they get SupervisorName besides, and
// executors ExecutorName. The certificate travels with every
// report, so it is kept small: no subject, no key identifiers.
func (ca *CA) Issue(id Identity, ips []net.IP, dns []string) (certPEM, keyPEM []byte, err error) {
	der, key, err := ca.issue(id, ips, dns)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: der}), keyPEM, nil
}

// IssueSigner makes a key and a certificate that never reach a disk, for immediate use.
func (ca *CA) IssueSigner(id Identity) (*Signer, error) {
	der, key, err := ca.issue(id, nil, nil)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	s := &Signer{id: id}
	s.pair.Store(&pair{der: der, key: key, until: cert.NotAfter})
	return s, nil
}

func (ca *CA) issue(id Identity, ips []net.IP, dns []string) (der []byte, key ed25519.PrivateKey, err error) {
	if err := id.Validate(); err != nil {
		return nil, nil, fmt.Errorf("issue certificate: %w", err)
	}
	if id.Cluster != ca.cluster {
		return nil, nil, fmt.Errorf("issue certificate for %s: cluster %q: want that of the CA, %q", id, id.Cluster, ca.cluster)
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	switch id.Role {
	case RoleSupervisor:
		dns = append(slices.Clone(dns), SupervisorName(id.Cluster))
	case RoleExecutor:
		dns = append(slices.Clone(dns), ExecutorName(id.Cluster))
	default:
	}
	now, lifetime := ca.now(), leafValidity
	if id.Role == RoleNode {
		lifetime = ca.nodes
	}
	tmpl, err := leafTemplate(id, now.Add(-datesBack(backdate, lifetime)), now.Add(lifetime))
	if err == nil && datesBack(backdate, lifetime) < backdate { // revocations rely on the whole span
		tmpl.ExtraExtensions, err = descent(now.Add(-backdate))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	// Peers of the embedded etcd are servers and clients with one certificate.
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	tmpl.IPAddresses, tmpl.DNSNames = ips, dns
	der, err = signLeaf(tmpl, ca.cert, pub, ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	return der, key, nil
}

// SupervisorName returns the DNS name that every supervisor's certificate of a cluster has, and no other certificate:
// members of the embedded etcd identify each other by it, at any address. It does not need to resolve.
func SupervisorName(cluster string) string { return "supervisor." + cluster }

// ExecutorName is the same for executor processes: supervisors dial them by it.
func ExecutorName(cluster string) string { return "executor." + cluster }

// IssueTo is Issue into two files.
func (ca *CA) IssueTo(certFile, keyFile string, id Identity, ips []net.IP, dns []string) error {
	certPEM, keyPEM, err := ca.Issue(id, ips, dns)
	if err != nil {
		return err
	}
	return WritePair(certFile, keyFile, certPEM, keyPEM)
}

// newSerial returns 64 random bits: RFC 5280 requires serials to be unique, CA/B Forum to be unpredictable.
func newSerial() (*big.Int, error) {
	limit := new(big.Int).Lsh(big.NewInt(1), 63) // 63: positive without a ninth byte
	for {
		n, err := rand.Int(rand.Reader, limit)
		if err != nil || n.Sign() > 0 {
			return n, err
		}
	}
}

func encodeKey(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// WritePair writes a certificate for all to read (0644) and its key for its owner only (0600). Each
// file is replaced as a whole: a reader finds the old one or the new one.
func WritePair(certFile, keyFile string, certPEM, keyPEM []byte) error {
	if err := durable.WriteFile(keyFile, keyPEM, 0o600); err != nil {
		return fmt.Errorf("write key %s: %w", keyFile, err)
	}
	if err := durable.WriteFile(certFile, certPEM, 0o644); err != nil {
		return fmt.Errorf("write certificate %s: %w", certFile, err)
	}
	return nil
}

// readCert reads the first certificate of a PEM file.
func readCert(file string) (*x509.Certificate, error) {
	der, err := readPEM("certificate", file, pemCert)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", file, err)
	}
	return cert, nil
}

func readKey(file string) (ed25519.PrivateKey, error) {
	der, err := readPEM("key", file, pemKey)
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", file, err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key %s: of type %T: want an Ed25519 key", file, k)
	}
	return key, nil
}

// readPEM returns the first block of a file, which must be of the given type.
func readPEM(what, file, blockType string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		// os.ReadFile's error names the file; ours adds the expected content.
		return nil, fmt.Errorf("%s %s: %w", what, file, reason(err))
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s %s: no PEM block in it", what, file)
	}
	if block.Type != blockType {
		return nil, fmt.Errorf("%s %s: PEM block of type %q: want %q", what, file, block.Type, blockType)
	}
	return block.Bytes, nil
}

// reason strips operation and path from a file error, for callers that name both themselves.
func reason(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
