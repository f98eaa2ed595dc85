package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/checksum"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// start starts the embedded etcd, or connects to the external one.
func (p *storePart) start(s *Supervisor) error {
	if err := p.open(s); err != nil || s.cfg.Parent() {
		return err
	}
	p.incidents = store.NewIncidentFeed(p.Etcd, s.logger)
	return nil
}

// open opens the store.
func (p *storePart) open(s *Supervisor) error {
	e := s.cfg.Etcd
	if !s.cfg.Embedded() {
		var err error
		if p.client, err = s.etcdClient(e.Endpoints); err != nil {
			return err
		}
		p.Etcd = store.NewEtcd(p.client, s.storeOptions(0))
		return nil
	}
	conf, err := pki.ServerTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return err
	}
	p.member, err = embedded.Start(embedded.Config{
		DataDir: s.cfg.DataDir, Name: s.cfg.EtcdName(), PeerURL: e.PeerURL, ClientURL: e.ClientURL,
		InitialCluster: e.InitialCluster, ClusterState: e.ClusterState, Token: s.cfg.EtcdToken(), PeerName: pki.SupervisorName(s.cfg.Cluster),
		CertFile: s.cfg.TLS.Cert, KeyFile: s.cfg.TLS.Key, CAFile: s.cfg.TLS.CA,
		AllowClient: api.AuthorizeUnary(api.SupervisorsOnly, s.trust.registry),
		AllowStream: api.AuthorizeStream(api.SupervisorsOnly, s.trust.registry),
		Verify:      s.trust.registry.WithTLS(conf).VerifyConnection,
		Closed:      func(listener, reason string) { s.metrics.Closed.WithLabelValues(listener, reason).Inc() },
		Retention:   time.Duration(e.CompactionRetention), QuotaBytes: e.QuotaBytes, Nodes: len(s.cfg.Nodes), Logger: s.logger,
	})
	if err != nil {
		return err
	}
	p.client = p.member.Client()
	p.Etcd = store.NewEtcd(p.client, s.storeOptions(embedded.MaxTxnOps))
	return nil
}

// stop stops the embedded etcd, or closes the connection to the external one.
func (p *storePart) stop(ctx context.Context) error {
	switch {
	case p.member != nil:
		return p.member.Stop(ctx)
	case p.client == nil:
		return nil
	}
	if err := p.client.Close(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *Supervisor) storeOptions(maxOps int) store.Options {
	e := s.cfg.Etcd
	return store.Options{
		MaxOps: maxOps, OnRetry: s.commitRetry, KeepEvents: uint64(e.KeepEvents), HistoryAge: e.HistoryAge.D(), HistoryBytes: e.HistoryBytes,
	}
}

// commitRetry logs commits that the store does not accept: at first all, then ever fewer.
func (s *Supervisor) commitRetry(attempt int, err error) {
	s.metrics.CommitRetries.Inc()
	if s.store.member == nil {
		s.store.refusals.note(err, time.Now())
	}
	if attempt&(attempt-1) == 0 {
		s.logger.Warn("the store does not accept a commit: retrying", "attempt", attempt, "err", err)
	}
}

// etcdClient returns a client of the etcd members at these addresses, with our certificate if they use TLS.
func (s *Supervisor) etcdClient(endpoints []string) (*clientv3.Client, error) {
	cc := clientv3.Config{
		Endpoints: endpoints, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		DialTimeout: 5 * time.Second, DialOptions: []grpc.DialOption{grpc.WithNoProxy()}, Logger: embedded.NewZap(s.logger),
	}
	if strings.HasPrefix(cc.Endpoints[0], "https://") {
		var err error
		if cc.TLS, err = pki.EtcdTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA); err != nil {
			return nil, fmt.Errorf("certificate for etcd: %w", err)
		}
	}
	c, err := clientv3.New(cc)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ", "), err)
	}
	checksum.Client(c)
	return c, nil
}
