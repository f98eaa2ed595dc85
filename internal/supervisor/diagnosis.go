package supervisor

import (
	"context"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/diagnose"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// leadDiagnoses makes diagnoses possible while this replica leads, and makes those of the policy. end stops both.
func (s *Supervisor) leadDiagnoses(ctx context.Context, fence store.Fence) (end func()) {
	s.diagnose.Lead(uint64(fence.Rev))
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := s.cfg.Diagnosis.Filled()
		s.diagnose.Watch(ctx, diagnose.Policy{
			Links: p.Auto == config.DiagnosisLinks, After: p.After.D(), MinInterval: p.MinInterval.D(),
		}, s.suspects)
	}()
	return func() {
		cancel()
		<-done
		s.diagnose.Lead(0)
	}
}

// suspects are the links that are SICK for a reason of their own: not those whose neighbour is being restarted, nor those of
// nodes under maintenance.
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
