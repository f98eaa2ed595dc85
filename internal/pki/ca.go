package pki

import (
	"crypto"
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
	"strconv"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// Validities. Certificates begin backdate before their making, so that clocks which are an hour
// apart agree on them.
const (
	// AuthorityValidity is the lifetime of a new authority.
	AuthorityValidity = 10 * 365 * 24 * time.Hour

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
	key     crypto.Signer
	now     func() time.Time
	nodes   time.Duration // lifetime of node certificates
}

// SetNodeLifetime changes the lifetime of the node certificates that the authority issues from now on.
func (ca *CA) SetNodeLifetime(d time.Duration) { ca.nodes = d }

// NewCA makes an authority with a new ECDSA key for a cluster. BoringSSL refuses certificates that an Ed25519 key
// signed.
func NewCA(cluster string) (*CA, error) { return NewCAOf(KeyECDSA, cluster) }

// NewCAOf is NewCA with a chosen type of key.
func NewCAOf(k KeyType, cluster string) (*CA, error) {
	return newCA(k, pkix.Name{CommonName: cluster})
}

// Next makes an authority that replaces this one, with a new key of that type. It has another name: OpenSSL chooses among
// the authorities of a ca.pem by name alone, since certificates have no key identifiers.
func (ca *CA) Next(k KeyType) (*CA, error) {
	n := 1 // the first authority has no number
	if given := ca.cert.Subject.SerialNumber; given != "" {
		var err error
		if n, err = strconv.Atoi(given); err != nil || n < 1 {
			return nil, fmt.Errorf("next CA for %s: serialNumber in the subject of the present one: given %q: want a number from 1 on",
				ca.cluster, given)
		}
	}
	return newCA(k, pkix.Name{CommonName: ca.cluster, SerialNumber: strconv.Itoa(n + 1)})
}

func newCA(k KeyType, name pkix.Name) (*CA, error) {
	cluster := name.CommonName
	if !isCluster(cluster) {
		return nil, fmt.Errorf("new CA: cluster %q: want 1 to 63 of a-z, 0-9, '-' and '.'", cluster)
	}
	key, err := k.generate()
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
		Subject:               name,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(AuthorityValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
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
	if !belongs(key, cert) {
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

// KeyType returns the type of the authority's key.
func (ca *CA) KeyType() KeyType { return typeOf(ca.key.Public()) }

// IssueOption changes a certificate that the authority issues.
type IssueOption func(*issuing)

type issuing struct{ key KeyType }

// WithKey chooses the type of the certificate's key. The default for people is the type of the authority's key, and
// Ed25519 for all others, since halves and replicas sign messages.
func WithKey(k KeyType) IssueOption { return func(i *issuing) { i.key = k } }

// keyFor returns the type of key for a role.
func (ca *CA) keyFor(r Role, options []IssueOption) KeyType {
	i := issuing{key: KeyEd25519}
	if slices.Contains(people, r) {
		i.key = ca.KeyType()
	}
	for _, o := range options {
		o(&i)
	}
	return i.key
}

// Issue makes a key and a certificate for an identity of the authority's cluster. Addresses and
// names are for those that others dial by TLS: supervisors need their IPs, and 127.0.0.1 and
// localhost for the embedded etcd; they get SupervisorName besides, and
// executors ExecutorName. The certificate travels with every
// report, so it is kept small: no subject, no key identifiers.
func (ca *CA) Issue(id Identity, ips []net.IP, dns []string, options ...IssueOption) (certPEM, keyPEM []byte, err error) {
	der, key, err := ca.issue(id, ips, dns, options...)
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

func (ca *CA) issue(id Identity, ips []net.IP, dns []string, options ...IssueOption) (der []byte, key crypto.Signer, err error) {
	if err := id.Validate(); err != nil {
		return nil, nil, fmt.Errorf("issue certificate: %w", err)
	}
	if id.Cluster != ca.cluster {
		return nil, nil, fmt.Errorf("issue certificate for %s: cluster %q: want that of the CA, %q", id, id.Cluster, ca.cluster)
	}
	key, err = ca.keyFor(id.Role, options).generate()
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
	tmpl, err := firstTemplate(id, now, now.Add(lifetime), lifetime)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate for %s: %w", id, err)
	}
	// Peers of the embedded etcd are servers and clients with one certificate.
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	tmpl.IPAddresses, tmpl.DNSNames = ips, dns
	der, err = signLeaf(tmpl, ca.cert, key.Public(), ca.key)
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
func (ca *CA) IssueTo(certFile, keyFile string, id Identity, ips []net.IP, dns []string, options ...IssueOption) error {
	certPEM, keyPEM, err := ca.Issue(id, ips, dns, options...)
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
