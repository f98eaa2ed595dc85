package fault

import "fmt"

// CheckStatement returns an error if no half may make the observation. own and half are the node and half that signed
// it. The error names the field, its value and the allowed values. Only the topology knows whether an observed node is
// a neighbour (pkg/awareness).
//
//   - Only supervisors state verdicts on whole nodes, votes, challenges, missing digests and gossip.
//   - About another node a half may state only its descriptor: the host and its parts, of kind DESCRIPTOR.
//   - Silence, lost handshakes and error ratios concern the half's own links and its end of the bus. About a link, a
//     descriptor may only state SICK (restarting).
//   - ABSENT is UNKNOWN, and concerns the own node's memory, peripherals and sensors.
//   - A watchdog states the other half of its own node, and only a half itself states that it is SICK or FAILED by SELF.
func (o Observation) CheckStatement(own NodeID, half Half) error {
	_, link := o.Component.LinkDirection()
	bad := o.State == Sick || o.State == Failed
	refuse := func(want string) error {
		return fmt.Errorf("observation.kind: given %s of %s %s by a %s half: want %s", o.Kind, o.Component, o.State, half, want)
	}
	switch {
	case o.Component == ComponentNode:
		return fmt.Errorf("observation.component: given %s: want a part of a node", o.Component)
	case o.Kind == KindAbsent:
		if o.State != Unknown || !o.Component.mayLack() || o.Node != own && o.Node != "" {
			return refuse("ABSENT on an UNKNOWN sensor or peripheral of the same node")
		}
		return nil
	case o.Kind > KindErrorRatio:
		return refuse("a kind that a half may state, SELF to ERROR_RATIO or ABSENT")
	case o.Node != own && o.Node != "":
		if o.Kind != KindDescriptor || !o.Component.ofDescriptor() {
			return refuse("DESCRIPTOR on the host, service network, memory or a peripheral of another node")
		}
		return nil
	case o.Kind == KindDescriptor:
		if !link || o.State == Failed {
			return refuse("DESCRIPTOR on another node, or on a SICK link")
		}
	case o.Kind == KindSilence, o.Kind == KindHandshake, o.Kind == KindErrorRatio:
		if !link && o.Component != ComponentBus {
			return refuse("that kind on a link or the bus")
		}
	case o.Kind == KindWatchdog:
		if o.Component != half.Other().Component() {
			return refuse("WATCHDOG on the " + half.Other().String() + " half")
		}
	case o.Kind == KindSelf && bad && o.Component == half.Other().Component():
		return refuse("WATCHDOG on the other half")
	}
	return nil
}

// Component returns the component that the half is in the map.
func (h Half) Component() Component {
	if h == HalfHost {
		return ComponentHost
	}
	return ComponentDNP
}

// mayLack reports whether a node may lack the component.
func (c Component) mayLack() bool { return c >= ComponentMemory && c <= ComponentVoltage }

// ofDescriptor reports whether the remote fault descriptor has a field for the component (Table V).
func (c Component) ofDescriptor() bool {
	switch c {
	case ComponentHost, ComponentServiceNetwork, ComponentMemory, ComponentPeripheral0, ComponentPeripheral1:
		return true
	default:
		return false
	}
}
