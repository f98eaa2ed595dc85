package supervisor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestConditionsFollowMap: LinksReady is True only for a node that reports and has only NORMAL links. Spares have no place. A node that
// named itself has no condition.
func TestConditionsFollowMap(t *testing.T) {
	t.Parallel()
	top := ring(3, 0)
	for i, n := range top.Nodes {
		if n.ID == "n02" {
			top.Nodes[i].Labels = map[string]string{fault.ManagedLabel: "false"}
		}
	}
	b := view.NewBuilder(view.NamesOf(top), time.Unix(1000, 0))
	revision := uint64(1)
	states := &nodeStates{read: func(context.Context) (view.Map, error) { return b.Map(revision), nil }}
	want := func(id fault.NodeID, status, reason, message string) {
		t.Helper()
		all, err := states.get(t.Context())
		if st := all[id]; err != nil || string(st.Ready) != status || st.Reason != reason || st.Message != message {
			t.Errorf("%s: %+v, %v: want %s, %s, %q", id, st, err, status, reason, message)
		}
	}
	set := func(node, link fault.State, links fault.State) {
		revision++
		e, ok := b.Map(revision).Find("n01")
		if !ok {
			t.Fatal("n01 is missing")
		}
		e.Revision, e.Status.State = revision, node
		first := true
		for i := range e.Status.Components {
			c := &e.Status.Components[i]
			c.State = fault.Normal
			if _, is := c.Component.LinkDirection(); is {
				c.State = links
				if first {
					c.State, first = link, false
				}
			}
		}
		b.Set(e)
	}
	want("n01", "Unknown", "NotHeard", "no report of the node's agent is known")
	want("spare", "Unknown", "NoPlace", "the node has no place in the torus")
	want("n02", "", "", "") // it named itself: Kubernetes may have another machine of that name
	set(fault.Normal, fault.Unknown, fault.Normal)
	want("n01", "Unknown", "LinkUnknown", "links not known: X+")
	set(fault.Normal, fault.Normal, fault.Normal)
	want("n01", "True", "LinksNormal", "all links are NORMAL")
	set(fault.Sick, fault.Failed, fault.Sick)
	want("n01", "False", "LinkFault", "links: X+ FAILED, X- SICK")
	set(fault.Failed, fault.Normal, fault.Normal)
	want("n01", "False", "NodeFailed", "the node is FAILED")
	states.read = func(context.Context) (view.Map, error) { return view.Map{}, errors.New("not leading") }
	if all, err := states.get(t.Context()); err == nil {
		t.Errorf("without a map: %v", all)
	}
}
