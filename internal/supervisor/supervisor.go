// Package supervisor assembles one replica: the store (embedded or external etcd), the election, the engine with the
// inbox and the awareness machine, the rails by which agents reach it, and the gRPC and HTTP services (seed 001 §II,
// §III-C: the place of the fault awareness of the whole system).
//
// Each part is a package below. This package only creates them, connects them, starts them in order and stops them in
// reverse. It decides nothing about faults.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/order"
)

// Supervisor is one replica.
//
//	New ──Start──► running ──Stop, or a part fails──► stopped
type Supervisor struct {
	site
	identity

	listeners  listeners
	store      storePart
	engine     enginePart
	ingest     ingestPart
	orders     *orders.Channel // the leader's orders to nodes; nil in a parent of regions
	plain      []order.Plain   // kinds of orders without messages of their own
	notifier   *notify.Notifier
	respond    respondPart
	objects    objectsPart
	federation federationPart
	api        apiPart
	web        webPart
	metrics    metricsPart
	workers    workers
	gossip     gossipPart
	leadership leadership

	lifecycle
}

// Option changes the assembly of a Supervisor.
type Option func(*Supervisor)

// WithOrders adds kinds of orders that have no messages of their own. The nodes must know them too.
func WithOrders(kinds ...order.Plain) Option {
	return func(s *Supervisor) { s.plain = append(s.plain, kinds...) }
}

// New validates the configuration and the keys without opening anything.
func New(cfg config.Supervisor, logger *slog.Logger, options ...Option) (*Supervisor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	periods, err := cfg.Timing()
	if err != nil {
		return nil, err
	}
	top, err := topology.FromConfig(cfg)
	if err != nil {
		return nil, err
	}
	border, _ := topology.BorderFromConfig(cfg)
	s := &Supervisor{
		site: site{
			cfg: cfg, periods: periods, born: time.Now(), logger: logger.With("supervisor", cfg.ID),
			names: view.NamesOf(top).WithBorder(border), seed: top, marks: view.NewMarks(), masks: view.NewMasks(),
		},
		identity:   identity{renewEvery: renewEvery},
		store:      storePart{observer: store.NewObserver(), rollback: rollback{found: make(chan struct{})}},
		engine:     enginePart{replicas: newReplicas(cfg.Replicas)},
		federation: federationPart{regionOf: regionOf(cfg)},
		metrics:    metricsPart{registry: prometheus.NewRegistry()},
		lifecycle:  newLifecycle(),
	}
	if s.signer, err = pki.LoadSigner(cfg.TLS.Cert, cfg.TLS.Key); err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
	}
	if want := pki.SupervisorIdentity(cfg.Cluster, cfg.ID); s.signer.Identity() != want {
		return nil, fmt.Errorf("supervisor %s: certificate %s is of %s: want %s", cfg.ID, cfg.TLS.Cert, s.signer.Identity(), want)
	}
	if c := cfg.ECDSA; c.Cert != "" {
		if s.ecdsa, err = pki.LoadECDSA(c.Cert, c.Key, cfg.TLS.CA, s.signer.Identity()); err != nil {
			return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
		}
		if err := s.ecdsa.CheckTime(); err != nil {
			s.logger.Error("second certificate is not valid now: clients that refuse Ed25519 cannot connect", "certificate", c.Cert,
				"begins", s.ecdsa.Begins(), "expires", s.ecdsa.Expires(), "error", err)
		}
	}
	s.trust.registry = pki.NewRegistry()
	if s.verify, err = pki.LoadVerifier(cfg.TLS.CA, cfg.Cluster, pki.WithRegistry(s.trust.registry)); err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
	}
	s.newTrust()
	if err := errors.Join(s.newIssuing(), s.newObjects()); err != nil {
		return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
	}
	if cfg.GossipListen != "" {
		if s.gossipKeys, err = pki.LoadGossipKeys(cfg.GossipKeyFile); err != nil {
			return nil, fmt.Errorf("supervisor %s: %w", cfg.ID, err)
		}
	}
	for _, r := range cfg.Replicas {
		if r.ID == cfg.ID {
			s.self = r
		}
	}
	for _, o := range options {
		o(s)
	}
	s.metrics.Metrics = metrics.New(s.metrics.registry)
	s.renewals.tell()
	s.metrics.Promise(s.promised())
	s.metrics.alarms.gauge = s.metrics.Alarm
	s.metrics.alarms.set(nil)
	return s, nil
}

// Start opens everything and returns. It does not wait for a quorum or a leader. If it fails, it closes all
// open parts.
func (s *Supervisor) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(ctx))
		}
	}()
	if err := s.start(s, s.parts()); err != nil {
		return fmt.Errorf("start supervisor %s: %w", s.cfg.ID, err)
	}
	s.logger.Info("supervisor started", "grpc", s.cfg.GRPC, "report", s.cfg.Report, "http", s.cfg.HTTP,
		"nodes", len(s.cfg.Nodes), "embedded_etcd", s.cfg.Embedded())
	return nil
}

// Stop stops everything in the reverse order of Start. It may be called more than once.
func (s *Supervisor) Stop(ctx context.Context) error { return s.stop(ctx, s.logger) }

// parts returns the parts in the order in which they start. Leadership stops first: the lease is resigned while all
// other parts still work. Gossip stops before the workers: agents must not see a live member whose sockets nobody reads.
func (s *Supervisor) parts() []step {
	return []step{
		{"listeners", stopTime, &s.listeners},
		{"store", stopTime, &s.store},
		{"engine", stopTime, &s.engine},
		{"federation", stopTime, &s.federation},
		{"responses", stopTime, &s.respond},
		{"ingest", stopTime, &s.ingest},
		{"gRPC service", stopTime, &s.api},
		{"HTTP service", stopTime, &s.metrics},
		{"web page", stopTime, &s.web},
		{"workers", workersTime, &s.workers},
		{"gossip", stopTime, &s.gossip},
		{"leadership", stopTime + s.leadership.patience, &s.leadership},
	}
}
