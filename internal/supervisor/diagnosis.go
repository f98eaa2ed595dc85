package supervisor

import (
	"context"
	"errors"
	"sync"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/diagnose"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/procedure"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// hopRepeats is how many repeats per hop of a broadcast still fit the Network Delay.
const hopRepeats = 2

// newDiagnose returns the manager of diagnoses and procedures.
func (s *Supervisor) newDiagnose() *diagnose.Manager {
	return diagnose.New(diagnose.Config{
		Self: s.cfg.ID, ReplyTo: s.self.Report, DirectAddr: s.straight, Names: s.names, Signer: s.signer,
		Kept: keptReports{s.engine.Engine, s.store.Etcd}, Metrics: s.metrics.Metrics, Logger: s.logger,
		Places: s.places, Hop: express.HopBound(s.periods.LinkPeriod, 0), Late: express.HopBound(s.periods.LinkPeriod, hopRepeats), Pause: s.cfg.Diagnosis.Filled().Pause.D(),
	})
}

// keptReports implements diagnose.Kept.
type keptReports struct {
	*engine.Engine
	*store.Etcd
}

// leadDiagnoses enables diagnoses while this replica leads. It also runs the policy's diagnoses, and reports
// procedures that nodes begin. end stops everything.
func (s *Supervisor) leadDiagnoses(ctx context.Context, fence store.Fence) (end func()) {
	s.ingest.diagnose.Lead(uint64(fence.Rev))
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		p := s.cfg.Diagnosis.Filled()
		s.ingest.diagnose.Watch(ctx, diagnose.Policy{
			Links: p.Auto == config.DiagnosisLinks, After: p.After.D(), MinInterval: p.MinInterval.D(), Drain: p.Drain,
		}, s.suspects)
	})
	wg.Go(func() { s.ingest.diagnose.Strays(ctx) })
	wg.Go(func() { s.ingest.diagnose.Resume(ctx) })
	return func() {
		s.ingest.diagnose.Lead(0)
		cancel()
		wg.Wait()
	}
}

// suspects returns the links that are SICK for a reason of their own. It skips links to restarting neighbours and
// links of nodes under maintenance.
func (s *Supervisor) suspects(ctx context.Context) ([]diagnose.Suspect, error) {
	m, err := s.engine.Map(ctx)
	if err != nil {
		return nil, err
	}
	var out []diagnose.Suspect
	for rank := range m.NotNormal() {
		st := m.At(rank).Status
		if s.marks.Of(st.ID) != nil {
			continue
		}
		for _, c := range st.Components {
			if d, ok := c.Component.LinkDirection(); ok && c.State == fault.Sick && c.Cause == fault.CauseLink {
				out = append(out, diagnose.Suspect{Node: st.ID, Dir: d, Since: c.Since})
			}
		}
	}
	return out, nil
}

// errSpansRegions: a procedure that all nodes of a torus run in step needs a single leader.
var errSpansRegions = errors.New("the torus spans regions, and the supervisors of one have no word on the nodes of another")

// places returns the places of the torus, by rank, from the present map.
func (s *Supervisor) places(ctx context.Context) ([]procedure.Place, error) {
	if s.federation.border != nil {
		return nil, errSpansRegions
	}
	m, err := s.engine.Map(ctx)
	switch {
	case errors.Is(err, engine.ErrNotLeading):
		return nil, diagnose.ErrNotLeading
	case err != nil:
		return nil, err
	}
	dims := m.Dims()
	out := make([]procedure.Place, dims.Nodes())
	for i, e := range m.All() {
		out[dims.Rank(m.Coord(i))] = s.place(dims, m.Coord(i), e)
	}
	return out, nil
}

// place returns one place.
func (s *Supervisor) place(dims grid.Dims, at grid.Coord, e view.Entry) procedure.Place {
	st := e.Status
	p := procedure.Place{Node: st.ID, Failed: st.State == fault.Failed, Well: st.State == fault.Normal && s.marks.Of(st.ID) == nil}
	for _, c := range st.Components {
		d, ok := c.Component.LinkDirection()
		if !ok {
			p.Failed = p.Failed || c.Component == fault.ComponentDNP && c.State == fault.Failed
			continue
		}
		if l, has := chanmask.LinkAt(dims, at, d); has && c.State == fault.Normal && s.masks.Of(l) == nil {
			p.Links |= 1 << d.Index()
		}
		if c.State == fault.Failed {
			p.Dead |= 1 << d.Index()
		}
	}
	return p
}
