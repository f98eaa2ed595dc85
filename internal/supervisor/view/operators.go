package view

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// maxTopologyEvents bounds the events for single nodes in one change of the topology: a whole new topology must
// not displace the history of faults.
const maxTopologyEvents = 32

// TopologyEvents report a change of the topology: one event for each changed node, and one without a node for
// changes to the whole. If too many nodes changed there is only the latter.
func TopologyEvents(from, to *topology.Topology, by string, at time.Time) []*lofamov1.Event {
	var order []fault.NodeID
	texts := make(map[fault.NodeID]string)
	for _, c := range topology.Diff(from, to) {
		text, ok := texts[c.Node]
		if !ok {
			order = append(order, c.Node)
		} else {
			text += "; "
		}
		texts[c.Node] = text + c.Text
	}
	if len(order) > maxTopologyEvents {
		return []*lofamov1.Event{{
			Kind: lofamov1.EventKind_TOPOLOGY_CHANGED, Time: timestamppb.New(at), Observer: by,
			Reason: fmt.Sprintf("topology: %d nodes are changed: list them again", len(order)),
		}}
	}
	var out []*lofamov1.Event
	for _, id := range order {
		n, ok := to.Node(id)
		if !ok {
			n, _ = from.Node(id)
		}
		ev := &lofamov1.Event{
			Kind: lofamov1.EventKind_TOPOLOGY_CHANGED, Node: string(id), Labels: n.Labels, Time: timestamppb.New(at), Observer: by,
			Reason: texts[id],
		}
		if id != "" && !n.Spare {
			ev.Coord = n.Coord.String()
		}
		out = append(out, ev)
	}
	return out
}

// MaintenanceEvent reports that a mark was set, changed or, when ended, removed.
func MaintenanceEvent(m *lofamov1.Maintenance, ended bool, reason, by string, names *Names, at time.Time) *lofamov1.Event {
	id := fault.NodeID(m.GetNode())
	ev := &lofamov1.Event{
		Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: m.GetNode(), Maintenance: m, Ended: ended, Labels: names.Labels(id),
		Time: timestamppb.New(at), Observer: by, Reason: reason,
	}
	if c, ok := names.Coord(id); ok {
		ev.Coord = c.String()
	}
	return ev
}
