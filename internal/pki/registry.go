package pki

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ErrRevoked means that an operator has revoked the certificate.
var ErrRevoked error = revokedError{}

// revokedError lets packages that do not import this one recognise the error by its method.
type revokedError struct{}

func (revokedError) Error() string { return "certificate revoked" }

// Revoked marks the error.
func (revokedError) Revoked() bool { return true }

// Denial refuses certificates of one identity, signed by the authority.
type Denial struct {
	Identity Identity
	// Before refuses certificates whose validity begins before this time, to the second, and those renewed from one.
	// See CutOff.
	Before time.Time
	// Serial, in lower-case hexadecimal, refuses only the certificate with that serial number; Before is then ignored.
	Serial string
	// Revoked is the time of the revocation, or of its restore after the supervisors had lost it. Logins from before it end.
	Revoked time.Time
}

// Issued describes a presented certificate that its authority has signed.
type Issued struct {
	Identity            Identity
	Serial              string // lower-case hexadecimal
	NotBefore, NotAfter time.Time
	Descends            time.Time // begin of the authority's certificate that it descends from, which Denial.Before refuses
	Issuer              string    // serial number of the issuer that signed it; empty: the authority did, or not known
}

// maxSeen limits the identities that a Registry remembers: the two halves of 65,000 nodes, in about 40 MB. Only certificates that the
// authority signed are remembered, so strangers cannot fill it.
const maxSeen = 1 << 17

// CutOff returns the Denial.Before that refuses every certificate issued by the cluster's authority before now, with
// all renewed from such a certificate, but none issued from the next second on: the authority dates certificates back.
func CutOff(now time.Time) time.Time {
	return now.Add(-backdate).Truncate(time.Second).Add(time.Second)
}

// All reports whether a denial is to refuse every certificate that the identity had at the time of the revocation. Others name a
// certificate, or an earlier time.
func (d Denial) All() bool {
	return d.Serial == "" && !d.Before.Before(CutOff(d.Revoked).Add(-time.Minute))
}

// Registry knows which certificates are revoked, and remembers the newest certificate of each identity. Verifiers and
// TLS configurations consult it for every message and every handshake. It is safe for concurrent use; a nil *Registry
// revokes and remembers nothing.
type Registry struct {
	denied atomic.Pointer[map[Identity][]Denial]

	mu      sync.Mutex
	seen    map[Identity]Issued
	full    time.Time // until then, a full registry remembers no other identity
	changed chan struct{}
}

// NewRegistry returns a registry without revocations.
func NewRegistry() *Registry {
	r := &Registry{seen: make(map[Identity]Issued), changed: make(chan struct{})}
	r.denied.Store(&map[Identity][]Denial{})
	return r
}

// Set replaces all revocations.
func (r *Registry) Set(list []Denial) {
	byID := make(map[Identity][]Denial)
	for _, d := range list {
		byID[d.Identity] = append(byID[d.Identity], d)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied.Store(&byID)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Changed returns a channel that is closed when the revocations are replaced.
func (r *Registry) Changed() <-chan struct{} {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Denied returns the denials by identity, of all identities with a revoked certificate. The caller must not change the slices.
func (r *Registry) Denied() map[Identity][]Denial {
	if r == nil {
		return nil
	}
	return maps.Clone(*r.denied.Load())
}

// check returns an error that wraps ErrRevoked for a revoked certificate.
func (r *Registry) check(id Identity, serial *big.Int, began time.Time) error {
	if r == nil {
		return nil
	}
	for _, d := range (*r.denied.Load())[id] {
		if d.Serial == "" && began.Before(d.Before) || d.Serial != "" && d.Serial == hexSerial(serial) {
			return fmt.Errorf("%w: that of %s", ErrRevoked, id)
		}
	}
	return nil
}

// CheckCertificate returns an error that wraps ErrRevoked for a revoked certificate, and remembers the certificate. The
// caller checks its chain.
func (r *Registry) CheckCertificate(cert *x509.Certificate) error {
	if r == nil {
		return nil
	}
	id, err := IdentityOf(cert)
	if err != nil {
		return err
	}
	r.note(id, cert, nil)
	return r.check(id, cert.SerialNumber, began(cert))
}

func hexSerial(n *big.Int) string {
	if n == nil {
		return ""
	}
	return n.Text(16)
}

// note remembers a certificate, unless a newer one of its identity is known. issuer may be nil, as in Issued.
func (r *Registry) note(id Identity, cert, issuer *x509.Certificate) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old, known := r.seen[id]
	if known && old.NotBefore.After(cert.NotBefore) || !known && len(r.seen) >= maxSeen && !r.forget(time.Now()) {
		return
	}
	c := Issued{Identity: id, Serial: hexSerial(cert.SerialNumber), NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Descends: began(cert)}
	if issuer != nil {
		c.Issuer = hexSerial(issuer.SerialNumber)
	} else if old.Serial == c.Serial {
		c.Issuer = old.Issuer
	}
	r.seen[id] = c
}

// forget drops expired certificates, for example of nodes that have left, at most once per forgetPause. It reports whether it has dropped
// any.
func (r *Registry) forget(now time.Time) bool {
	if now.Before(r.full) {
		return false
	}
	before := len(r.seen)
	maps.DeleteFunc(r.seen, func(_ Identity, c Issued) bool { return !c.NotAfter.After(now) })
	r.full = now.Add(forgetPause)
	return len(r.seen) < before
}

// forgetPause bounds how often a full registry looks for certificates that have ended.
const forgetPause = time.Minute

// Newest returns the newest presented certificate of an identity.
func (r *Registry) Newest(id Identity) (Issued, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, known := r.seen[id]
	return c, known
}

// Seen returns the newest presented certificate of each identity, sorted by identity.
func (r *Registry) Seen() []Issued {
	r.mu.Lock()
	all := slices.Collect(maps.Values(r.seen))
	r.mu.Unlock() // every message of a node needs the lock: many certificates are sorted without it
	names := make(map[Identity]string, len(all))
	for _, c := range all {
		names[c.Identity] = c.Identity.String()
	}
	slices.SortFunc(all, func(a, b Issued) int { return cmp.Compare(names[a.Identity], names[b.Identity]) })
	return all
}

// Revoked reports whether a certificate is revoked.
func (r *Registry) Revoked(c Issued) bool {
	n, ok := new(big.Int).SetString(c.Serial, 16)
	return ok && r.check(c.Identity, n, c.Descends) != nil
}

// WithTLS makes a TLS configuration of this package refuse revoked certificates in handshakes, and returns it.
func (r *Registry) WithTLS(c *tls.Config) *tls.Config {
	given := c.VerifyConnection
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if given != nil {
			if err := given(cs); err != nil {
				return err
			}
		}
		if len(cs.PeerCertificates) == 0 {
			return errors.New("peer without a certificate")
		}
		return r.CheckCertificate(cs.PeerCertificates[0])
	}
	return c
}

// Watch returns a context that ends with ErrRevoked as its cause when the certificate is revoked, so that a running
// stream ends too.
func (r *Registry) Watch(ctx context.Context, cert *x509.Certificate) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if r != nil {
		go func() {
			for {
				changed := r.Changed()
				if err := r.CheckCertificate(cert); err != nil {
					cancel(err)
					return
				}
				select {
				case <-ctx.Done():
					return
				case <-changed:
				}
			}
		}()
	}
	return ctx, func() { cancel(context.Canceled) }
}
