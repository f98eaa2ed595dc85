package regions

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Explain implements the API's engine: what its region has committed. What that rests on the region's own supervisors
// know.
func (e *Engine) Explain(_ context.Context, id fault.NodeID, c fault.Component) (awareness.Explanation, error) {
	t := e.term.Load()
	if t == nil {
		return awareness.Explanation{}, engine.ErrNotLeading
	}
	p, name := t.published.Load(), e.cfg.Region(id)
	x, ok := p.m.Explanation(id, c)
	if !ok {
		return x, fmt.Errorf("explain %s of %q: %w", c, id, engine.ErrUnknown)
	}
	x.Summary = fmt.Sprintf("as region %s has it: its own supervisors explain what it rests on", name)
	if p.regions[name].cut {
		x.Summary = fmt.Sprintf("region %s is not heard: what it had last is kept, and shown again when it is back", name)
		x.Until = []string{fmt.Sprintf("a word of region %s", name)}
	}
	return x, nil
}
