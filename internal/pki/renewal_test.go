package pki

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestWhenToAsk: a half asks when half of the lifetime is left, spread over a sixteenth of that lifetime; then with
// growing pauses; never after the end of the certificate.
func TestWhenToAsk(t *testing.T) {
	for name, tc := range map[string]struct {
		life                    time.Duration
		random                  float64
		first, second, longestP time.Duration // after the begin; pause to the second; longest pause
	}{
		"40 s with 10 s dated back, no spread": {50 * time.Second, 0, 25 * time.Second, 750 * time.Millisecond, time.Second * 5 / 4},
		"3 days":                               {72 * time.Hour, 0, 36 * time.Hour, 45 * time.Second, time.Hour * 5 / 4},
		"3 days, spread":                       {72 * time.Hour, 0.5, 36*time.Hour + 135*time.Minute, time.Minute, time.Hour * 5 / 4},
		"a year":                               {365 * 24 * time.Hour, 0, 365 * 12 * time.Hour, 45 * time.Second, time.Hour * 5 / 4},
	} {
		t.Run(name, func(t *testing.T) {
			a, end := NewRenewalAsker(func() float64 { return tc.random }), t0.Add(tc.life)
			var asked []time.Time
			step := max(tc.life/100000, 10*time.Millisecond)
			for now := t0; now.Before(end); now = now.Add(step) {
				if a.Step(now, t0, end, false) == RenewalAsk {
					asked = append(asked, now)
				}
			}
			if len(asked) < 10 {
				t.Fatalf("asked %d times", len(asked))
			}
			if got := asked[0].Sub(t0) - tc.first; got < 0 || got > step {
				t.Errorf("first after %s: want %s", asked[0].Sub(t0), tc.first)
			}
			if got := asked[1].Sub(asked[0]) - tc.second; got < 0 || got > max(step, tc.second) {
				t.Errorf("second %s later: want %s", asked[1].Sub(asked[0]), tc.second)
			}
			for i := 2; i < len(asked); i++ {
				if got := asked[i].Sub(asked[i-1]); got > tc.longestP+step {
					t.Errorf("request %d: %s after the one before: want at most %s", i, got, tc.longestP)
				}
			}
			if got := a.Step(end, t0, end, false); got != RenewalExpired {
				t.Errorf("at the end: %d: want Expired", got)
			}
			if got := a.Step(end, t0.Add(time.Second), end.Add(tc.life), false); got == RenewalExpired {
				t.Error("another certificate: expired")
			}
		})
	}
}

// TestStartOfManyIsSpread: halves that start together with certificates that are due do not ask together.
func TestStartOfManyIsSpread(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var early, asked int
	for range 1000 {
		a := NewRenewalAsker(rnd.Float64)
		begins, ends := t0.Add(-20*24*time.Hour), t0.Add(10*24*time.Hour)
		if a.Step(t0, begins, ends, false) == RenewalAsk {
			early++
		}
		if a.Step(t0.Add(time.Minute), begins, ends, false) == RenewalAsk {
			asked++
		}
	}
	if early > 5 || asked < 990 {
		t.Errorf("%d of 1000 asked at once, %d more within a minute: want 0 and all", early, asked)
	}
}

// customer is a half with its certificate and the authority behind it.
type customer struct {
	t      *testing.T
	ca     *CA
	issuer *Issuer
	desk   *RenewalDesk
	id     Identity
	begins time.Time
	ends   time.Time
}

func newCustomer(t *testing.T, lifetime time.Duration) *customer {
	t.Helper()
	ca, err := NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	i, err := NewIssuer("c")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	return &customer{t: t, ca: ca, issuer: i, desk: NewRenewalDesk(i, lifetime), id: NodeIdentity("c", "n0", fault.HalfHost),
		begins: now.Add(-6 * time.Hour), ends: now.Add(4 * time.Hour)}
}

func (c *customer) presented() Presented {
	return Presented{Identity: c.id, NotBefore: c.begins, NotAfter: c.ends, Descends: c.begins}
}

func (c *customer) request(made time.Time) RenewalRequest {
	c.t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return RenewalRequest{Key: pub, Proof: ProveKey(key, c.id), Made: made}
}

// TestDeskForgetsHalvesThatAreGone: a desk that has served as many halves as it remembers, over years of nodes that come and go, still
// renews certificates. It forgets none that could misuse that.
func TestDeskForgetsHalvesThatAreGone(t *testing.T) {
	now := time.Now()
	c := newCustomer(t, 8*time.Hour)
	for i := range maxGiven {
		c.desk.last[NodeIdentity("c", fault.NodeID(fmt.Sprint("gone", i)), fault.HalfHost)] = givenCertificate{at: now}
	}
	if _, result, err := c.desk.Answer(now, c.presented(), c.request(now)); result != RenewalRefused {
		t.Errorf("with as many halves as it remembers: %s, %v: want a refusal", result, err)
	}
	later := now.Add(8*time.Hour + time.Second)
	c.begins, c.ends = later.Add(-6*time.Hour), later.Add(4*time.Hour)
	if _, result, err := c.desk.Answer(later, c.presented(), c.request(later)); result != RenewalIssued {
		t.Errorf("a lifetime later: %s, %v: want a certificate", result, err)
	}
}

// TestHalfThatLostItsNewKeyGetsAnotherCertificate: during a change of keys, a half ends between its request and the answer. Its key is
// lost, so it asks for another certificate, which it needs before the operator removes the earlier issuer.
func TestHalfThatLostItsNewKeyGetsAnotherCertificate(t *testing.T) {
	now := time.Now()
	c := newCustomer(t, 8*time.Hour)
	with := c.presented()
	with.Outdated = true
	if _, result, err := c.desk.Answer(now, with, c.request(now)); result != RenewalIssued {
		t.Fatalf("%s, %v", result, err)
	}
	early := now.Add(lostKey - time.Second)
	if _, result, _ := c.desk.Answer(early, with, c.request(early)); result != RenewalRefused {
		t.Errorf("another key %s later: %s: want it refused", lostKey-time.Second, result)
	}
	later := now.Add(lostKey)
	der, result, err := c.desk.Answer(later, with, c.request(later))
	if result != RenewalIssued {
		t.Fatalf("another key %s later: %s, %v", lostKey, result, err)
	}
	taken, err := ReadPresented(der)
	if err != nil {
		t.Fatal(err)
	}
	taken.Outdated = true // of yet another change of keys: the half has this certificate
	if _, result, _ := c.desk.Answer(later.Add(lostKey), taken, c.request(later.Add(lostKey))); result != RenewalRefused {
		t.Errorf("after a certificate that the half uses: %s: want it refused", result)
	}
}

func TestDeskIssuesOnceForAKey(t *testing.T) {
	now := time.Now()
	c := newCustomer(t, 8*time.Hour)
	r := c.request(now)
	first, result, err := c.desk.Answer(now, c.presented(), r)
	if err != nil || result != RenewalIssued {
		t.Fatalf("%s, %v", result, err)
	}
	got, err := ReadPresented(first)
	if err != nil || got.Identity != c.id || !got.Key.Equal(r.Key) || !got.NotBefore.After(c.begins) {
		t.Errorf("%+v, %v", got, err)
	}
	// The answer was lost: the half asks again for the same key.
	r.Made = now.Add(time.Minute)
	again, result, err := c.desk.Answer(now.Add(time.Minute), c.presented(), r)
	if err != nil || result != RenewalRepeated || !bytes.Equal(first, again) {
		t.Errorf("again: %s, %v", result, err)
	}
	// A copy of the first request comes later.
	r.Made = now
	if _, result, _ := c.desk.Answer(now.Add(2*time.Minute), c.presented(), r); result != RenewalReplayed {
		t.Errorf("a replay: %s", result)
	}
	if _, result, _ := c.desk.Answer(now.Add(30*time.Minute), c.presented(), c.request(now.Add(30*time.Minute))); result != RenewalRefused {
		t.Errorf("another key half an hour later: %s: want it refused until an hour has passed", result)
	}
	if _, result, err := c.desk.Answer(now.Add(time.Hour), c.presented(), c.request(now.Add(time.Hour))); result != RenewalIssued {
		t.Errorf("another key an hour later: %s, %v", result, err)
	}
}

func TestDeskRefuses(t *testing.T) {
	c := newCustomer(t, 8*time.Hour)
	now := time.Now() // after the issuer's certificate begins, which ends an hour too early below
	good := c.presented()
	edit := func(f func(*RenewalRequest)) RenewalRequest {
		r := c.request(now)
		f(&r)
		return r
	}
	other := NodeIdentity("c", "n1", fault.HalfHost)
	pub, key, _ := ed25519.GenerateKey(nil)
	same := good
	same.Key = pub
	for name, tc := range map[string]struct {
		with Presented
		r    RenewalRequest
	}{
		"the proof is another half's": {good, RenewalRequest{Key: pub, Proof: ProveKey(key, other), Made: now}},
		"the proof is of another key": {good, edit(func(r *RenewalRequest) { r.Key = pub })},
		"no proof":                    {good, edit(func(r *RenewalRequest) { r.Proof = nil })},
		"the certificate's own key":   {same, RenewalRequest{Key: pub, Proof: ProveKey(key, c.id), Made: now}},
		"made three hours ago":        {good, edit(func(r *RenewalRequest) { r.Made = now.Add(-3 * time.Hour) })},
		"made in three hours":         {good, edit(func(r *RenewalRequest) { r.Made = now.Add(3 * time.Hour) })},
		"a certificate that is not due": {Presented{Identity: c.id, NotBefore: now.Add(-3 * time.Hour),
			NotAfter: now.Add(7 * time.Hour)}, c.request(now)},
		"a supervisor's certificate": {Presented{Identity: SupervisorIdentity("c", "n0"), NotBefore: c.begins,
			NotAfter: c.ends}, c.request(now)},
		"a certificate of another cluster": {Presented{Identity: NodeIdentity("d", "n0", fault.HalfHost), NotBefore: c.begins,
			NotAfter: c.ends}, c.request(now)},
	} {
		t.Run(name, func(t *testing.T) {
			if der, result, err := c.desk.Answer(now, tc.with, tc.r); result != RenewalRefused || der != nil || err == nil ||
				len(err.Error()) > 120 {
				t.Errorf("%s, %v, %d bytes: want it refused in at most 120 bytes", result, err, len(der))
			}
		})
	}
	if _, result, err := c.desk.Answer(now.Add(365*24*time.Hour-time.Hour),
		Presented{Identity: c.id, NotBefore: now, NotAfter: now.Add(365 * 24 * time.Hour)},
		c.request(now.Add(365*24*time.Hour-time.Hour))); result != RenewalRefused {
		t.Errorf("an issuer that ends in an hour: %s, %v", result, err)
	}
	if _, result, err := c.desk.Answer(now, good, c.request(now)); result != RenewalIssued {
		t.Errorf("after all that: %s, %v", result, err)
	}
}

// TestLongLifetimesAreDue: a certificate is due by the part of its lifetime that is left, whatever its lifetime.
func TestLongLifetimesAreDue(t *testing.T) {
	now := time.Now()
	for _, years := range []int{1, 5, 10, 100} {
		life := time.Duration(years) * 365 * 24 * time.Hour
		for part, want := range map[int]RenewalResult{40: RenewalIssued, 70: RenewalRefused} {
			c := newCustomer(t, 8*time.Hour)
			with := c.presented()
			with.NotAfter = now.Add(life / 100 * time.Duration(part))
			with.NotBefore = with.NotAfter.Add(-life)
			if _, result, err := c.desk.Answer(now, with, c.request(now)); result != want {
				t.Errorf("%d years, %d %% left: %s, %v: want %s", years, part, result, err, want)
			}
		}
	}
}

// TestCertificatesOfAnEarlierIssuerAreReplaced: during a change of keys, both issuers are trusted. A certificate that the earlier one
// signed is replaced at once, by the newest one alone. One of the authority, or of the newest issuer, waits until it is due.
func TestCertificatesOfAnEarlierIssuerAreReplaced(t *testing.T) {
	now := time.Now()
	c := newCustomer(t, 8*time.Hour)
	next, err := NewIssuer("c")
	if err != nil {
		t.Fatal(err)
	}
	if !next.cert.NotBefore.After(c.issuer.cert.NotBefore) { // certificates count seconds
		next.cert.NotBefore = c.issuer.cert.NotBefore.Add(time.Second)
	}
	registry := NewRegistry()
	v, err := NewVerifier(slices.Concat(c.ca.CertPEM(), c.issuer.CertPEM()), "c", WithRegistry(registry))
	if err != nil {
		t.Fatal(err)
	}
	v.roots.add(next.cert)

	pub, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := c.issuer.Renew(now, c.presented(), pub, 8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Check(old); err != nil {
		t.Fatal(err)
	}
	if !v.Outdated(old) || !v.Newest(next) || v.Newest(c.issuer) || !v.Earlier(registry.Seen()[0].Issuer) {
		t.Errorf("outdated %v, newest %v and %v, seen %+v: want the later issuer as the newest one", v.Outdated(old), v.Newest(next),
			v.Newest(c.issuer), registry.Seen())
	}
	with, err := ReadPresented(old)
	if err != nil {
		t.Fatal(err)
	}
	desk := NewRenewalDesk(next, 8*time.Hour)
	if _, result, err := desk.Answer(now, with, c.request(now)); result != RenewalRefused {
		t.Errorf("not due, of the same issuer: %s, %v: want a refusal", result, err)
	}
	with.Outdated = true
	der, result, err := desk.Answer(now, with, c.request(now))
	if result != RenewalIssued {
		t.Fatalf("%s, %v: want a certificate", result, err)
	}
	if _, err := v.Check(der); err != nil || v.Outdated(der) || v.Earlier(registry.Seen()[0].Issuer) {
		t.Errorf("the new one: %v, outdated %v, seen %+v", err, v.Outdated(der), registry.Seen())
	}

	a := NewRenewalAsker(func() float64 { return 0.5 })
	begins, ends := now.Add(-time.Hour), now.Add(29*24*time.Hour)
	if got := a.Step(now.Add(time.Minute), begins, ends, false); got != RenewalWait {
		t.Errorf("not outdated: %v: want to wait", got)
	}
	a = NewRenewalAsker(func() float64 { return 0.5 })
	if a.Step(now, begins, ends, true) != RenewalWait || a.Step(now.Add(startSpread), begins, ends, true) != RenewalAsk {
		t.Error("outdated: want a request within a minute")
	}
}
