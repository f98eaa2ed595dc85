package pki

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

// RenewalResult is the outcome of a request.
type RenewalResult string

// The results.
const (
	RenewalIssued   RenewalResult = "issued"   // a new certificate
	RenewalRepeated RenewalResult = "repeated" // the certificate that the same key already has: an answer was lost
	RenewalRefused  RenewalResult = "refused"  // the half learns why
	RenewalReplayed RenewalResult = "replayed" // an old request: it gets no answer
)

// RenewalResults lists the results.
func RenewalResults() []RenewalResult {
	return []RenewalResult{RenewalIssued, RenewalRepeated, RenewalRefused, RenewalReplayed}
}

// Limits of requests.
const (
	// clocks is the largest difference between the clocks of a half and a supervisor. Certificates are backdated by as
	// much.
	clocks = 2 * time.Hour
	// dueLeft is the largest part of a certificate's lifetime, in percent, that may be left when it is renewed, unless an
	// earlier issuer signed it. Halves ask at 50.
	dueLeft = 60
	// rarest bounds the rate of certificates for one identity: at most one in each 1/rarest of a renewed certificate's
	// lifetime.
	rarest = 8
	// lostKey is the least time between two certificates for a half that does not use the first one, during a change of keys: it ended
	// before the answer came, and its new key is lost. Halves ask again after 45 s or more.
	lostKey = 30 * time.Second
	// maxGiven limits the identities that a desk remembers. The caller admits members of the topology only.
	maxGiven = 1 << 17
)

// NotDue begins the reason for a refusal because too much of the lifetime is left.
const NotDue = "not due"

// RenewalRequest is a half's request. The caller has verified its signature, and takes the half from the certificate.
type RenewalRequest struct {
	Key   ed25519.PublicKey
	Proof []byte
	Made  time.Time
}

// givenCertificate is the last certificate of an identity.
type givenCertificate struct {
	key  string
	made time.Time // when the half made its latest request for the certificate
	at   time.Time
	der  []byte
}

// RenewalDesk answers requests with an issuer's key. It is safe for concurrent use. It forgets its answers when its process
// ends: an old request that reaches another replica, or this one after a restart, gets another certificate for the same
// key, which only the half has.
type RenewalDesk struct {
	issuer   *Issuer
	lifetime time.Duration

	mu     sync.Mutex
	last   map[Identity]givenCertificate
	forgot time.Time // when forget last looked
}

// NewRenewalDesk returns a desk whose certificates have a lifetime.
func NewRenewalDesk(issuer *Issuer, lifetime time.Duration) *RenewalDesk {
	return &RenewalDesk{issuer: issuer, lifetime: lifetime, last: make(map[Identity]givenCertificate)}
}

// Answer returns a certificate for the identity that signed the request, or an error with the reason for none.
func (d *RenewalDesk) Answer(now time.Time, with Presented, r RenewalRequest) ([]byte, RenewalResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, known := d.last[with.Identity]
	if known && r.Made.Before(last.made) {
		return nil, RenewalReplayed, fmt.Errorf("made at %s: a later request was answered", stamp(r.Made))
	}
	if err := d.check(now, with, r); err != nil {
		return nil, RenewalRefused, err
	}
	if known && last.key == string(r.Key) && now.Sub(last.at) < d.lifetime/2 {
		last.made = r.Made
		d.last[with.Identity] = last
		return last.der, RenewalRepeated, nil
	}
	least := d.lifetime / rarest
	if with.Outdated && last.key != string(with.Key) {
		least = min(least, lostKey)
	}
	if next := last.at.Add(least); known && now.Before(next) {
		return nil, RenewalRefused, fmt.Errorf("too soon after the certificate before: want at least %s later", next.Sub(now).Round(time.Second))
	}
	if left := d.issuer.Ends().Sub(now); left < d.lifetime/rarest {
		return nil, RenewalRefused, fmt.Errorf("the issuer ends at %s: change the keys", stamp(d.issuer.Ends()))
	}
	if !known && len(d.last) >= maxGiven {
		d.forget(now)
	}
	if !known && len(d.last) >= maxGiven {
		return nil, RenewalRefused, errors.New("too many identities")
	}
	der, err := d.issuer.Renew(now, with, r.Key, d.lifetime)
	if err != nil {
		return nil, RenewalRefused, err
	}
	d.last[with.Identity] = givenCertificate{key: string(r.Key), made: r.Made, at: now, der: der}
	return der, RenewalIssued, nil
}

// forget drops the certificates that can no longer change an answer, such as those of nodes that are gone. They are too old to delay a
// renewal, and the desk refuses a replayed request from that time because of its age.
func (d *RenewalDesk) forget(now time.Time) {
	if age := now.Sub(d.forgot); age >= 0 && age < time.Minute {
		return // each look reads all of them
	}
	d.forgot = now
	oldest := now.Add(-max(d.lifetime, 2*clocks))
	maps.DeleteFunc(d.last, func(_ Identity, g givenCertificate) bool { return g.at.Before(oldest) })
}

func (d *RenewalDesk) check(now time.Time, with Presented, r RenewalRequest) error {
	if err := CheckProof(r.Key, with.Identity, r.Proof); err != nil {
		return errors.New("the new key does not prove itself")
	}
	if r.Key.Equal(with.Key) {
		return errors.New("the key is that of the certificate: want a new one")
	}
	if off := now.Sub(r.Made); off.Abs() > clocks {
		return fmt.Errorf("made at %s, here it is %s: want less than %s between", stamp(r.Made), stamp(now), clocks)
	}
	life, left := with.NotAfter.Sub(with.NotBefore), with.NotAfter.Sub(now)
	if left > life/100*dueLeft && !with.Outdated { // in this order, because long lifetimes overflow
		return fmt.Errorf(NotDue+": %s of %s left: want at most %d %%", left.Round(time.Second), life.Round(time.Second), dueLeft)
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
