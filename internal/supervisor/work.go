package supervisor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// peerTLS returns a configuration that admits only the replica with that ID.
func (s *Supervisor) peerTLS(id string) (*tls.Config, error) {
	want := pki.SupervisorIdentity(s.cfg.Cluster, id)
	conf, err := pki.ClientTLS(s.cfg.TLS.Cert, s.cfg.TLS.Key, s.cfg.TLS.CA, func(got pki.Identity) error {
		if got != want {
			return fmt.Errorf("the replica at this address is %s: want %s", got, want)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.trust.registry.WithTLS(conf), nil
}

// leader returns the leader that this replica knows.
func (s *Supervisor) leader() string {
	id, _ := s.store.observer.Leader()
	return id
}

// renewEvery is how often a replica checks for a renewed certificate: long before the old one expires.
const renewEvery = 10 * time.Second

// renew loads the certificate and key that an issuer puts in place, until ctx ends.
func (s *Supervisor) renew(ctx context.Context) {
	t := time.NewTicker(s.renewEvery)
	defer t.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		renewed, err := s.signer.Renew()
		if s.ecdsa != nil {
			second, bad := s.ecdsa.Renew()
			renewed, err = renewed || second, errors.Join(err, bad)
		}
		if renewed {
			s.logger.Info("certificate renewed", "expires", s.expires())
		}
		switch {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			s.logger.Warn("cannot load the new certificate and key", "err", err)
		}
	}
}

// expires returns the earlier end of this replica's certificates.
func (s *Supervisor) expires() time.Time {
	at := s.signer.Expires()
	if s.ecdsa != nil && s.ecdsa.Expires().Before(at) {
		return s.ecdsa.Expires()
	}
	return at
}

// workers are the goroutines of all parts.
type workers struct {
	ctx    context.Context //nolint:containedctx // the lifetime of the workers
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// start starts the goroutines.
func (w *workers) start(s *Supervisor) error {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	ctx, wg := w.ctx, &w.wg
	wg.Go(func() { s.store.observer.Run(ctx, s.store.client) })
	wg.Go(func() { s.api.Run(ctx) })
	wg.Go(func() { s.engine.peers.Run(ctx) })
	wg.Go(func() { s.replaceGone(ctx) })
	wg.Go(func() { s.renew(ctx) })
	wg.Go(func() { s.followReplicas(ctx) })
	wg.Go(func() { s.followDenied(ctx) })
	s.workRegions(ctx, wg)
	if !s.cfg.Parent() {
		s.workNodes(ctx, wg)
	}
	wg.Go(func() { s.monitor(ctx) })
	wg.Go(func() { s.publish(ctx) })
	for k, socket := range s.listeners.sockets {
		wg.Go(func() {
			if err := socket.Run(ctx, s.ingest.intake.Datagrams(uint8(k))); err != nil && ctx.Err() == nil {
				s.fail(fmt.Errorf("report socket: %w", err))
			}
		})
	}
	if s.store.member != nil {
		wg.Go(func() { s.holdWrites(ctx) })
		wg.Go(func() {
			select {
			case <-ctx.Done():
			case err := <-s.store.member.Err():
				s.fail(fmt.Errorf("embedded etcd: %w", err))
			}
		})
	}
	return nil
}

// stop ends the goroutines and waits for them.
func (w *workers) stop(ctx context.Context) error {
	if w.cancel == nil {
		return nil
	}
	w.cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.wg.Wait()
	}()
	return ended(ctx, done)
}

// workNodes starts the work with nodes.
func (s *Supervisor) workNodes(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { s.ingest.sender.Run(ctx) })
	wg.Go(func() { s.ingest.intake.Run(ctx) })
	wg.Go(func() { s.keepKnown(ctx) })
	wg.Go(func() { s.engine.forward.Run(ctx) })
	wg.Go(func() { s.engine.local.Run(ctx) })
	wg.Go(func() { s.store.incidents.Run(ctx) })
	wg.Go(func() { s.followTopology(ctx) })
	wg.Go(func() { s.followMaintenance(ctx) })
	wg.Go(func() { s.followMasks(ctx) })
	wg.Go(func() { s.notifier.Run(ctx) })
	wg.Go(func() { s.tellEngine(ctx) })
	if s.renewals != nil {
		wg.Go(func() { s.renewals.run(ctx) })
	}
	if s.respond.executor != nil {
		wg.Go(func() { s.tellExecutor(ctx, s.respond.executor.Deny) })
	}
	s.workResponses(ctx, wg)
}

// leadership campaigns for the lead, and leads.
type leadership struct {
	leaseTTL int           // seconds; 0 means store.LeaseTTL
	patience time.Duration // additional time for its stop; 0 except in tests
	// unquestioned lets a silent leader keep its lead until its lease ends; false except in tests.
	unquestioned bool
	raftAgain    time.Duration // 0 means raftAgain; other values only in tests
	resign       context.CancelFunc
	resigned     chan struct{}
}

// start begins to campaign.
func (l *leadership) start(s *Supervisor) error {
	var ctx context.Context
	ctx, l.resign = context.WithCancel(s.workers.ctx)
	l.resigned = make(chan struct{})
	go func() {
		defer close(l.resigned)
		store.Campaigner{Client: s.store.client, ID: s.cfg.ID, TTL: l.leaseTTL, Logger: s.logger}.Run(ctx, s.lead)
	}()
	return nil
}

// stop resigns the lease, while all other parts still work.
func (l *leadership) stop(ctx context.Context) error {
	if l.resign == nil {
		return nil
	}
	l.resign()
	return ended(ctx, l.resigned)
}

const (
	// raftTime bounds an attempt to take raft's lead.
	raftTime = time.Second
	// raftAgain is the default interval at which a leader takes raft's lead back. An attempt of a slow member stops commits for up to 0.5 s.
	raftAgain = time.Minute
)

// takeRaftLead takes raft's lead for this replica's member.
func (s *Supervisor) takeRaftLead(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, raftTime)
	defer cancel()
	if err := s.store.member.TakeRaftLead(ctx); err != nil {
		s.logger.Info("raft is led by another replica: commits take one hop more, and a silence of this replica lasts as long as its lease",
			"err", err)
	}
}

// keepRaftLead takes raft's lead back when raft has elected another member, until ctx ends. Without raft's lead, the other replicas cannot
// confirm the death of this replica's machine.
func (s *Supervisor) keepRaftLead(ctx context.Context) {
	t := time.NewTicker(cmp.Or(s.leadership.raftAgain, raftAgain))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.takeRaftLead(ctx)
		}
	}
}

// lead runs one term.
func (s *Supervisor) lead(ctx context.Context, fence store.Fence) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	if s.store.member != nil {
		s.takeRaftLead(ctx)
		wg.Go(func() { s.keepRaftLead(ctx) })
	}
	wg.Go(func() { s.endDeposed(ctx, cancel, fence) })
	run := s.engine.Lead
	if s.federation.parent != nil {
		run = s.federation.parent.Lead
	} else {
		acting := s.acting(ctx, &wg)
		s.leadOrders(acting, &wg, fence)
		s.leadResponses(acting, &wg, fence)
		s.leadRegion(ctx, &wg, fence)
		s.leadObjects(ctx, &wg)
	}
	err := run(ctx, fence)
	cancel(nil) // ends all work of the term at once, because the session may outlive the term
	wg.Wait()
	return err
}

// endDeposed ends the term once a quorum confirms that its election key is gone. The key can disappear while its lease lives, for example
// when an operator deletes it. A term that commits nothing would not notice the loss, so its replica would never campaign again. endDeposed
// relies on Map to ask a quorum, as readers do. TestLinearizabilityCheckDetectsDefects builds a supervisor whose Map skips the quorum, and
// needs that supervisor to keep its term.
func (s *Supervisor) endDeposed(ctx context.Context, end context.CancelCauseFunc, fence store.Fence) {
	for {
		var soon <-chan time.Time
		leader, changed := s.store.observer.Leader()
		if leader != s.cfg.ID {
			if s.deposed(ctx) {
				end(fmt.Errorf("election key %s is gone: %w", fence.Key, store.ErrNotLeader))
				return
			}
			soon = time.After(probePeriod) // the observer may lag behind, or the term may not have begun yet
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-soon:
		}
	}
}

// deposed reports whether a quorum confirms that the current term no longer leads. It returns false if no term leads.
func (s *Supervisor) deposed(ctx context.Context) bool {
	if !s.term().Leading() {
		return false
	}
	_, err := s.term().Map(ctx)
	return errors.Is(err, engine.ErrNotLeading) && !errors.Is(err, engine.ErrNoQuorum)
}
