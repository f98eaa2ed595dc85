package agent

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/renewal"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Files of renewals in the state directory. The first holds a half's renewed certificate and key. Through the others the host half carries the DNP half's
// requests and their answers, because the DNP half has no socket in the service network.
const (
	renewedSuffix   = ".renewed"
	dnpRequestFile  = "dnp.renew-request"
	dnpAnswerFile   = "dnp.renew-answer"
	announcedRounds = 3 // number of times a half announces its new certificate, for `lofamoctl cert list`; each message may be lost
)

// renewing renews one half's certificate. One goroutine uses it.
type renewing struct {
	log      *slog.Logger
	self     fault.Origin
	signer   *pki.Signer
	verifier *pki.Verifier
	file     string // of the renewed pair
	asker    *renewal.Asker
	send     func(signed []byte, toAll bool) // hands a request over; it may be lost

	key      ed25519.PrivateKey // of the request under way; nil: none
	announce int                // rounds left
	expired  condition
	refused  string // reason for the last refusal
}

func newRenewing(log *slog.Logger, self fault.Origin, stateDir string, signer *pki.Signer, verifier *pki.Verifier) *renewing {
	return &renewing{
		log: log, self: self, signer: signer, verifier: verifier, file: filepath.Join(stateDir, self.Half.String()+renewedSuffix),
		asker: renewal.NewAsker(rand.Float64),
	}
}

// keep makes the signer use a renewed pair from before this half's restart.
func (r *renewing) keep() {
	if err := r.signer.KeepIn(r.file, r.verifier); err != nil {
		r.log.Warn("renewed certificate from before the restart not used", "err", err)
	}
}

// errExpired tells the operator what to do.
var errExpired = errors.New("the certificate has ended: supervisors and neighbours refuse this half, and nothing renews it: put a new certificate and key into its files")

// tick sends requests, announcements and warnings when they are due. The caller calls it once a second.
func (r *renewing) tick(now time.Time) {
	action := r.asker.Step(now, r.signer.Begins(), r.signer.Expires())
	var ended error
	if action == renewal.Expired {
		ended = fmt.Errorf("%w (at %s)", errExpired, r.signer.Expires().UTC().Format(time.RFC3339))
	}
	r.expired.set(r.log, "using the certificate", ended)
	if !r.verifier.Renews() || r.send == nil {
		return // no issuer is trusted, or this half cannot send: only new files count
	}
	if action == renewal.Ask {
		if err := r.ask(now); err != nil {
			r.log.Error("request for a new certificate not made", "err", err)
		}
	}
	if r.announce > 0 {
		r.announce--
		if b, err := r.seal(now, r.signer.Key(), true); err == nil {
			r.send(b, true)
		}
	}
}

// ask sends a request for a new key. A retry is for the same key, so that a lost answer costs no certificate.
func (r *renewing) ask(now time.Time) error {
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
	r.log.Debug("requesting a new certificate", "ends", r.signer.Expires())
	r.send(b, false)
	return nil
}

func (r *renewing) seal(now time.Time, key ed25519.PrivateKey, taken bool) ([]byte, error) {
	pub, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("not an Ed25519 key")
	}
	return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_RenewRequest{RenewRequest: &lofamov1.RenewRequest{
		Node: string(r.self.Node), Half: lofamov1.Half(r.self.Half), Key: pub, Proof: pki.ProveKey(key, r.signer.Identity()), MadeNs: now.UnixNano(), Taken: taken,
	}}}, r.signer)
}

// answered handles a supervisor's answer. It refuses a certificate for another key or another half, and one that this half's own authorities do not
// accept.
func (r *renewing) answered(reply *lofamov1.RenewReply) {
	if servicenet.OriginOf(reply) != r.self || r.key == nil {
		return
	}
	if why := reply.GetError(); why != "" {
		if why != r.refused {
			r.log.Warn("a supervisor refuses a new certificate: asking again later", "why", why, "ends", r.signer.Expires())
		}
		r.refused = why
		return
	}
	if err := r.take(reply.GetCertificate()); err != nil {
		r.log.Error("new certificate not used", "err", err)
	}
}

func (r *renewing) take(der []byte) error {
	id, err := r.verifier.Check(der)
	if err != nil {
		return err
	}
	got, err := pki.ReadPresented(der)
	switch {
	case err != nil:
		return err
	case id != r.signer.Identity():
		return fmt.Errorf("it is of %s: want %s", id, r.signer.Identity())
	case !got.Key.Equal(r.key.Public()):
		return errors.New("it is not for the requested key")
	case !got.NotBefore.After(r.signer.Begins()):
		return fmt.Errorf("it begins at %s: want it to begin after the one in use, at %s", got.NotBefore, r.signer.Begins())
	}
	if err := pki.SaveKept(r.file, der, r.key); err != nil {
		return err
	}
	r.key, r.refused, r.announce = nil, "", announcedRounds
	if _, err := r.signer.Renew(); err != nil {
		return err
	}
	r.log.Info("certificate renewed", "expires", r.signer.Expires())
	return nil
}

// renewalCounts counts requests and answers of both halves.
type renewalCounts struct {
	requests [fault.HalfDNP + 1]atomic.Uint64
	issued   [fault.HalfDNP + 1]atomic.Uint64
	refused  [fault.HalfDNP + 1]atomic.Uint64
}

func renewalFamilies() []metric {
	return []metric{
		{"lofamo_agent_certificate_requests_total", "Requests for new certificates sent, by half.", []string{"half"}},
		{"lofamo_agent_certificate_answers_total", "Answers of supervisors to requests for new certificates, by half: issued, or refused.", []string{"half", "result"}},
	}
}

func (s sink) renewals(c *renewalCounts) {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		s.counter("lofamo_agent_certificate_requests_total", c.requests[h].Load(), h.String())
		s.counter("lofamo_agent_certificate_answers_total", c.issued[h].Load(), h.String(), "issued")
		s.counter("lofamo_agent_certificate_answers_total", c.refused[h].Load(), h.String(), "refused")
	}
}

// courier carries requests of both halves to the supervisors, and answers to the DNP half. Only the host half's trust goroutine uses it, except for take.
type courier struct {
	h       *hostHalf
	counts  renewalCounts
	request handover // of the DNP half
	next    int      // turn of supervisors and interfaces
}

func newCourier(h *hostHalf) *courier {
	return &courier{h: h, request: newHandover(h.statePath(dnpRequestFile), h.verifier)} // a request from before the restart is not sent
}

// send sends a signed request to the next supervisor in turn, or to all.
func (c *courier) send(half fault.Half, b []byte, toAll bool) {
	h := c.h
	turn := c.next
	c.next++
	k := turn / len(h.ids) % len(h.rails.direct)
	ids := h.ids[turn%len(h.ids):][:1]
	if toAll {
		ids = h.ids
	} else {
		c.counts.requests[half].Add(1)
	}
	for _, id := range ids {
		if err := h.rails.direct[k].Send(id, b); err != nil {
			h.log.Debug("request for a new certificate not sent", "supervisor", id, "interface", h.names[k], "err", err)
		}
	}
}

// look sends a new request of the DNP half.
func (c *courier) look() {
	o, err := c.request.next()
	m := o.Msg.GetRenewRequest()
	switch {
	case err != nil:
		c.h.log.Warn("request of the DNP half not read", "file", c.request.path, "err", err)
	case o.Msg == nil: // nothing new
	case m == nil || servicenet.OriginOf(m) != fault.Origin{Node: c.h.cfg.Node, Half: fault.HalfDNP}:
		c.h.log.Warn("file is not a request of this node's DNP half: not sent", "file", c.request.path)
	default:
		c.send(fault.HalfDNP, o.Raw, m.GetTaken())
	}
}

// take accepts a supervisor's answer and the envelope that it came in. Any goroutine may call it.
func (c *courier) take(reply *lofamov1.RenewReply, envelope []byte) {
	o := servicenet.OriginOf(reply)
	if o.Node != c.h.cfg.Node {
		return
	}
	if reply.GetError() == "" {
		c.counts.issued[o.Half].Add(1)
	} else {
		c.counts.refused[o.Half].Add(1)
	}
	c.h.trust.answer(renewalAnswer{reply, slices.Clone(envelope)})
}

// pass hands an answer to the half that asked.
func (c *courier) pass(a renewalAnswer) {
	if fault.Half(a.reply.GetHalf()) == fault.HalfHost {
		c.h.trust.renewals.answered(a.reply)
		return
	}
	if err := durable.Replace(c.h.statePath(dnpAnswerFile), a.envelope); err != nil {
		c.h.log.Warn("answer for the DNP half not passed on", "err", err)
	}
}

// renewalAnswer is a supervisor's answer and its envelope.
type renewalAnswer struct {
	reply    *lofamov1.RenewReply
	envelope []byte
}

// dnpPost is the DNP half's side of the courier.
type dnpPost struct {
	d      *dnpHalf
	answer handover
}

func newDNPPost(d *dnpHalf) *dnpPost {
	return &dnpPost{d, newHandover(d.statePath(dnpAnswerFile), d.verifier)} // an answer from before the restart is for a lost key
}

func (p *dnpPost) send(b []byte, _ bool) {
	if err := durable.Replace(p.d.statePath(dnpRequestFile), b); err != nil {
		p.d.log.Warn("request for a new certificate not handed to the host half", "err", err)
	}
}

// look handles a new answer.
func (p *dnpPost) look() {
	o, err := p.answer.next()
	switch {
	case err != nil:
		p.d.log.Warn("answer for the DNP half not read", "file", p.answer.path, "err", err)
	case o.Msg == nil: // nothing new
	case o.Msg.GetRenewReply() == nil:
		p.d.log.Warn("file is not a supervisor's answer: not used", "file", p.answer.path)
	default:
		p.d.trust.renewals.answered(o.Msg.GetRenewReply())
	}
}

// handover is a file in which the other half leaves envelopes. A new envelope replaces the one before, which may be lost.
type handover struct {
	watchedFile
	verifier *pki.Verifier
}

// newHandover returns the handover at path. An envelope that is there already counts as seen.
func newHandover(path string, v *pki.Verifier) handover { return handover{watch(path), v} }

// next opens the envelope that has appeared since the call before. Without a new one it returns neither a message nor an error.
func (h *handover) next() (servicenet.Opened, error) {
	if !h.changed() {
		return servicenet.Opened{}, nil
	}
	b, err := durable.Read(h.path, servicenet.MaxDatagram)
	if errors.Is(err, fs.ErrNotExist) {
		return servicenet.Opened{}, nil
	} else if err != nil {
		return servicenet.Opened{}, err
	}
	return servicenet.Open(b, h.verifier)
}
