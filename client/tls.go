package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// TLSFiles names the PEM files of a client.
type TLSFiles struct {
	CA   string // certificates of the cluster's authority; several during a rotation
	Cert string // the client's certificate, whose role decides which calls are allowed
	Key  string // its private key
}

// Config returns a configuration that reads the files again when they change, at the next handshake. If a changed file
// cannot be used, the last good ones stay in use. Config fails if the files cannot be used now.
//
// A server must show a certificate of the authority that names a supervisor of the client's own cluster. Its address
// does not matter, so supervisors can be reached through tunnels and load balancers.
func (f TLSFiles) Config() (*tls.Config, error) {
	r := &reloader{files: f}
	if err := r.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			own, _ := r.current()
			return own, nil
		},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection makes the whole check, with the current authority
		VerifyConnection:   r.verify,
	}, nil
}

// reloader keeps the pair and the authority that were last read. It is safe for concurrent use.
type reloader struct {
	files TLSFiles

	mu    sync.Mutex // guards the fields below
	stamp string
	own   *tls.Certificate
	roots *x509.CertPool
}

// stampOf changes when a file does.
func (f TLSFiles) stampOf() string {
	var b strings.Builder
	for _, name := range []string{f.CA, f.Cert, f.Key} {
		if st, err := os.Stat(name); err == nil {
			fmt.Fprintf(&b, "%d %s|", st.Size(), st.ModTime().Format(time.RFC3339Nano))
		}
	}
	return b.String()
}

func (r *reloader) load() error {
	stamp := r.files.stampOf()
	pair, err := tls.LoadX509KeyPair(r.files.Cert, r.files.Key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", r.files.Cert, r.files.Key, err)
	}
	if _, _, err := identity(pair.Leaf); err != nil {
		return fmt.Errorf("certificate %s: %w", r.files.Cert, err)
	}
	pem, err := os.ReadFile(r.files.CA)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("certificate authority %s: no PEM certificate in it", r.files.CA)
	}
	r.stamp, r.own, r.roots = stamp, &pair, roots
	return nil
}

func (r *reloader) current() (*tls.Certificate, *x509.CertPool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.files.stampOf() != r.stamp {
		_ = r.load() // a pair may be half written: the last good one serves until the next handshake
	}
	return r.own, r.roots
}

// verify checks the chain and that the peer is a supervisor of the client's cluster.
func (r *reloader) verify(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("supervisor without a certificate")
	}
	own, roots := r.current()
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	peer := cs.PeerCertificates[0]
	if _, err := peer.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		return err
	}
	cluster, _, err := identity(own.Leaf)
	if err != nil {
		return err
	}
	itsCluster, itsRole, err := identity(peer)
	switch {
	case err != nil:
		return err
	case itsCluster != cluster:
		return fmt.Errorf("the certificate of the server is of cluster %q: want %q", itsCluster, cluster)
	case itsRole != "supervisor":
		return fmt.Errorf("the certificate of the server has the role %q: want supervisor", itsRole)
	}
	return nil
}

// identity reads the one URI of a certificate, lofamo://CLUSTER/ROLE/NAME.
func identity(cert *x509.Certificate) (cluster, role string, err error) {
	if len(cert.URIs) != 1 || cert.URIs[0].Scheme != "lofamo" {
		return "", "", fmt.Errorf("certificate %q names no member: want exactly one URI, lofamo://CLUSTER/ROLE/NAME", cert.Subject.CommonName)
	}
	role, _, _ = strings.Cut(strings.TrimPrefix(cert.URIs[0].Path, "/"), "/")
	return cert.URIs[0].Host, role, nil
}
