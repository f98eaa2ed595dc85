package hostcore

import (
	"slices"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestStatesOmitAbsentParts: the agent's metrics omit a part that the node does not have, and show a part whose reader fails as UNKNOWN.
func TestStatesOmitAbsentParts(t *testing.T) {
	w := newCounted(t, config.PresetDefault)
	w.step(Readings{[]Reading{
		{Component: fault.ComponentPeripheral0, State: fault.Unknown, Absent: true, Detail: "none configured"},
		{Component: fault.ComponentPeripheral1, State: fault.Unknown, Detail: "no answer"},
	}})
	states := w.m.States()
	if !slices.Contains(states, ComponentState{fault.ComponentPeripheral1, fault.Unknown}) ||
		slices.ContainsFunc(states, func(c ComponentState) bool { return c.Component == fault.ComponentPeripheral0 }) {
		t.Errorf("%v: want peripheral/1 as UNKNOWN, and no peripheral/0", states)
	}
	w.step(Readings{[]Reading{{Component: fault.ComponentPeripheral0, State: fault.Normal}}})
	if states := w.m.States(); !slices.Contains(states, ComponentState{fault.ComponentPeripheral0, fault.Normal}) {
		t.Errorf("%v: want peripheral/0 when it is there", states)
	}
}
