package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// connectOrders creates the order channel, and the manager of diagnoses and procedures.
func (s *Supervisor) connectOrders() {
	reports := orderStore{s.engine.Engine, s.store.Etcd}
	s.orders = orders.New(orders.Config{
		Names: s.names, Marks: s.marks, Masks: s.masks, Map: s.engine.local.Map, Store: reports, Sender: s.ingest.sender,
		Periods: s.periods, Own: s.ownAddresses, Spans: s.federation.border != nil, Plain: s.plain, Metrics: s.metrics.Metrics, Logger: s.logger,
	})
	hop, late := orders.HopBound(s.periods.LinkPeriod)
	s.ingest.diagnoses = orders.NewDiagnoses(orders.DiagnosisConfig{
		Self: s.cfg.ID, Names: s.names, Sender: s.ingest.sender, Reports: reports, Metrics: s.metrics.Metrics, Logger: s.logger,
		Places: s.places, Hop: hop, Late: late, Pause: s.cfg.Diagnosis.Filled().Pause.D(),
	})
}

// orderStore implements orders.Store and orders.Reports.
type orderStore struct {
	*engine.Engine
	*store.Etcd
}

// answers registers the receivers of the answers to all kinds of orders.
func (s *Supervisor) answers() (r order.Registry[ingest.Answers]) {
	s.orders.Answers(&r)
	r.Register(servicenet.OrderDiagnosis, ingest.Answers{Take: func(m *lofamov1.Message) {
		s.ingest.diagnoses.Findings(m.GetDiagnosisFindings())
	}})
	r.Register(servicenet.OrderProcedure,
		ingest.Answers{Take: func(m *lofamov1.Message) { s.ingest.diagnoses.Status(m.GetProcedureStatus()) }})
	r.Register(servicenet.OrderAct, ingest.Answers{Take: func(m *lofamov1.Message) { s.respond.actor.Heard(m.GetActStatus()) }})
	return r
}

// leadOrders starts to send orders, until ctx ends. It also starts the policy's diagnoses, and the reports of procedures
// that nodes begin.
func (s *Supervisor) leadOrders(ctx context.Context, wg *sync.WaitGroup, fence store.Fence) {
	term := uint64(fence.Rev)
	wg.Go(func() { s.orders.Lead(ctx, term, s.engine.Await) })
	s.ingest.diagnoses.Lead(term)
	wg.Go(func() {
		<-ctx.Done()
		s.ingest.diagnoses.Lead(0)
	})
	wg.Go(func() {
		p := s.cfg.Diagnosis.Filled()
		s.ingest.diagnoses.Watch(ctx, orders.DiagnosisPolicy{
			Links: p.Auto == config.DiagnosisLinks, After: p.After.D(), MinInterval: p.MinInterval.D(), Drain: p.Drain,
		}, s.suspects)
	})
	wg.Go(func() { s.ingest.diagnoses.Strays(ctx) })
	if s.cfg.Region == "" { // the places of regions are fixed
		wg.Go(func() { s.leadJoins(ctx) })
	}
	wg.Go(func() { s.ingest.diagnoses.Resume(ctx) })
}

// suspects returns the links that are SICK for a reason of their own. It skips links to restarting neighbours and
// links of nodes under maintenance.
func (s *Supervisor) suspects(ctx context.Context) ([]orders.Suspect, error) {
	m, err := s.engine.Map(ctx)
	if err != nil {
		return nil, err
	}
	var out []orders.Suspect
	for rank := range m.NotNormal() {
		st := m.At(rank).Status
		if s.marks.Of(st.ID) != nil {
			continue
		}
		for _, c := range st.Components {
			if d, ok := c.Component.LinkDirection(); ok && c.State == fault.Sick && c.Cause == fault.CauseLink {
				out = append(out, orders.Suspect{Node: st.ID, Dir: d, Since: c.Since})
			}
		}
	}
	return out, nil
}

// errSpansRegions: a procedure that all nodes of a torus run in step needs a single leader.
var errSpansRegions = errors.New("the torus spans regions, and the supervisors of one cannot decide on the nodes of another")

// places returns the places of the torus, by rank, from the present map.
func (s *Supervisor) places(ctx context.Context) ([]orders.Place, error) {
	if s.federation.border != nil {
		return nil, errSpansRegions
	}
	m, err := s.engine.Map(ctx)
	switch {
	case errors.Is(err, engine.ErrNotLeading):
		return nil, orders.ErrNotLeading
	case err != nil:
		return nil, fmt.Errorf("%w: %w", orders.ErrNotRead, err)
	}
	return s.orders.Places(m), nil
}

// followMasks keeps this replica's masks up to date with its copy of the store.
func (s *Supervisor) followMasks(ctx context.Context) {
	s.again(ctx, "following channel masks", func() error {
		return s.store.FollowMasks(ctx, s.masks.Replace)
	})
}
