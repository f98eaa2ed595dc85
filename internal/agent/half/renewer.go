package half

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/pki"
)

// Files of renewals in the state directory. The first holds a half's renewed certificate and key. Through the others
// the host half carries the DNP half's requests and their answers, because the DNP half has no socket in the service
// network.
const (
	renewedSuffix   = ".renewed"
	DnpRequestFile  = "dnp.renew-request"
	DnpAnswerFile   = "dnp.renew-answer"
	announcedRounds = 3 // number of times a half announces its new certificate, for `lofamoctl cert list`; each message may be lost
)

// Renewer renews one half's certificate. One goroutine uses it.
type Renewer struct {
	log      *slog.Logger
	self     fault.Origin
	Signer   *pki.Signer
	verifier *pki.Verifier
	file     string // of the renewed pair
	asker    *pki.RenewalAsker
	Send     func(signed []byte, toAll bool) // hands a request over; it may be lost

	key      ed25519.PrivateKey // of the request under way; nil: none
	announce int                // rounds left
	expired  Condition
	refused  string    // reason for the last refusal
	unsaved  Condition // the pair in use is not on disk
	looked   []byte    // the certificate to which earlier belongs
	earlier  bool      // an earlier issuer signed it
}

// NewRenewer returns the renewer of one half's certificate. It keeps the renewed one in stateDir.
func NewRenewer(log *slog.Logger, self fault.Origin, stateDir string, signer *pki.Signer, verifier *pki.Verifier) *Renewer {
	return &Renewer{
		log: log, self: self, Signer: signer, verifier: verifier, file: filepath.Join(stateDir, self.Half.String()+renewedSuffix),
		asker: pki.NewRenewalAsker(rand.Float64),
	}
}

// Keep makes the signer use a renewed pair from before this half's restart.
func (r *Renewer) Keep() {
	if err := r.Signer.KeepIn(r.file, r.verifier); err != nil {
		r.log.Warn("renewed certificate from before the restart not used", "err", err)
	}
}

// errExpired is the error for the operator once the certificate has expired.
var errExpired = errors.New("the certificate has ended: supervisors and neighbours refuse this half, and nothing renews it: put a new " +
	"certificate and key into its files")

// Tick sends requests, announcements and warnings when they are due. The caller calls it once a second.
func (r *Renewer) Tick(now time.Time) {
	action := r.asker.Step(now, r.Signer.Begins(), r.Signer.Expires(), r.outdated())
	var ended error
	if action == pki.RenewalExpired {
		ended = fmt.Errorf("%w (at %s)", errExpired, r.Signer.Expires().UTC().Format(time.RFC3339))
	}
	r.expired.Set(r.log, "using the certificate", ended)
	r.save()
	if !r.verifier.Renews() || r.Send == nil {
		return // no issuer is trusted, or this half cannot send: only new files count
	}
	if action == pki.RenewalAsk {
		if err := r.ask(now); err != nil {
			r.log.Error("request for a new certificate not made", "err", err)
		}
	}
	if r.announce > 0 {
		r.announce--
		if b, err := r.seal(now, r.Signer.Key(), true); err == nil {
			r.Send(b, true)
		}
	}
}

// outdated reports whether an earlier issuer signed the certificate in use. Trusted issuers change with a restart only.
func (r *Renewer) outdated() bool {
	if cert := r.Signer.Cert(); !bytes.Equal(cert, r.looked) {
		r.looked, r.earlier = cert, r.verifier.Outdated(cert)
	}
	return r.earlier
}

// ask sends a request for a new key. A retry is for the same key, so that a lost answer costs no certificate.
func (r *Renewer) ask(now time.Time) error {
	if r.key == nil {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return err
		}
		r.key = key
	}
	b, err := r.seal(now, r.key, false)
	if err != nil {
		return err
	}
	r.log.Debug("requesting a new certificate", "ends", r.Signer.Expires())
	r.Send(b, false)
	return nil
}

func (r *Renewer) seal(now time.Time, key ed25519.PrivateKey, taken bool) ([]byte, error) {
	pub, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("not an Ed25519 key")
	}
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_RenewRequest{RenewRequest: &lofamov1.RenewRequest{
		Node: string(r.self.Node), Half: lofamov1.Half(r.self.Half), Key: pub, Proof: pki.ProveKey(key, r.Signer.Identity()),
		MadeNs: now.UnixNano(), Taken: taken,
	}}}, r.Signer)
}

// Answered handles a supervisor's answer. It refuses a certificate for another key or another half, and one that this
// half's own authorities do not accept.
func (r *Renewer) Answered(reply *lofamov1.RenewReply) {
	if servicenet.OriginOf(reply) != r.self || r.key == nil {
		return
	}
	if why := reply.GetError(); why != "" {
		switch {
		case r.outdated() && strings.HasPrefix(why, pki.NotDue): // until the supervisors sign with the newest issuer
			r.log.Debug("a supervisor does not replace the certificate of an earlier issuer yet", "why", why)
		case why != r.refused:
			r.log.Warn("a supervisor refuses a new certificate: asking again later", "why", why, "ends", r.Signer.Expires())
		}
		r.refused = why
		return
	}
	if err := r.take(reply.GetCertificate()); err != nil {
		r.log.Error("new certificate not used", "err", err)
	}
}

func (r *Renewer) take(der []byte) error {
	id, err := r.verifier.Check(der)
	if err != nil {
		return err
	}
	got, err := pki.ReadPresented(der)
	switch {
	case err != nil:
		return err
	case id != r.Signer.Identity():
		return fmt.Errorf("it is of %s: want %s", id, r.Signer.Identity())
	case !got.Key.Equal(r.key.Public()):
		return errors.New("it is not for the requested key")
	case !got.NotBefore.After(r.Signer.Begins()):
		return fmt.Errorf("it begins at %s: want it to begin after the one in use, at %s", got.NotBefore, r.Signer.Begins())
	}
	if err := r.Signer.Take(der, r.key); err != nil {
		return err
	}
	r.key, r.refused, r.announce = nil, "", announcedRounds
	r.log.Info("certificate renewed", "expires", r.Signer.Expires())
	r.save()
	return nil
}

// save puts the certificate in use on disk, if it is not there yet. On a full disk the certificate counts in memory until
// there is room.
func (r *Renewer) save() {
	r.unsaved.Set(r.log, "writing the renewed certificate", r.Signer.SaveTaken())
}

// RenewalCounts counts requests and answers of both halves.
type RenewalCounts struct {
	Requests [fault.HalfDNP + 1]atomic.Uint64
	Issued   [fault.HalfDNP + 1]atomic.Uint64
	Refused  [fault.HalfDNP + 1]atomic.Uint64
}

// RenewalAnswer is a supervisor's answer and its envelope.
type RenewalAnswer struct {
	Reply    *lofamov1.RenewReply
	Envelope []byte
}
