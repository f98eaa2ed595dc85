package supervisor

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// newEnrolment returns the service by which operators make tokens and nodes enrol.
func (s *Supervisor) newEnrolment() (*api.Enrolment, error) {
	c := s.cfg.Enrolment
	answer, err := s.enrolAnswer()
	if err != nil {
		return nil, err
	}
	for _, result := range api.EnrolResults() {
		s.metrics.Enrolments.WithLabelValues(result)
	}
	cfg := api.EnrolmentConfig{
		Cluster: s.cfg.Cluster, Tokens: s.store.Etcd, Member: s.verify.Check, Stored: s.store.TopologyRevision, Answer: answer,
		Lifetime: s.cfg.Renewal.Filled().Lifetime.D(),
		Pin: func() (pin [32]byte, err error) {
			ca, err := pki.Authority(s.cfg.TLS.CA, s.cfg.TLS.Cert)
			if err == nil {
				pin = pki.PinOf(ca)
			}
			return pin, err
		},
		CA: func() ([]byte, error) { return os.ReadFile(s.cfg.TLS.CA) },
		Revoked: func(id fault.NodeID) (time.Time, bool) {
			at, is := s.revokedNodes().Nodes[id]
			return at, is
		},
		OptOut: s.cfg.Responses.OptOutLabel,
		Lives:  s.ingest.sender.Lives, ChallengeAddress: s.ingest.sender.ChallengeAddress,
		Own: s.ownAddresses, Local: local(s.cfg.Replicas),
		Count: func(result string) { s.metrics.Enrolments.WithLabelValues(result).Inc() }, Logger: s.logger,
	}
	if s.renewals != nil {
		cfg.Issuer = s.renewals.issuer
	}
	if s.accounts != nil {
		cfg.ServiceAccount = s.podNode
	}
	if c.Certificates.CA != "" {
		cfg.Foreign = func(chain []*x509.Certificate) (fault.NodeID, error) { return foreignNode(c.Certificates, chain) }
	}
	return api.NewEnrolment(s.api.Server, cfg), nil
}

// ownAddresses returns the addresses of supervisors that this one knows, and what each is.
func (s *Supervisor) ownAddresses() map[netip.AddrPort]string {
	c, out := s.cfg, make(map[netip.AddrPort]string)
	add := func(what string, texts ...string) {
		for _, text := range texts {
			if a, err := netip.ParseAddrPort(text); err == nil {
				out[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())] = what
			}
		}
	}
	for _, r := range s.engine.replicas.all() {
		add("the report address", r.GetReportAddress())
		add("the API's address", r.GetAddress())
		add("the HTTP address", r.GetHttpAddress())
	}
	add("a report address", c.ReportAlternates...)
	add("the gossip address", append(slices.Clone(c.GossipJoin), c.GossipListen)...)
	add("the enrolment address", c.Enrolment.Listen)
	add("the page's address", c.Web.Listen)
	return out
}

// local reports whether all supervisors are on loopback addresses, as in a cluster on one machine.
func local(replicas []config.ReplicaEntry) bool {
	return !slices.ContainsFunc(replicas, func(r config.ReplicaEntry) bool {
		a, err := netip.ParseAddrPort(r.Report)
		return err != nil || !a.Addr().Unmap().IsLoopback()
	})
}

// newIssuing prepares what signs and grants certificates.
func (s *Supervisor) newIssuing() (err error) {
	if s.renewals, err = s.newRenewals(); err == nil {
		s.accounts, err = s.newAccounts()
	}
	return err
}

// newAccounts returns the client that checks tokens of service accounts; nil: none is accepted.
func (s *Supervisor) newAccounts() (*kubernetes.Accounts, error) {
	k := s.cfg.Enrolment.Kubernetes
	if !k.Enabled() {
		return nil, nil //nolint:nilnil // none is accepted
	}
	a, err := kubernetes.NewAccounts(k.Kubeconfig, k.Audience, k.ServiceAccounts)
	if err != nil {
		return nil, fmt.Errorf("enrolment.kubernetes: %w", err)
	}
	return a, nil
}

// podNode returns the node whose pod has a token, with its labels of failure domains.
func (s *Supervisor) podNode(ctx context.Context, token string) (fault.NodeID, map[string]string, error) {
	name, err := s.accounts.NodeOf(ctx, token)
	if err != nil {
		if !errors.Is(err, kubernetes.ErrToken) {
			err = status.Error(codes.Unavailable, err.Error())
		}
		return "", nil, err
	}
	if !fault.IsName(name) {
		return "", nil, fmt.Errorf("the node's name in Kubernetes is %.253q: want 1 to 63 letters, digits, '-', '_' and '.'", name)
	}
	all, err := s.accounts.Labels(ctx, name)
	if err != nil {
		return "", nil, status.Error(codes.Unavailable, err.Error())
	}
	labels := map[string]string{topology.EnrolledBy: topology.EnrolledByKubernetes}
	for _, key := range s.names.Topology().DomainLabels {
		if value, ok := all[key]; ok {
			labels[key] = value
		}
	}
	return fault.NodeID(name), labels, nil
}

// enrolAnswer returns what every node gets that enrols.
func (s *Supervisor) enrolAnswer() (*lofamov1.EnrolResponse, error) {
	out := &lofamov1.EnrolResponse{Preset: s.cfg.Preset, GossipKeys: s.gossipKeys}
	if s.cfg.GossipListen != "" {
		out.Gossip = append(out.Gossip, s.cfg.GossipListen)
		for _, a := range s.cfg.GossipJoin {
			if a != s.cfg.GossipListen {
				out.Gossip = append(out.Gossip, a)
			}
		}
	}
	if s.cfg.Periods != nil {
		b, err := json.Marshal(s.cfg.Periods)
		if err != nil {
			return nil, fmt.Errorf("periods: %w", err)
		}
		out.Periods = string(b)
	}
	for _, r := range s.cfg.Replicas {
		sup := &lofamov1.EnrolmentSupervisor{Id: r.ID, Report: []string{r.Report}}
		if r.ID == s.cfg.ID {
			sup.Report = append(sup.Report, s.cfg.ReportAlternates...)
		}
		out.Supervisors = append(out.Supervisors, sup)
	}
	return out, nil
}

// foreignNode returns the node that a certificate of another authority names.
func foreignNode(c config.EnrolmentCertificates, chain []*x509.Certificate) (fault.NodeID, error) {
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		return "", status.Error(codes.Unavailable, "this supervisor cannot read enrolment.certificates.ca")
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return "", status.Error(codes.Unavailable, "this supervisor finds no certificate in enrolment.certificates.ca")
	}
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	leaf := chain[0]
	options := x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := leaf.Verify(options); err != nil {
		return "", fmt.Errorf("certificate: %w", err)
	}
	if len(leaf.URIs) != 1 {
		return "", fmt.Errorf("certificate: %d SAN URIs: want one, %s", len(leaf.URIs), c.URI)
	}
	node, ok := c.NodeOf(leaf.URIs[0].String())
	if !ok || leaf.IsCA {
		return "", fmt.Errorf("certificate: its URI is %.128q: want %s of a leaf", leaf.URIs[0], c.URI)
	}
	return node, nil
}

// serveEnrolment registers the service, and serves it to nodes at the enrolment address.
func (p *apiPart) serveEnrolment(s *Supervisor) error {
	if s.cfg.Parent() {
		return nil
	}
	e, err := s.newEnrolment()
	if err != nil {
		return err
	}
	lofamov1.RegisterEnrolmentServer(p.grpc, e)
	if s.listeners.enrolment == nil {
		return nil
	}
	conf, err := pki.EnrolServerTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA)
	if err != nil {
		return err
	}
	p.enrols, p.enrolled = api.NewEnrolmentServer(conf, e), make(chan struct{})
	go func() {
		defer close(p.enrolled)
		if err := p.enrols.Serve(s.listeners.enrolment); err != nil {
			s.fail(fmt.Errorf("enrolments on %s: %w", s.cfg.Enrolment.Listen, err))
		}
	}()
	return nil
}

// Intervals of the leader's work for nodes that join and are gone.
const (
	// placeEvery is the interval at which it looks for nodes that can get a place.
	placeEvery = 200 * time.Millisecond
	// unheardFor is the time without a report after which a node that has enrolled, and waits for a place, is removed.
	unheardFor = 10 * time.Minute
	// forgetEvery is the interval at which it looks for nodes that are gone.
	forgetEvery = 10 * time.Second
	// listEvery is the interval at which it lists the nodes of Kubernetes.
	listEvery = 15 * time.Second
)

// leadJoins gives places to nodes that have enrolled, and forgets nodes that are gone, until ctx ends.
func (s *Supervisor) leadJoins(ctx context.Context) {
	j := newJoining(s.cfg.Enrolment.ForgetAfter.D())
	if s.accounts != nil && s.cfg.Enrolment.Kubernetes.ForgetNodes {
		j.listEvery = listEvery
	}
	t := time.NewTicker(placeEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		step := j.step(time.Now(), s.names.Topology(), s.orders, joinReads{
			mapped: func() (mapNow, error) { return s.nodesNow(ctx) },
			listed: func() (map[string]bool, error) { return s.accounts.Nodes(ctx) },
		})
		if step.unlisted != nil && ctx.Err() == nil {
			s.logger.Warn("the nodes of Kubernetes cannot be listed: none is removed meanwhile", "err", step.unlisted)
		}
		if err := s.joinStep(ctx, j, step); j.news(time.Now(), err) && ctx.Err() == nil {
			s.logger.Warn("a node cannot be given a place, or removed: trying again", "err", err)
		}
	}
}

// joinStep carries out one step.
func (s *Supervisor) joinStep(ctx context.Context, j *joining, step joinStep) error {
	var errs []error
	if len(step.place) > 0 {
		if err := s.api.Place(ctx, step.place); err != nil {
			errs = append(errs, fmt.Errorf("place nodes that have enrolled: %w", err))
		}
	}
	for id, err := range s.api.Dismiss(ctx, step.leave) {
		j.kept(id, time.Now())
		errs = append(errs, fmt.Errorf("node %s announced that it leaves: %w", id, err))
	}
	for _, n := range step.forget {
		if err := s.forget(ctx, n); err != nil {
			j.kept(n.id, time.Now())
			errs = append(errs, fmt.Errorf("remove node %s: %w", n.id, err))
		}
	}
	return errors.Join(errs...)
}

// errThere says that Kubernetes has a node after all.
var errThere = errors.New("its Node object is in Kubernetes")

// forget removes a node from the topology.
func (s *Supervisor) forget(ctx context.Context, n forgotten) error {
	if n.absent { // a list may be old
		switch _, err := s.accounts.Labels(ctx, string(n.id)); {
		case err == nil:
			return errThere
		case !kubernetes.IsNotFound(err):
			return err
		}
	}
	removed, err := s.api.Forget(ctx, n.id, n.unless)
	if removed {
		s.logger.Warn("node removed from the topology", "node", string(n.id), "reason", n.why)
	}
	return err
}

// nodesNow returns the nodes of the leader's map that may be gone, or leave.
func (s *Supervisor) nodesNow(ctx context.Context) (mapNow, error) {
	m, err := s.engine.Map(ctx)
	if err != nil {
		return mapNow{}, err
	}
	return nodesIn(m, s.marks), nil
}

// nodesIn returns the nodes of a map that may be gone, or leave. A FAILED node under maintenance is expected back.
func nodesIn(m view.Map, marks *view.Marks) mapNow {
	out := mapNow{failed: make(map[fault.NodeID]bool)}
	for rank := range m.NotNormal() {
		st := m.At(rank).Status
		if st.State == fault.Failed && marks.Of(st.ID) == nil {
			out.failed[st.ID] = true
		}
		if st.State == fault.Failed || st.State == fault.Unknown {
			out.out++
		}
		if st.Stop.Reason == fault.StopLeave {
			out.leave = append(out.leave, st.ID)
		}
	}
	return out
}
