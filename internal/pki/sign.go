package pki

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// envelopePrefix separates signatures over messages from anything else that a key may ever sign.
const envelopePrefix = "lofamo.v1 envelope\x00"

// Signer signs messages with one half's or one replica's key, or statements with a person's. It is safe for concurrent
// use.
type Signer struct {
	id      Identity
	tlsOnly bool                                    // for TLS alone: its key may have either type
	check   func(*x509.Certificate, Identity) error // of every pair that is read; nil: none
	pair    atomic.Pointer[pair]

	// certFile and keyFile are where the pair was read; empty: it was made.
	certFile, keyFile string
	mu                sync.Mutex // of renewals
	seen              [2]os.FileInfo
	own               *pair // in the files
	kept              *kept // nil: only the files count
}

// pair is a certificate with its key.
type pair struct {
	der []byte
	key crypto.Signer
	// from and until are when the certificate begins and ends.
	from, until time.Time
}

// LoadSigner reads a certificate and its key. Only a person's key may be ECDSA: messages are signed with Ed25519.
func LoadSigner(certFile, keyFile string) (*Signer, error) {
	return load(&Signer{certFile: certFile, keyFile: keyFile})
}

// loadTLS reads a certificate and its key for TLS handshakes alone; the key may have either type.
func loadTLS(certFile, keyFile string) (*Signer, error) {
	return load(&Signer{certFile: certFile, keyFile: keyFile, tlsOnly: true})
}

func load(s *Signer) (*Signer, error) {
	s.seen, _ = s.look() // a file that cannot be examined cannot be read either
	p, id, err := s.readPair()
	if err != nil {
		return nil, err
	}
	s.id, s.own = id, p
	s.pair.Store(p)
	return s, nil
}

func (s *Signer) readPair() (*pair, Identity, error) {
	certFile, keyFile := s.certFile, s.keyFile
	cert, err := readCert(certFile)
	if err != nil {
		return nil, Identity{}, err
	}
	id, err := IdentityOf(cert)
	if err != nil {
		return nil, Identity{}, fmt.Errorf("certificate %s: %w", certFile, err)
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, Identity{}, err
	}
	if !belongs(key, cert) {
		return nil, Identity{}, fmt.Errorf("key %s: does not belong to certificate %s", keyFile, certFile)
	}
	if err := mayHave(id, cert.PublicKey); err != nil && !s.tlsOnly {
		return nil, Identity{}, fmt.Errorf("certificate %s: %w", certFile, err)
	}
	if s.check != nil {
		if err := s.check(cert, id); err != nil {
			return nil, Identity{}, fmt.Errorf("certificate %s: %w", certFile, err)
		}
	}
	return &pair{der: cert.Raw, key: key, from: cert.NotBefore, until: cert.NotAfter}, id, nil
}

// mayHave rejects a key with which a role may not sign: only people, who sign no messages, may have ECDSA.
func mayHave(id Identity, key crypto.PublicKey) error {
	want := []KeyType{KeyEd25519}
	if slices.Contains(people, id.Role) {
		want = append(want, KeyECDSA)
	}
	if slices.Contains(want, typeOf(key)) {
		return nil
	}
	return fmt.Errorf("%s has a key of type %s: want %s", id, nameOf(key), names(want))
}

// look returns the present files, through symbolic links: a Secret's files change only through a link of their
// directory.
func (s *Signer) look() (seen [2]os.FileInfo, err error) {
	for i, file := range []string{s.certFile, s.keyFile} {
		if seen[i], err = os.Stat(file); err != nil {
			return seen, fmt.Errorf("certificate and key: %w", err)
		}
	}
	return seen, nil
}

// Renew loads the certificate and key that are in the signer's files now, or in the file of KeepIn, and reports whether
// they have changed. While the pair in the signer's files has another identity or does not match, as between replacing
// one file and the other, the previous pair from these files counts.
func (s *Signer) Renew() (bool, error) {
	if s.certFile == "" {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.readOwn()
	p := s.own
	if s.kept != nil {
		s.kept.read(s.id)
		use, bad := s.kept.better(s.own)
		if err = errors.Join(err, bad); use {
			p = s.kept.newest()
		}
	}
	if bytes.Equal(p.der, s.pair.Load().der) {
		return false, err
	}
	s.pair.Store(p)
	return true, err
}

// readOwn reads the signer's files if they have changed.
func (s *Signer) readOwn() error {
	now, err := s.look()
	if err != nil {
		return err
	}
	if same(s.seen[0], now[0]) && same(s.seen[1], now[1]) {
		return nil
	}
	p, id, err := s.readPair()
	if err != nil {
		return err
	}
	if id != s.id {
		return fmt.Errorf("certificate %s: is of %s: want %s, as before", s.certFile, id, s.id)
	}
	s.seen, s.own = now, p
	return nil
}

func same(a, b os.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// tls returns the pair for a handshake, renewed if it can be.
func (s *Signer) tls() *tls.Certificate {
	_, _ = s.Renew() // on an error the old pair stays; the caller of Renew logs the reason
	return s.current()
}

// Present returns the pair in use, for JoinTrust.
func (s *Signer) Present() *tls.Certificate { return s.current() }

// current returns the most recently renewed pair, for a handshake.
func (s *Signer) current() *tls.Certificate {
	p := s.pair.Load()
	return &tls.Certificate{Certificate: [][]byte{p.der}, PrivateKey: p.key}
}

// Ends is when a certificate ends. Its key need not be there.
func Ends(certFile string) (time.Time, error) {
	cert, err := readCert(certFile)
	if err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter, nil
}

// Cert returns the certificate's DER, which must not be changed.
func (s *Signer) Cert() []byte { return s.pair.Load().der }

// Expires returns the end of the certificate: peers reject its signatures from then on.
func (s *Signer) Expires() time.Time { return s.pair.Load().until }

// Begins is when the certificate begins.
func (s *Signer) Begins() time.Time { return s.pair.Load().from }

// Key returns the private key that signs now; nil for an ECDSA key.
func (s *Signer) Key() ed25519.PrivateKey {
	key, _ := s.pair.Load().key.(ed25519.PrivateKey)
	return key
}

// Identity returns the signer's identity.
func (s *Signer) Identity() Identity { return s.id }

// Sign returns the signature over a message: Ed25519, 64 bytes. Verify refuses the signature of an ECDSA key.
func (s *Signer) Sign(payload []byte) []byte { return sign(s.pair.Load().key, prefixed(payload)) }

func prefixed(payload []byte) []byte {
	return append([]byte(envelopePrefix), payload...)
}

// Errors of Verify that callers count apart.
var (
	// ErrCertificate: not a certificate of this cluster, or not valid now.
	ErrCertificate = errors.New("certificate refused")
	// ErrSignature: the certificate is good, the signature is not its key's over this payload.
	ErrSignature = errors.New("bad signature")
)

// Limits on the work and memory that a stranger can cost Verify.
const (
	maxCertificate = 2048 // bytes of DER
	// verifierCache bounds how many verified certificates are remembered: those of the halves of 65,536 nodes, at some 400 bytes
	// each. To verify a chain costs several times as much as a signature, and all neighbours of many dead nodes sign at once.
	// Only certificates that the CA signed are remembered, so strangers cannot push out members. When it is full, the older
	// half goes.
	verifierCache = 1 << 17
)

// Verifier checks messages' signatures and their certificates' chains. It is safe for concurrent
// use. The chain of a certificate is checked once and remembered; its validity in time is checked
// each time.
type Verifier struct {
	cluster string
	roots   *authorities
	now     func() time.Time
	revoked *Registry // nil: no certificate is revoked

	mu sync.Mutex
	// Two generations, each at most half of verifierCache: used entries move to young; when young is full it becomes
	// old, and the former old is dropped.
	young, old map[[sha256.Size]byte]*verified
}

// verified is a remembered certificate. It is never changed.
type verified struct {
	id                  Identity
	serial              *big.Int
	began               time.Time         // the time that revocations are compared with
	issuer              *x509.Certificate // that signed it; nil: the authority did
	key                 crypto.PublicKey
	notBefore, notAfter time.Time // of the whole chain
}

// VerifierOption changes a Verifier's making.
type VerifierOption func(*Verifier)

// WithClock makes the verifier take the time from now instead of time.Now.
func WithClock(now func() time.Time) VerifierOption { return func(v *Verifier) { v.now = now } }

// WithRegistry makes the verifier refuse certificates that a registry revokes, with ErrRevoked beside ErrCertificate.
func WithRegistry(r *Registry) VerifierOption { return func(v *Verifier) { v.revoked = r } }

// NewVerifier makes a verifier that trusts the authorities in caPEM for one cluster.
func NewVerifier(caPEM []byte, cluster string, opts ...VerifierOption) (*Verifier, error) {
	roots, err := parseRoots(caPEM)
	if err != nil {
		return nil, fmt.Errorf("new verifier for cluster %s: %w", cluster, err)
	}
	if !isCluster(cluster) {
		return nil, fmt.Errorf("new verifier: cluster %q: want 1 to 63 of a-z, 0-9, '-' and '.'", cluster)
	}
	v := &Verifier{cluster: cluster, roots: roots, now: time.Now, young: map[[sha256.Size]byte]*verified{}}
	for _, o := range opts {
		o(v)
	}
	return v, nil
}

// LoadVerifier is NewVerifier on a file.
func LoadVerifier(caFile, cluster string, opts ...VerifierOption) (*Verifier, error) {
	b, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("CA certificates %s: %w", caFile, reason(err))
	}
	v, err := NewVerifier(b, cluster, opts...)
	if err != nil {
		return nil, fmt.Errorf("CA certificates %s: %w", caFile, err)
	}
	return v, nil
}

// Verify checks that sig is the signature over payload by the key of certDER, and that certDER is
// a certificate of the cluster, valid now. It returns whose it is. The error is an ErrCertificate
// or an ErrSignature.
func (v *Verifier) Verify(certDER, payload, sig []byte) (Identity, error) {
	c, err := v.certificate(certDER)
	if err != nil {
		return Identity{}, err
	}
	if typeOf(c.key) != KeyEd25519 || !signed(c.key, prefixed(payload), sig) {
		return Identity{}, fmt.Errorf("verify message of %s: %w", c.id, ErrSignature)
	}
	return c.id, nil
}

// Check checks that certDER is a certificate of the cluster, valid now and not revoked, and returns its identity. The
// error is an ErrCertificate.
func (v *Verifier) Check(certDER []byte) (Identity, error) {
	c, err := v.certificate(certDER)
	if err != nil {
		return Identity{}, err
	}
	return c.id, nil
}

// VerifyName is Verify in plain strings, for those that do not know this package.
func (v *Verifier) VerifyName(certDER, payload, sig []byte) (role, name string, err error) {
	id, err := v.Verify(certDER, payload, sig)
	if err != nil {
		return "", "", err
	}
	return string(id.Role), id.Name, nil
}

// certificate returns the entry of a certificate that is valid now.
func (v *Verifier) certificate(der []byte) (*verified, error) {
	if len(der) == 0 || len(der) > maxCertificate {
		return nil, fmt.Errorf("%w: %d bytes: want 1 to %d", ErrCertificate, len(der), maxCertificate)
	}
	sum := sha256.Sum256(der)
	now := v.now()
	c := v.lookup(sum)
	if c == nil {
		var err error
		if c, err = v.chain(der, now); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCertificate, err)
		}
		v.remember(sum, c)
	}
	if now.Before(c.notBefore) || now.After(c.notAfter) {
		return nil, fmt.Errorf("%w: that of %s is valid from %s to %s", ErrCertificate, c.id,
			c.notBefore.UTC().Format(time.RFC3339), c.notAfter.UTC().Format(time.RFC3339))
	}
	if err := v.revoked.check(c.id, c.serial, c.began); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	return c, nil
}

func (v *Verifier) chain(der []byte, now time.Time) (*verified, error) {
	// The parsed certificate refers to its input bytes, and is kept; the caller's slice may be a receive buffer.
	cert, err := x509.ParseCertificate(bytes.Clone(der))
	if err != nil {
		return nil, err
	}
	c, err := verifyChain(cert, v.roots, v.cluster, now)
	if err == nil {
		v.revoked.note(c.id, cert, c.issuer)
	}
	return c, err
}

// verifyChain checks a leaf against the authorities and the cluster.
func verifyChain(cert *x509.Certificate, roots *authorities, cluster string, now time.Time) (*verified, error) {
	if cert.IsCA {
		return nil, errors.New("that of a certificate authority: want a leaf")
	}
	id, err := IdentityOf(cert)
	if err != nil {
		return nil, err
	}
	chain, err := roots.verify(cert, id, now)
	if err != nil {
		return nil, err
	}
	if id.Cluster != cluster {
		return nil, fmt.Errorf("%s is of cluster %q: want %q", id, id.Cluster, cluster)
	}
	if err := mayHave(id, cert.PublicKey); err != nil {
		return nil, err
	}
	out := &verified{id: id, serial: cert.SerialNumber, began: began(cert), key: cert.PublicKey, notBefore: cert.NotBefore,
		notAfter: cert.NotAfter}
	if key, ok := cert.PublicKey.(ed25519.PublicKey); ok {
		out.key = ed25519.PublicKey(bytes.Clone(key)) // so that the rest of the certificate can be freed
	}
	if root := chain[len(chain)-1]; isIssuer(root) {
		out.issuer = root
	}
	for _, c := range chain {
		if c.NotBefore.After(out.notBefore) {
			out.notBefore = c.NotBefore
		}
		if c.NotAfter.Before(out.notAfter) {
			out.notAfter = c.NotAfter
		}
	}
	return out, nil
}

func (v *Verifier) lookup(sum [sha256.Size]byte) *verified {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c := v.young[sum]; c != nil {
		return c
	}
	c := v.old[sum]
	if c != nil {
		v.insert(sum, c)
	}
	return c
}

func (v *Verifier) remember(sum [sha256.Size]byte, c *verified) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.insert(sum, c)
}

// insert is called with the lock held.
func (v *Verifier) insert(sum [sha256.Size]byte, c *verified) {
	if len(v.young) >= verifierCache/2 {
		v.old, v.young = v.young, make(map[[sha256.Size]byte]*verified)
	}
	v.young[sum] = c
}

// parseCerts reads all the certificates of a PEM text.
func parseCerts(text []byte) (out []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != pemCert {
			return nil, fmt.Errorf("PEM block of type %q: want %q", block.Type, pemCert)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	return out, nil
}

// parseRoots reads the authorities and the issuers of a PEM text.
func parseRoots(caPEM []byte) (*authorities, error) {
	certs, err := parseCerts(caPEM)
	if err != nil {
		return nil, err
	}
	return rootsOf(certs)
}

func rootsOf(certs []*x509.Certificate) (*authorities, error) {
	a := &authorities{full: x509.NewCertPool(), nodes: x509.NewCertPool()}
	for _, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate of %q: not that of a certificate authority", cert.Subject)
		}
		a.add(cert)
	}
	if len(certs) == len(a.issuers) {
		return nil, errors.New("no certificate of an authority in it")
	}
	return a, nil
}

// statementPrefix is envelopePrefix for statements other than messages; their purpose follows it.
const statementPrefix = "lofamo.v1 statement\x00"

func statement(kind string, payload []byte) []byte {
	return append([]byte(statementPrefix+kind+"\x00"), payload...)
}

// SignStatement returns the signature over a statement other than a message between halves and replicas. A statement of
// one kind is never accepted as one of another kind, or as a message. kind has no zero byte.
func (s *Signer) SignStatement(kind string, payload []byte) []byte {
	return sign(s.pair.Load().key, statement(kind, payload))
}

// VerifyStatement is Verify for SignStatement. It also returns when the certificate ends.
func (v *Verifier) VerifyStatement(kind string, certDER, payload, sig []byte) (Identity, time.Time, error) {
	c, err := v.certificate(certDER)
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	if !signed(c.key, statement(kind, payload), sig) {
		return Identity{}, time.Time{}, fmt.Errorf("verify statement of %s: %w", c.id, ErrSignature)
	}
	return c.id, c.notAfter, nil
}

// VerifyStatementAt is like VerifyStatement at an earlier time, for stored statements. The certificate must have been
// valid at that time; a revocation counts at any time.
func (v *Verifier) VerifyStatementAt(at time.Time, kind string, certDER, payload, sig []byte) (Identity, error) {
	then := &Verifier{cluster: v.cluster, roots: v.roots, revoked: v.revoked, now: func() time.Time { return at },
		young: map[[sha256.Size]byte]*verified{}}
	id, _, err := then.VerifyStatement(kind, certDER, payload, sig)
	return id, err
}

// RevokedSince reports whether a certificate of ROLE/NAME that may have been valid at that time was revoked: a login
// based on it ends.
func (v *Verifier) RevokedSince(subject string, at time.Time) bool {
	role, name, _ := strings.Cut(subject, "/")
	for _, d := range v.revoked.Denied()[Identity{Cluster: v.cluster, Role: Role(role), Name: name}] {
		if d.Serial != "" || at.Before(d.Revoked) || at.Add(-backdate).Before(d.Before) {
			return true
		}
	}
	return false
}
