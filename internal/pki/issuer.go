package pki

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// IssuerValidity is the default lifetime of a new issuer.
const IssuerValidity = 365 * 24 * time.Hour

// Extensions of this package's own, below the arc for identifiers without a registration.
var (
	// nodesOnly marks the certificate of an issuer. It is critical: software that does not know it, such as etcd and
	// earlier versions of this package, refuses every certificate that an issuer signs.
	nodesOnly = asn1.ObjectIdentifier{2, 25, 1819240301}
	// descends states when the authority's certificate that a certificate descends from began, in seconds since 1970.
	// Revocations compare that time instead of the beginning of the certificate itself.
	descends = asn1.ObjectIdentifier{2, 25, 1819240302}
)

// Issuer renews the certificates of nodes. Verifiers accept no other role from it. Supervisors have its key, but not
// the authority's.
type Issuer struct {
	cluster string
	cert    *x509.Certificate
	key     crypto.Signer
}

// NewIssuer makes an issuer with a new key for a cluster.
func NewIssuer(cluster string) (*Issuer, error) { return NewIssuerFor(cluster, IssuerValidity) }

// NewIssuerFor is NewIssuer with another lifetime.
func NewIssuerFor(cluster string, lifetime time.Duration) (*Issuer, error) {
	if !isCluster(cluster) {
		return nil, fmt.Errorf("new issuer: cluster %q: want 1 to 63 of a-z, 0-9, '-' and '.'", cluster)
	}
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("new issuer for %s: %w", cluster, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("new issuer for %s: %w", cluster, err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: cluster + " nodes"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, // no server's
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		ExtraExtensions:       []pkix.Extension{{Id: nodesOnly, Critical: true, Value: asn1.NullBytes}},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, pub, key)
	if err != nil {
		return nil, fmt.Errorf("new issuer for %s: %w", cluster, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("new issuer for %s: %w", cluster, err)
	}
	return &Issuer{cluster: cluster, cert: cert, key: key}, nil
}

// LoadIssuer reads an issuer that Save wrote, for a cluster.
func LoadIssuer(certFile, keyFile, cluster string) (*Issuer, error) {
	cert, err := readCert(certFile)
	if err != nil {
		return nil, err
	}
	if want := cluster + " nodes"; !isIssuer(cert) || cert.Subject.CommonName != want {
		return nil, fmt.Errorf("certificate %s: of %q: want that of an issuer of node certificates, %q", certFile, cert.Subject.CommonName, want)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	if !belongs(key, cert) {
		return nil, fmt.Errorf("key %s: does not belong to certificate %s", keyFile, certFile)
	}
	return &Issuer{cluster: cluster, cert: cert, key: key}, nil
}

// CertPEM returns the issuer's certificate, which follows the authority's in ca.pem.
func (i *Issuer) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: i.cert.Raw})
}

// Save writes the certificate and, readable by its owner only, the key.
func (i *Issuer) Save(certFile, keyFile string) error {
	keyPEM, err := encodeKey(i.key)
	if err != nil {
		return err
	}
	return WritePair(certFile, keyFile, i.CertPEM(), keyPEM)
}

// Ends returns the time when the issuer's certificate ends. No certificate that it signed outlives that time.
func (i *Issuer) Ends() time.Time { return i.cert.NotAfter }

// Presented is the certificate that signed a request for renewal. The caller has verified it.
type Presented struct {
	Identity            Identity
	Key                 ed25519.PublicKey
	NotBefore, NotAfter time.Time
	Descends            time.Time // begin of the authority's certificate that it descends from
	// Outdated: an earlier issuer signed it, and the desk has the newest one. It may be renewed at any time.
	Outdated bool
}

// ReadPresented reads a verified certificate.
func ReadPresented(der []byte) (Presented, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return Presented{}, err
	}
	id, err := IdentityOf(cert)
	if err != nil {
		return Presented{}, err
	}
	key, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok {
		return Presented{}, fmt.Errorf("%s has a key of type %s: want Ed25519", id, nameOf(cert.PublicKey))
	}
	return Presented{Identity: id, Key: key, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Descends: began(cert)}, nil
}

// Renew signs a certificate for a new key of a half. It has the identity of the presented certificate, begins after
// that one, and inherits its descent: whatever revokes the presented certificate by time revokes this one too. It ends
// after the lifetime, or with the issuer.
func (i *Issuer) Renew(now time.Time, with Presented, key ed25519.PublicKey, lifetime time.Duration) ([]byte, error) {
	id := with.Identity
	if id.Role != RoleNode || id.Cluster != i.cluster {
		return nil, fmt.Errorf("renew certificate of %s: want a node of cluster %s", id, i.cluster)
	}
	begin := now.Add(-datesBack(2*backdate, lifetime))
	if next := with.NotBefore.Add(time.Second); begin.Before(next) {
		begin = next
	}
	tmpl, err := leafTemplate(id, begin, i.end(now, lifetime))
	if err != nil {
		return nil, fmt.Errorf("renew certificate of %s: %w", id, err)
	}
	tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if tmpl.ExtraExtensions, err = descent(with.Descends); err != nil {
		return nil, fmt.Errorf("renew certificate of %s: %w", id, err)
	}
	der, err := signLeaf(tmpl, i.cert, key, i.key)
	if err != nil {
		return nil, fmt.Errorf("renew certificate of %s: %w", id, err)
	}
	return der, nil
}

// end returns the end of a certificate with a lifetime, which does not outlive the issuer.
func (i *Issuer) end(now time.Time, lifetime time.Duration) time.Time {
	if end := now.Add(lifetime); end.Before(i.cert.NotAfter) {
		return end
	}
	return i.cert.NotAfter
}

// firstTemplate is leafTemplate for a certificate that descends from no other.
func firstTemplate(id Identity, now, end time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	tmpl, err := leafTemplate(id, now.Add(-datesBack(backdate, lifetime)), end)
	if err == nil && datesBack(backdate, lifetime) < backdate { // revocations rely on the whole span
		tmpl.ExtraExtensions, err = descent(now.Add(-backdate))
	}
	return tmpl, err
}

// datesBack returns how far a certificate with the given lifetime is backdated: by most, but by at most a quarter of
// the lifetime.
func datesBack(most, lifetime time.Duration) time.Duration { return min(most, lifetime/4) }

// leafTemplate returns the common fields of all members' certificates.
func leafTemplate(id Identity, begin, end time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, NotBefore: begin, NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature,
		URIs: []*url.URL{{Scheme: scheme, Host: id.Cluster, Path: "/" + string(id.Role) + "/" + id.Name}},
	}, nil
}

func signLeaf(tmpl, parent *x509.Certificate, key crypto.PublicKey, by crypto.Signer) ([]byte, error) {
	p := *parent
	p.SubjectKeyId = nil // leaves out the authority key identifier: 33 bytes
	return x509.CreateCertificate(rand.Reader, tmpl, &p, key, by)
}

func descent(at time.Time) ([]pkix.Extension, error) {
	value, err := asn1.Marshal(at.Unix())
	return []pkix.Extension{{Id: descends, Value: value}}, err
}

// began returns the time that revocations compare: the begin of the authority's certificate that cert descends from.
func began(cert *x509.Certificate) time.Time {
	for _, e := range cert.Extensions {
		var at int64
		if !e.Id.Equal(descends) {
			continue
		}
		if rest, err := asn1.Unmarshal(e.Value, &at); err == nil && len(rest) == 0 && time.Unix(at, 0).Before(cert.NotBefore) {
			return time.Unix(at, 0)
		}
	}
	return cert.NotBefore
}

// isIssuer reports whether a certificate is that of an issuer.
func isIssuer(cert *x509.Certificate) bool {
	return slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(nodesOnly) })
}

// authorities are the certificates of a ca.pem: authorities, and issuers of node certificates.
type authorities struct {
	full    *x509.CertPool // without issuers
	nodes   *x509.CertPool // with issuers
	issuers []*x509.Certificate
}

// add adds a certificate. The mark of an issuer is handled here, and only in the pool for nodes.
func (a *authorities) add(cert *x509.Certificate) {
	if !isIssuer(cert) {
		a.full.AddCert(cert)
		a.nodes.AddCert(cert)
		return
	}
	cert.UnhandledCriticalExtensions = slices.DeleteFunc(cert.UnhandledCriticalExtensions, nodesOnly.Equal)
	a.nodes.AddCert(cert)
	a.issuers = append(a.issuers, cert)
}

// verify returns the chain of a leaf. An issuer vouches for nodes only.
func (a *authorities) verify(cert *x509.Certificate, id Identity, now time.Time) ([]*x509.Certificate, error) {
	roots := a.full
	if id.Role == RoleNode {
		roots = a.nodes
	}
	chains, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return nil, err
	}
	chain := chains[0]
	if id.Role != RoleNode && isIssuer(chain[len(chain)-1]) {
		return nil, fmt.Errorf("%s is signed by an issuer of node certificates: want the authority", id)
	}
	return chain, nil
}

// newest returns the latest issuer; nil if there is none.
func (a *authorities) newest() (out *x509.Certificate) {
	for _, c := range a.issuers {
		if out == nil || c.NotBefore.After(out.NotBefore) {
			out = c
		}
	}
	return out
}

// Renews reports whether the trusted certificates have an issuer, so that halves may ask for new certificates.
func (v *Verifier) Renews() bool { return len(v.roots.issuers) > 0 }

// Issuers returns the certificates of the trusted issuers. The caller must not change them.
func (v *Verifier) Issuers() []*x509.Certificate { return slices.Clone(v.roots.issuers) }

// Trusts reports whether an issuer's certificate is among the trusted ones.
func (v *Verifier) Trusts(i *Issuer) bool { return slices.ContainsFunc(v.roots.issuers, i.cert.Equal) }

// keyProof is the kind of the statement that a new key signs: its holder requests a certificate.
const keyProof = "renewal"

func provenKey(id Identity, key ed25519.PublicKey) []byte {
	return statement(keyProof, append([]byte(id.String()+"\x00"), key...))
}

// ProveKey returns the signature of a new key over its half's identity and itself.
func ProveKey(key ed25519.PrivateKey, id Identity) []byte {
	return ed25519.Sign(key, provenKey(id, key.Public().(ed25519.PublicKey)))
}

// CheckProof checks a proof from ProveKey.
func CheckProof(key ed25519.PublicKey, id Identity, proof []byte) error {
	if len(key) != ed25519.PublicKeySize || len(proof) != ed25519.SignatureSize || !ed25519.Verify(key, provenKey(id, key), proof) {
		return fmt.Errorf("proof of the new key of %s: %w", id, ErrSignature)
	}
	return nil
}

// maxKept limits the size of a kept pair's file, in bytes.
const maxKept = 16 << 10

// SaveKept writes a renewed certificate and its key into one file, whole, readable by its owner only. On a full disk it overwrites the
// file in place; a reader detects a pair that a crash left incomplete.
func SaveKept(file string, certDER []byte, key ed25519.PrivateKey) error {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := durable.Replace(file, append(pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: certDER}), keyPEM...)); err != nil {
		return fmt.Errorf("write renewed certificate %s: %w", file, err)
	}
	return nil
}

// loadKept reads a pair that SaveKept wrote.
func loadKept(file string) (*pair, Identity, error) {
	fail := func(err error) (*pair, Identity, error) {
		return nil, Identity{}, fmt.Errorf("renewed certificate %s: %w", file, err)
	}
	b, err := durable.Read(file, maxKept)
	if err != nil {
		return fail(reason(err))
	}
	certBlock, rest := pem.Decode(b)
	keyBlock, _ := pem.Decode(rest)
	if certBlock == nil || keyBlock == nil || certBlock.Type != pemCert || keyBlock.Type != pemKey {
		return fail(errors.New("want a certificate and its key"))
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return fail(err)
	}
	id, err := IdentityOf(cert)
	if err != nil {
		return fail(err)
	}
	k, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return fail(err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok || !key.Public().(ed25519.PublicKey).Equal(cert.PublicKey) {
		return fail(errors.New("the key does not belong to the certificate"))
	}
	return &pair{der: cert.Raw, key: key, from: cert.NotBefore, until: cert.NotAfter}, id, nil
}

// KeepIn makes the signer also load the renewed pair in a file, while v accepts it. The signer uses that pair or the
// one in its own files, whichever begins later, but prefers a pair of the authority or the newest issuer to one of an
// earlier issuer. The file need not exist.
func (s *Signer) KeepIn(file string, v *Verifier) error {
	s.mu.Lock()
	s.kept = &kept{file: file, verifier: v}
	s.mu.Unlock()
	_, err := s.Renew()
	return err
}

// Take gives the signer a renewed pair. KeepIn must have been called. SaveTaken puts it into the file.
func (s *Signer) Take(certDER []byte, key ed25519.PrivateKey) error {
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.kept.taken = &pair{der: certDER, key: key, from: cert.NotBefore, until: cert.NotAfter}
	s.mu.Unlock()
	_, _ = s.Renew() // an error concerns the files; whoever calls Renew regularly logs it
	return nil
}

// SaveTaken writes the pair of Take into the file, unless that is done. It may wait for the disk. Call it again after an error.
func (s *Signer) SaveTaken() error {
	s.mu.Lock()
	k := s.kept
	var p *pair
	if k != nil {
		p = k.taken
	}
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	if err := SaveKept(k.file, p.der, p.key.(ed25519.PrivateKey)); err != nil {
		return err
	}
	s.mu.Lock()
	if k.taken == p {
		k.taken = nil
	}
	s.mu.Unlock()
	return nil
}

// kept is the renewed pair of a signer, as last read from its file.
type kept struct {
	file     string
	verifier *Verifier
	seen     os.FileInfo
	pair     *pair // nil: none
	bad      error // why the file gave none
	taken    *pair // not in the file yet; nil: none
}

// newest returns the later of the pair in the file and the pair that is not yet saved.
func (k *kept) newest() *pair {
	if k.taken != nil && (k.pair == nil || k.taken.from.After(k.pair.from)) {
		return k.taken
	}
	return k.pair
}

// read reads the file if it has changed.
func (k *kept) read(want Identity) {
	now, err := os.Lstat(k.file)
	if errors.Is(err, os.ErrNotExist) {
		k.seen, k.pair, k.bad = nil, nil, nil
		return
	}
	if err == nil && same(k.seen, now) {
		return
	}
	var id Identity
	if k.seen, k.pair, k.bad = now, nil, err; err != nil {
		return
	}
	if k.pair, id, k.bad = loadKept(k.file); k.bad == nil && id != want {
		k.pair, k.bad = nil, fmt.Errorf("renewed certificate %s: is of %s: want %s", k.file, id, want)
	}
	if k.bad != nil {
		k.seen = nil // the next reading may succeed, although the file has not changed
	}
}

// better reports whether to use the kept pair instead of own. The error is the reason for rejecting a kept pair.
func (k *kept) better(own *pair) (bool, error) {
	p := k.newest()
	if p == nil {
		return false, k.bad
	}
	rank, err := k.verifier.rank(p.der)
	if err != nil {
		return false, fmt.Errorf("renewed certificate %s: not used: %w", k.file, err)
	}
	ownRank, err := k.verifier.rank(own.der)
	if err != nil || rank != ownRank {
		return err != nil || rank > ownRank, nil //nolint:nilerr // whoever runs looks at the pair in use
	}
	return p.from.After(own.from), nil
}

// rank orders accepted certificates: 2 for the authority or the newest issuer, 1 for an earlier issuer. It returns the
// error of the verification.
func (v *Verifier) rank(der []byte) (int, error) {
	c, err := v.certificate(der)
	if err != nil {
		return 0, err
	}
	if newest := v.roots.newest(); c.issuer != nil && newest != nil && !newest.Equal(c.issuer) {
		return 1, nil
	}
	return 2, nil
}

// Outdated reports whether an issuer other than the newest trusted one signed a certificate. Whoever removes that issuer from
// the trusted ones makes the certificate worthless.
func (v *Verifier) Outdated(der []byte) bool {
	rank, err := v.rank(der)
	return err == nil && rank == 1
}

// Earlier reports whether an issuer, known by its serial number as in Issued, is not the newest trusted one.
func (v *Verifier) Earlier(issuer string) bool {
	newest := v.roots.newest()
	return issuer != "" && newest != nil && hexSerial(newest.SerialNumber) != issuer
}

// Newest reports whether no trusted issuer is newer than this one.
func (v *Verifier) Newest(i *Issuer) bool {
	newest := v.roots.newest()
	return newest != nil && newest.Equal(i.cert)
}

// CheckPair reports whether an authority has issued a certificate, and whether a new pair is due: the certificate is in the last third of
// its lifetime, or is not the authority's, not want's, or not that of the key.
func CheckPair(caFile, certFile, keyFile string, want Identity, now time.Time) (issued, due bool) {
	roots, err := Roots(caFile)
	if err != nil {
		return false, true
	}
	cert, err := readCert(certFile)
	if err != nil {
		return false, true
	}
	at := now
	if at.After(cert.NotAfter) {
		at = cert.NotAfter
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	issued = err == nil
	id, err := IdentityOf(cert)
	_, mismatch := tls.LoadX509KeyPair(certFile, keyFile)
	late := cert.NotAfter.Sub(now) < cert.NotAfter.Sub(cert.NotBefore)/3
	return issued, !issued || err != nil || id != want || mismatch != nil || late
}
