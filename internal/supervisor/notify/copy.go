package notify

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// known is this replica's present knowledge. It implements Map.
type known struct {
	view.Map
	names    *view.Names
	marks    *view.Marks
	noQuorum func() time.Duration
}

// Revision implements Map.
func (k *known) Revision() uint64 { return k.Map.Revision }

// Quorum implements Map.
func (k *known) Quorum() bool { return k.noQuorum() == 0 }

// Node implements Map.
func (k *known) Node(id fault.NodeID) *lofamov1.NodeView {
	out := &lofamov1.NodeView{
		Id: string(id), State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE, Maintenance: k.marks.Of(id) != nil,
	}
	rank, ok := k.Rank(id)
	if !ok {
		return out
	}
	st := k.Brief(rank).Status
	out.State, out.Cause, out.Groups = lofamov1.State(st.State), lofamov1.Cause(st.Cause), tellable(st.Groups)
	for c, state := range k.Faulty(rank) {
		out.Faults = append(out.Faults, &lofamov1.ComponentFault{Component: uint32(c), State: lofamov1.State(state),
			Cause: lofamov1.Cause(k.Cause(rank, c))})
	}
	return out
}

// tellable returns the ids of group faults that fit a message. Labels may be longer, but the half would refuse the
// whole message because of one such id.
func tellable(ids []string) []string {
	var out []string
	for _, id := range ids {
		if len(id) <= fault.MaxDetail && len(out) < servicenet.MaxUpdateGroups {
			out = append(out, id)
		}
	}
	return out
}

// Neighbours implements Map.
func (k *known) Neighbours(id fault.NodeID) []fault.NodeID { return k.names.Topology().Neighbours(id) }

// lacking returns the nodes of a map that a map of another topology lacks.
func lacking(of, other view.Map) []fault.NodeID {
	if of.Topology() == other.Topology() {
		return nil
	}
	var out []fault.NodeID
	for rank := range of.Len() {
		id := of.ID(rank)
		if _, has := other.Rank(id); !has {
			out = append(out, id)
		}
	}
	return out
}

// moved returns the nodes whose group faults changed.
func moved(before, now view.Map) []fault.NodeID {
	if a, b := before.Groups, now.Groups; len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return nil // versions of a map share unchanged parts
	}
	of := func(m view.Map) map[string][]fault.NodeID {
		out := make(map[string][]fault.NodeID, len(m.Groups))
		for _, g := range m.Groups {
			out[g.ID] = g.Members
		}
		return out
	}
	old, fresh := of(before), of(now)
	var out []fault.NodeID
	for id, members := range old {
		if !slices.Equal(members, fresh[id]) {
			out = append(out, members...)
		}
	}
	for id, members := range fresh {
		if !slices.Equal(members, old[id]) {
			out = append(out, members...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
