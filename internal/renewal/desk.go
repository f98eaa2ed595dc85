package renewal

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
)

// Result is the outcome of a request.
type Result string

// The results.
const (
	Issued   Result = "issued"   // a new certificate
	Repeated Result = "repeated" // the certificate that the same key already has: an answer was lost
	Refused  Result = "refused"  // the half learns why
	Replayed Result = "replayed" // an old request: it gets no answer
)

// Results lists the results.
func Results() []Result { return []Result{Issued, Repeated, Refused, Replayed} }

// Limits of requests.
const (
	// clocks is the largest difference between the clocks of a half and a supervisor. Certificates are backdated by as
	// much.
	clocks = 2 * time.Hour
	// dueLeft is the largest part of a certificate's lifetime, in percent, that may be left when it is renewed. Halves
	// ask at 50.
	dueLeft = 60
	// rarest bounds the rate of certificates for one identity: at most one in each 1/rarest of a renewed certificate's
	// lifetime.
	rarest = 8
	// maxGiven limits the identities that a desk remembers. The caller admits members of the topology only.
	maxGiven = 1 << 17
)

// Request is a half's request. The caller has verified its signature, and takes the half from the certificate.
type Request struct {
	Key   ed25519.PublicKey
	Proof []byte
	Made  time.Time
}

// given is the last certificate of an identity.
type given struct {
	key  string
	made time.Time // when the half made its latest request for the certificate
	at   time.Time
	der  []byte
}

// Desk answers requests with an issuer's key. It is safe for concurrent use. It forgets its answers when its process
// ends: an old request that reaches another replica, or this one after a restart, gets another certificate for the same
// key, which only the half has.
type Desk struct {
	issuer   *pki.Issuer
	lifetime time.Duration

	mu   sync.Mutex
	last map[pki.Identity]given
}

// NewDesk returns a desk whose certificates have a lifetime.
func NewDesk(issuer *pki.Issuer, lifetime time.Duration) *Desk {
	return &Desk{issuer: issuer, lifetime: lifetime, last: make(map[pki.Identity]given)}
}

// Answer returns a certificate for the identity that signed the request, or an error with the reason for none.
func (d *Desk) Answer(now time.Time, with pki.Presented, r Request) ([]byte, Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, known := d.last[with.Identity]
	if known && r.Made.Before(last.made) {
		return nil, Replayed, fmt.Errorf("made at %s: a later request was answered", stamp(r.Made))
	}
	if err := d.check(now, with, r); err != nil {
		return nil, Refused, err
	}
	if known && last.key == string(r.Key) && now.Sub(last.at) < d.lifetime/2 {
		last.made = r.Made
		d.last[with.Identity] = last
		return last.der, Repeated, nil
	}
	if next := last.at.Add(d.lifetime / rarest); known && now.Before(next) {
		return nil, Refused, fmt.Errorf("too soon after the certificate before: want at least %s later", next.Sub(now).Round(time.Second))
	}
	if left := d.issuer.Ends().Sub(now); left < d.lifetime/rarest {
		return nil, Refused, fmt.Errorf("the issuer ends at %s: change the keys", stamp(d.issuer.Ends()))
	}
	if !known && len(d.last) >= maxGiven {
		return nil, Refused, errors.New("too many identities")
	}
	der, err := d.issuer.Renew(now, with, r.Key, d.lifetime)
	if err != nil {
		return nil, Refused, err
	}
	d.last[with.Identity] = given{key: string(r.Key), made: r.Made, at: now, der: der}
	return der, Issued, nil
}

func (d *Desk) check(now time.Time, with pki.Presented, r Request) error {
	if err := pki.CheckProof(r.Key, with.Identity, r.Proof); err != nil {
		return errors.New("the new key does not prove itself")
	}
	if r.Key.Equal(with.Key) {
		return errors.New("the key is that of the certificate: want a new one")
	}
	if off := now.Sub(r.Made); off.Abs() > clocks {
		return fmt.Errorf("made at %s, here it is %s: want less than %s between", stamp(r.Made), stamp(now), clocks)
	}
	life, left := with.NotAfter.Sub(with.NotBefore), with.NotAfter.Sub(now)
	if left > life/100*dueLeft { // in this order, because long lifetimes overflow
		return fmt.Errorf("not due: %s of %s left: want at most %d %%", left.Round(time.Second), life.Round(time.Second), dueLeft)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
