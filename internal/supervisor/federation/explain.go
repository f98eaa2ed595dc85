package federation

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Explain implements the API's engine: it returns the state that the region has committed. Only the region's own
// supervisors know its evidence.
func (e *Parent) Explain(_ context.Context, id fault.NodeID, c fault.Component) (awareness.Explanation, error) {
	t := e.term.Load()
	if t == nil {
		return awareness.Explanation{}, engine.ErrNotLeading
	}
	p, name := t.published.Load(), e.cfg.Region(id)
	x, ok := p.m.Explanation(id, c)
	if !ok {
		return x, fmt.Errorf("explain %s of %q: %w", c, id, engine.ErrUnknown)
	}
	x.Summary, x.Until = p.secondHand(name)
	return x, nil
}

// ExplainGroup is Explain for a group fault.
func (e *Parent) ExplainGroup(_ context.Context, id string) (awareness.GroupExplanation, error) {
	t := e.term.Load()
	if t == nil {
		return awareness.GroupExplanation{}, engine.ErrNotLeading
	}
	p := t.published.Load()
	g, ok := p.m.Group(id)
	if !ok || len(g.Members) == 0 {
		return awareness.GroupExplanation{}, fmt.Errorf("explain group fault %q: %w", id, engine.ErrUnknown)
	}
	x := awareness.GroupExplanation{GroupStatus: g}
	x.Summary, x.Until = p.secondHand(e.cfg.Region(g.Members[0]))
	return x, nil
}

// secondHand explains that the state is a region's report, and which events would change it if the region is cut
// off.
func (p *published) secondHand(region string) (summary string, until []string) {
	if p.regions[region].cut {
		return fmt.Sprintf("no message arrives from region %s: its last state is kept, and shown again when it is back", region),
			[]string{fmt.Sprintf("a message from region %s", region)}
	}
	return fmt.Sprintf("as reported by region %s: its own supervisors explain the evidence", region), nil
}
