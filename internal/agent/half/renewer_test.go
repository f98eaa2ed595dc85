package half

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// applicant is a half of node n0 with a certificate that is due, and all that it has sent.
type applicant struct {
	*Renewer
	issuer *pki.Issuer
	dir    string
	sent   []*lofamov1.RenewRequest
	toAll  int
}

func newApplicant(t *testing.T, withIssuer bool, life time.Duration) *applicant {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a := &applicant{dir: t.TempDir()}
	file := func(name string) string { return filepath.Join(a.dir, name) }
	ca, err := pki.NewCA("c")
	must(err)
	ca.SetNodeLifetime(life)
	a.issuer, err = pki.NewIssuer("c")
	must(err)
	roots := ca.CertPEM()
	if withIssuer {
		roots = append(roots, a.issuer.CertPEM()...)
	}
	must(os.WriteFile(file("ca.pem"), roots, 0o600))
	must(ca.IssueTo(file("host.pem"), file("host.key"), pki.NodeIdentity("c", "n0", fault.HalfHost), nil, nil))
	signer, err := pki.LoadSigner(file("host.pem"), file("host.key"))
	must(err)
	verifier, err := pki.LoadVerifier(file("ca.pem"), "c")
	must(err)
	a.Renewer = NewRenewer(slog.New(slog.DiscardHandler), fault.Origin{Node: "n0", Half: fault.HalfHost}, a.dir, signer, verifier)
	a.Send = func(b []byte, toAll bool) {
		o, err := servicenet.Open(b, verifier)
		must(err)
		if a.sent = append(a.sent, o.Msg.GetRenewRequest()); toAll {
			a.toAll++
		}
	}
	a.Keep()
	return a
}

// ticks lets time pass in seconds, from the certificate's begin to its end.
func (a *applicant) ticks() {
	for now := a.Signer.Begins(); now.Before(a.Signer.Expires()); now = now.Add(time.Second) {
		a.Tick(now)
	}
}

// reply makes a supervisor's answer for a key.
func (a *applicant) reply(t *testing.T, i *pki.Issuer, id pki.Identity, key ed25519.PublicKey) *lofamov1.RenewReply {
	t.Helper()
	der, err := i.Renew(time.Now(), pki.Presented{Identity: id, NotBefore: a.Signer.Begins(), Descends: a.Signer.Begins()}, key, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &lofamov1.RenewReply{Node: "n0", Half: lofamov1.Half_HALF_HOST, Certificate: der}
}

// TestHalfTakesOnlyItsOwnCertificate: a half asks for one key until it has its certificate, accepts no other answer,
// keeps key and certificate in its state directory, and then tells all supervisors.
func TestHalfTakesOnlyItsOwnCertificate(t *testing.T) {
	a := newApplicant(t, true, time.Minute)
	inFiles := a.Signer.Cert()
	a.ticks()
	if len(a.sent) < 3 || a.toAll > 0 {
		t.Fatalf("%d requests, %d to all: want some, to one supervisor each", len(a.sent), a.toAll)
	}
	id, key := a.Signer.Identity(), ed25519.PublicKey(a.sent[0].GetKey())
	for _, m := range a.sent {
		if !key.Equal(ed25519.PublicKey(m.GetKey())) || pki.CheckProof(m.GetKey(), id, m.GetProof()) != nil || m.GetTaken() {
			t.Fatalf("request %v: want one key, with its proof", m)
		}
	}
	foreign, err := pki.NewIssuer("c")
	if err != nil {
		t.Fatal(err)
	}
	other, _, _ := ed25519.GenerateKey(nil)
	good := a.reply(t, a.issuer, id, key)
	for what, r := range map[string]*lofamov1.RenewReply{
		"a refusal":              {Node: "n0", Half: lofamov1.Half_HALF_HOST, Error: "not due"},
		"for another key":        a.reply(t, a.issuer, id, other),
		"of another half":        a.reply(t, a.issuer, pki.NodeIdentity("c", "n0", fault.HalfDNP), key),
		"of another issuer":      a.reply(t, foreign, id, key),
		"to the other half":      {Node: "n0", Half: lofamov1.Half_HALF_DNP, Certificate: good.GetCertificate()},
		"to another node":        {Node: "n1", Half: lofamov1.Half_HALF_HOST, Certificate: good.GetCertificate()},
		"no certificate":         {Node: "n0", Half: lofamov1.Half_HALF_HOST, Certificate: []byte("x")},
		"the certificate in use": {Node: "n0", Half: lofamov1.Half_HALF_HOST, Certificate: inFiles},
	} {
		a.Answered(r)
		if _, err := os.Stat(a.file); err == nil || !slices.Equal(a.Signer.Cert(), inFiles) {
			t.Fatalf("%s: taken", what)
		}
	}
	a.Answered(good)
	if !slices.Equal(a.Signer.Cert(), good.GetCertificate()) {
		t.Fatal("the requested certificate is not used")
	}
	a.sent = nil
	for range 10 {
		a.Tick(a.Signer.Begins().Add(time.Second))
	}
	if len(a.sent) != announcedRounds || a.toAll != announcedRounds || !a.sent[0].GetTaken() {
		t.Errorf("%d messages afterwards, %d to all: want %d announcements", len(a.sent), a.toAll, announcedRounds)
	}
	a.Answered(a.reply(t, a.issuer, id, key)) // late, from another supervisor
	if !slices.Equal(a.Signer.Cert(), good.GetCertificate()) {
		t.Error("the half accepted a late answer")
	}
}

// TestHalfAsksOnlyIssuer: without an issuer in its ca.pem a half never asks, as before; one whose
// certificate has ended does not ask either.
func TestHalfAsksOnlyIssuer(t *testing.T) {
	a := newApplicant(t, false, time.Minute)
	a.ticks()
	if len(a.sent) > 0 {
		t.Errorf("%d requests without an issuer", len(a.sent))
	}
	a = newApplicant(t, true, time.Minute)
	for now := a.Signer.Expires(); now.Before(a.Signer.Expires().Add(time.Minute)); now = now.Add(time.Second) {
		a.Tick(now)
	}
	if len(a.sent) > 0 || !a.expired.On {
		t.Errorf("%d requests after the end, warned: %t: want none, and a warning", len(a.sent), a.expired.On)
	}
}

// TestHandoverYieldsEachEnvelopeOnce: an envelope from before the start, one already read, a removed file and a broken
// one yield no message.
func TestHandoverYieldsEachEnvelopeOnce(t *testing.T) {
	a := newApplicant(t, true, time.Minute)
	envelope, err := a.seal(time.Now(), a.Signer.Key(), true)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), DnpRequestFile)
	write := func(b []byte) {
		t.Helper()
		if err := durable.Replace(file, b); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("from before the start"))
	h := Handover{WatchedFile: Watch(file), verifier: a.verifier}
	next := func(what string, message, fails bool) {
		t.Helper()
		if o, err := h.next(); (o.Msg.GetRenewRequest() != nil) != message || (err != nil) != fails {
			t.Errorf("%s: %v, %v: want a message: %t, an error: %t", what, o.Msg, err, message, fails)
		}
	}
	next("from before the start", false, false)
	write(envelope)
	next("new", true, false)
	next("read before", false, false)
	write([]byte("broken"))
	next("broken", false, true)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	next("removed", false, false)
	write(envelope)
	next("new again", true, false)
}

// TestRenewalOnFullDisk: a renewed certificate counts although the disk has no room for it, and is on disk once there is room.
func TestRenewalOnFullDisk(t *testing.T) {
	a := newApplicant(t, true, time.Minute)
	state := t.TempDir()
	requirements.SmallDisk(t, state, 16<<10)
	full := filepath.Join(state, "full")
	if err := os.WriteFile(full, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	send, origin := a.Send, fault.Origin{Node: "n0", Half: fault.HalfHost}
	a.Renewer = NewRenewer(slog.New(slog.DiscardHandler), origin, state, a.Signer, a.verifier)
	a.Send = send
	a.Keep()
	inFiles := a.Signer.Cert()
	a.ticks()
	good := a.reply(t, a.issuer, a.Signer.Identity(), ed25519.PublicKey(a.sent[0].GetKey()))
	a.Answered(good)
	now := a.Signer.Begins().Add(time.Second)
	for range 3 {
		a.Tick(now)
		if _, err := a.Signer.Renew(); err != nil || !slices.Equal(a.Signer.Cert(), good.GetCertificate()) {
			t.Fatalf("certificate until %s, %v: want the renewed one", a.Signer.Expires(), err)
		}
	}
	if !a.unsaved.On {
		t.Error("no warning that the renewed certificate is not on disk")
	}
	restarted := func() []byte {
		t.Helper()
		signer, err := pki.LoadSigner(filepath.Join(a.dir, "host.pem"), filepath.Join(a.dir, "host.key"))
		if err != nil {
			t.Fatal(err)
		}
		NewRenewer(slog.New(slog.DiscardHandler), origin, state, signer, a.verifier).Keep()
		return signer.Cert()
	}
	if !slices.Equal(restarted(), inFiles) {
		t.Error("a full disk kept a certificate")
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	a.Tick(now)
	if a.unsaved.On || !slices.Equal(restarted(), good.GetCertificate()) {
		t.Errorf("not on disk: %t: want the renewed certificate after a restart", a.unsaved.On)
	}
}
