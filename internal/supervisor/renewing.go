package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// renewals answers halves that request new certificates. Every replica with the issuer's key does, whether it leads
// or not.
type renewals struct {
	s      *Supervisor
	issuer *pki.Issuer
	desk   *pki.RenewalDesk
	asked  chan renewalAsked
}

// renewalAsked is a verified request. Its certificate is a copy.
type renewalAsked struct {
	req  *lofamov1.RenewRequest
	cert []byte
	from ingest.Place
}

// renewalQueue limits the requests that wait; halves repeat dropped ones.
const renewalQueue = 256

// newRenewals returns nil for a replica without an issuer's key.
func (s *Supervisor) newRenewals() (*renewals, error) {
	c := s.cfg.Renewal.Filled()
	if c.Cert == "" || s.cfg.Parent() {
		return nil, nil //nolint:nilnil // nothing is renewed
	}
	i, err := pki.LoadIssuer(c.Cert, c.Key, s.cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("renewal: %w", err)
	}
	if !s.verify.Trusts(i) {
		return nil,
			fmt.Errorf("renewal.cert: %s is not among the certificates in tls.ca, %s: verifiers would refuse every certificate that it issues",
				c.Cert, s.cfg.TLS.CA)
	}
	return &renewals{s: s, issuer: i, desk: pki.NewRenewalDesk(i, c.Lifetime.D()), asked: make(chan renewalAsked, renewalQueue)}, nil
}

// tell sets the metrics that show whether this replica renews certificates.
func (r *renewals) tell() {
	if r == nil {
		return
	}
	r.s.metrics.IssuerEnds.Set(float64(r.issuer.Ends().Unix()))
	for _, result := range pki.RenewalResults() {
		r.s.metrics.Renewals.WithLabelValues(string(result))
	}
}

// intake returns r as the interface of the intake; nil if r is nil.
func (r *renewals) intake() ingest.Renewals {
	if r == nil {
		return nil
	}
	return r
}

// Asked implements ingest.Renewals. A half that announces its new certificate needs no answer: the verification has
// recorded the certificate.
func (r *renewals) Asked(a *servicenet.Arrival, from ingest.Place) {
	req := a.Msg.GetRenewRequest()
	if req.GetTaken() {
		return
	}
	select {
	case r.asked <- renewalAsked{req, bytes.Clone(a.Certificate), from}:
	default:
		r.s.metrics.Renewals.WithLabelValues("dropped").Inc()
	}
}

// run answers requests until ctx ends. It runs apart from the intake, so that verdicts do not wait for signatures.
func (r *renewals) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-r.asked:
			r.answer(time.Now(), q)
		}
	}
}

func (r *renewals) answer(now time.Time, q renewalAsked) {
	log := r.s.logger.With("node", q.req.GetNode(), "half", fault.Half(q.req.GetHalf()).String())
	reply := &lofamov1.RenewReply{Node: q.req.GetNode(), Half: q.req.GetHalf()}
	cert, result, err := r.grant(now, q)
	r.s.metrics.Renewals.WithLabelValues(string(result)).Inc()
	switch result {
	case pki.RenewalReplayed:
		log.Debug("request for a certificate not answered", "err", err)
		return
	case pki.RenewalRefused:
		level := slog.LevelInfo
		if strings.HasPrefix(err.Error(), pki.NotDue) { // halves ask early during a change of keys
			level = slog.LevelDebug
		}
		log.Log(context.Background(), level, "request for a certificate refused", "err", err)
		reply.Error = fault.Cut(err.Error(), servicenet.MaxRenewProblem)
	case pki.RenewalIssued, pki.RenewalRepeated:
		log.Info("certificate "+string(result), "address", q.from.Addr.String())
		reply.Certificate = cert
	}
	r.s.ingest.sender.Renewed(reply, q.from)
}

func (r *renewals) grant(now time.Time, q renewalAsked) ([]byte, pki.RenewalResult, error) {
	with, err := pki.ReadPresented(q.cert)
	if err != nil {
		return nil, pki.RenewalRefused, err
	}
	o, ok := with.Identity.Origin()
	if _, placed := r.s.names.Topology().Node(o.Node); !ok || !placed {
		return nil, pki.RenewalRefused, fmt.Errorf("%s: no node or spare of the topology", o.Node)
	}
	with.Outdated = r.s.verify.Newest(r.issuer) && r.s.verify.Outdated(q.cert)
	return r.desk.Answer(now, with, pki.RenewalRequest{Key: q.req.GetKey(), Proof: q.req.GetProof(), Made: time.Unix(0, q.req.GetMadeNs())})
}
