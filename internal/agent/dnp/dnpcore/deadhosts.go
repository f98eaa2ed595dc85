package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// deadHosts is the fault map's view of the neighbours' hosts.
type deadHosts struct {
	dead  [grid.NumDirections]bool
	until time.Time // zero: none is dead
}

// onDeadHosts takes the fault map's view of the neighbours' hosts from the host half.
func (m *Machine) onDeadHosts(now time.Time, ev DeadHosts) {
	changed := m.deadHosts.dead != ev.Dead
	m.deadHosts = deadHosts{dead: ev.Dead}
	if ev.Dead != ([grid.NumDirections]bool{}) {
		m.deadHosts.until = now.Add(DeadHostsLife)
	}
	if !changed {
		return
	}
	for _, l := range m.links {
		if l != nil {
			m.neighbourChanged(l)
		}
	}
}

// tickDeadHosts forgets a view that the host half has not repeated.
func (m *Machine) tickDeadHosts(now time.Time) {
	if u := m.deadHosts.until; !u.IsZero() && now.After(u) {
		m.onDeadHosts(now, DeadHosts{})
	}
}
