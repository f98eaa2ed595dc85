package api

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// mapped returns a mapper's findings about a node. They complement the present map and change nothing in it.
func (s *Server) mapped(snap snapshot, id fault.NodeID) (view.Mapped, bool) {
	if s.cfg.Mapped == nil || snap.Stale {
		return view.Mapped{}, false
	}
	return s.cfg.Mapped(id)
}

// addMapped adds a mapper's findings to the evidence of the halves of an unknown node.
func (s *Server) addMapped(snap snapshot, n *lofamov1.Node, now time.Time) {
	if n.GetState() != lofamov1.State_UNKNOWN {
		return
	}
	m, ok := s.mapped(snap, fault.NodeID(n.GetId()))
	if !ok {
		return
	}
	for _, c := range n.GetComponents() {
		if kind, err := fault.ParseComponent(c.GetName()); err == nil {
			if e := m.Evidence(kind, now); e != nil {
				c.Evidence = append(c.Evidence, e)
			}
		}
	}
}

// explainMapped adds a mapper's findings, in words, for the node and its halves.
func (s *Server) explainMapped(snap snapshot, resp *lofamov1.ExplainResponse, id fault.NodeID, c fault.Component, now time.Time) {
	m, ok := s.mapped(snap, id)
	if !ok || c != fault.ComponentNode && c != fault.ComponentHost && c != fault.ComponentDNP {
		return
	}
	resp.Because = append(resp.Because, fmt.Sprintf("%s (%s ago; a mapper's word changes no state)", m, now.Sub(m.At).Round(time.Second)))
	if e := m.Evidence(c, now); e != nil {
		resp.Evidence = append(resp.Evidence, e)
	}
}
