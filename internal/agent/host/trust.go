package host

import (
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/pki"
)

// trustChanged ends the sessions of revoked supervisors and shuts revoked members out of gossip.
func (h *hostHalf) trustChanged() {
	var gone []string
	for id := range h.Trust.Registry.Denied() {
		if id.Role == pki.RoleSupervisor {
			h.keys.table.Drop(id.Name)
			gone = append(gone, "supervisor/"+id.Name)
		} else if o, ok := id.Origin(); ok && o.Half == fault.HalfHost && o.Node != h.Config.Node {
			gone = append(gone, string(o.Node))
		}
	}
	h.mu.Lock()
	g := h.gossip
	h.mu.Unlock()
	if g != nil {
		g.Refuse(gone)
	}
}
