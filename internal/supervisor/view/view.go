// Package view converts the fault map of pkg/awareness into the API's messages, and back when a new leader
// restores the committed map.
//
// It decides nothing; ages are computed at the time of the conversion.
package view

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Entry is one node of the map and the revision of its last change.
type Entry struct {
	Status   awareness.NodeStatus
	Revision uint64
	// Delivery is the host half's status of its report delivery, or nil. It is immutable.
	Delivery *lofamov1.DeliveryStatus
	// DeliveryAt is the time of that status, DeliveryOldAt the time from which it counts as old.
	DeliveryAt, DeliveryOldAt time.Time
	// Faults is the evidence for the node's faults as it stood at their commit; none: nothing supports a fault, or the
	// version that committed the node did not store it. It is immutable.
	Faults []FaultEvidence
	// Health is the latest report of the host half and of the DNP half.
	Health [2]Health
	// Watchdog is the host half's newest statement on the machine's hardware watchdog, as committed; nil: none. It is immutable.
	Watchdog *lofamov1.HardwareWatchdog
	// GivenUp reports for the host half and the DNP half whether its recovery daemon has given it up, as committed.
	GivenUp [2]bool
	// Kernels are the committed verdicts on the kernels under the host half and the DNP half, if these are FAILED.
	Kernels [2]awareness.KernelVerdict
}

// Node renders one node as of now.
func Node(e Entry, now time.Time) *lofamov1.Node {
	st := e.Status
	n := &lofamov1.Node{
		Id: string(st.ID), Coord: st.Coord.String(),
		State: lofamov1.State(st.State), Cause: lofamov1.Cause(st.Cause),
		SingleWitness: st.SingleWitness, Since: Timestamp(st.Since), Age: Age(st.Life, now),
		HostEpoch: uint64(st.HostEpoch), DnpEpoch: uint64(st.DNPEpoch), Revision: e.Revision,
		Inferred: st.Inferred, Unreachable: st.Unreachable, Groups: st.Groups, Reason: st.Rule, Why: st.Reason,
		Platform: lofamov1.Platform(st.Platform),
		Delivery: e.Delivery, DeliveryAge: Age(e.DeliveryAt, now), DeliveryOld: Old(e.DeliveryOldAt, now),
		HostHealth: e.Health[0].render(now, e.Delivery), DnpHealth: e.Health[1].render(now, e.Delivery),
	}
	n.HardwareWatchdog = e.Watchdog
	PutKernels(n, e.Kernels)
	n.Starved = starved(n)
	if st.Restart.Until.After(now) {
		n.Restarting = restarting(st.Restart)
	}
	if st.Stop.Until.After(now) {
		n.Stopped = stopped(st.Stop)
	}
	for _, c := range st.Components {
		n.Components = append(n.Components, &lofamov1.Component{
			Name: c.Component.String(), State: ShownState(c.State, c.Evidence), Since: Timestamp(c.Since),
			Evidence: Evidence(c.Evidence, now), Cause: lofamov1.Cause(c.Cause), Flapping: c.Flapping, Reason: c.Rule, Why: why(c),
		})
	}
	if !st.RegistersAt.IsZero() {
		n.Registers = &lofamov1.Registers{
			DnpWatchdog: st.Registers.DNPWatchdog, HostWatchdog: st.Registers.HostWatchdog,
			RemoteFaultDescriptor: st.Registers.RemoteFaultDescriptor, Age: Age(st.RegistersAt, now),
		}
	}
	return n
}

// ShownState returns the state of a component for readers: ABSENT if it is UNKNOWN because the node does not have it.
func ShownState(state fault.State, evidence []awareness.EvidenceStatus) lofamov1.State {
	if state == fault.Unknown && slices.ContainsFunc(evidence, absent) {
		return lofamov1.State_ABSENT
	}
	return lofamov1.State(state)
}

// absent reports whether a statement says that the node does not have the component.
func absent(e awareness.EvidenceStatus) bool { return e.Kind == fault.KindAbsent }

// kept returns the evidence that outlives the leader: that of SICK and FAILED components, and the node's word that it does not have an
// UNKNOWN one, which stays true while the node is silent.
func kept(c awareness.ComponentStatus) []awareness.EvidenceStatus {
	i := slices.IndexFunc(c.Evidence, absent)
	switch {
	case faulty(c.State):
		return c.Evidence
	case c.State == fault.Unknown && i >= 0:
		return c.Evidence[i : i+1]
	}
	return nil
}

// why returns the rule behind a fault in words.
func why(c awareness.ComponentStatus) string {
	if !faulty(c.State) {
		return ""
	}
	return c.Reason
}

// restarting renders an announced restart, or nil for none.
func restarting(r awareness.Restart) *lofamov1.Restarting {
	if r.Half == 0 {
		return nil
	}
	return &lofamov1.Restarting{Half: r.Half.String(), Until: timestamppb.New(r.Until), OtherUntil: Timestamp(r.Other)}
}

// restart is the inverse of restarting. It ignores a half known only to a later version.
func restart(r *lofamov1.Restarting) awareness.Restart {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if r.GetHalf() == h.String() {
			return awareness.Restart{Half: h, Until: fromTimestamp(r.GetUntil()), Other: fromTimestamp(r.GetOtherUntil())}
		}
	}
	return awareness.Restart{}
}

// stopped renders an announced stop, or nil for none.
func stopped(s awareness.Stop) *lofamov1.Stopped {
	if s.Reason == 0 {
		return nil
	}
	return &lofamov1.Stopped{Reason: s.Reason.String(), Since: timestamppb.New(s.Since), Until: timestamppb.New(s.Until)}
}

// stop is the inverse of stopped. A reason known only to a later version counts as a stop of the agent.
func stop(s *lofamov1.Stopped) awareness.Stop {
	if s == nil {
		return awareness.Stop{}
	}
	reason, err := fault.ParseStop(s.GetReason())
	if err != nil || !reason.Begins() {
		reason = fault.StopDaemon
	}
	return awareness.Stop{Reason: reason, Since: fromTimestamp(s.GetSince()), Until: fromTimestamp(s.GetUntil())}
}

// Evidence renders observations as of now.
func Evidence(list []awareness.EvidenceStatus, now time.Time) []*lofamov1.Evidence {
	var out []*lofamov1.Evidence
	for _, e := range list {
		out = append(out, &lofamov1.Evidence{
			Kind: e.Kind.String(), Observer: e.Observer, Path: lofamov1.Path(e.Path),
			Age: Age(e.At, now), State: lofamov1.State(e.State), Detail: e.Detail,
		})
	}
	return out
}

// Timestamp returns a time for the API; nil for the zero time.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// Age returns the time since from, or nil if from is unknown.
func Age(from, now time.Time) *durationpb.Duration {
	if from.IsZero() {
		return nil
	}
	return durationpb.New(max(0, now.Sub(from)))
}

// Old reports whether an item is old that becomes old at a time; the zero Time means never.
func Old(from, now time.Time) bool { return !from.IsZero() && !now.Before(from) }

// NodeLinks renders the link ends of one node of a map, by direction.
func NodeLinks(m Map, e Entry, now time.Time) []*lofamov1.Link {
	var out []*lofamov1.Link
	for _, c := range e.Status.Components {
		dir, ok := c.Component.LinkDirection()
		if !ok {
			continue
		}
		peer, ok := m.dims.Neighbour(e.Status.Coord, dir)
		if !ok {
			continue
		}
		out = append(out, &lofamov1.Link{
			Node: string(e.Status.ID), Coord: e.Status.Coord.String(), Direction: dir.String(),
			Peer: string(m.IDAt(peer)), PeerCoord: peer.String(),
			State: lofamov1.State(c.State), Cause: lofamov1.Cause(c.Cause), Since: Timestamp(c.Since),
			Evidence: Evidence(c.Evidence, now), Flapping: c.Flapping, Reason: c.Rule,
		})
	}
	return out
}

// Event renders a change of the map; the store gives it its revision.
func Event(c awareness.Change, coord grid.Coord, at time.Time) *lofamov1.Event {
	ev := &lofamov1.Event{
		Node: string(c.Node), Coord: coord.String(), Component: c.Component.String(),
		From: lofamov1.State(c.From), To: lofamov1.State(c.To), Cause: lofamov1.Cause(c.Cause), Path: lofamov1.Path(c.Path),
		Time: timestamppb.New(at), SingleWitness: c.SingleWitness, Observer: c.Observer, Reason: c.Reason,
		Kind: lofamov1.EventKind_COMPONENT_CHANGED, Flapping: c.Flapping, Platform: lofamov1.Platform(c.Platform),
	}
	if c.Latency >= 0 {
		ev.AwarenessLatency = durationpb.New(c.Latency)
	}
	return ev
}

// causesField is the number of an extra field in stored nodes from before the API had Component.cause. It has one
// byte for each component: its cause.
const causesField protowire.Number = 1000

// storedEvidence is the number of stored observations of a component.
const storedEvidence = 8

// Stored renders a node for the store: all that Restore needs. Kept evidence is a fallback for when there is none newer.
func Stored(st awareness.NodeStatus) *lofamov1.Node {
	n := &lofamov1.Node{
		Id: string(st.ID), Coord: st.Coord.String(), State: lofamov1.State(st.State), Cause: lofamov1.Cause(st.Cause),
		SingleWitness: st.SingleWitness, Inferred: st.Inferred, Unreachable: st.Unreachable, Reason: st.Rule, Why: st.Reason,
		Since: Timestamp(st.Since), HostEpoch: uint64(st.HostEpoch), DnpEpoch: uint64(st.DNPEpoch),
		Platform: lofamov1.Platform(st.Platform), Restarting: restarting(st.Restart), Stopped: stopped(st.Stop),
		LinksSettle: Timestamp(st.LinksSettle),
	}
	storeWiring(n, st.Wiring)
	all := make([]lofamov1.Component, len(st.Components))
	n.Components = make([]*lofamov1.Component, len(all))
	for i := range st.Components {
		c, out := &st.Components[i], &all[i]
		out.Name, out.State, out.Cause, out.Since = c.Component.String(), lofamov1.State(c.State), lofamov1.Cause(c.Cause), Timestamp(c.Since)
		out.Flapping, out.Reason, out.Why = c.Flapping, c.Rule, why(*c)
		list := kept(*c)
		out.Evidence = Evidence(list[:min(len(list), storedEvidence)], time.Time{})
		for _, e := range out.Evidence {
			e.Age = nil // it would be that of today
		}
		n.Components[i] = out
	}
	return n
}

// Restore is the inverse of Stored and PutEvidence, without the live state: signs of life, registers, and the ages of
// observations.
func Restore(n *lofamov1.Node) (Entry, error) {
	st := awareness.NodeStatus{
		ID: fault.NodeID(n.GetId()), State: fault.State(n.GetState()), Cause: fault.Cause(n.GetCause()),
		SingleWitness: n.GetSingleWitness(), Inferred: n.GetInferred(), Unreachable: n.GetUnreachable(), Rule: n.GetReason(),
		Reason: n.GetWhy(), Since: fromTimestamp(n.GetSince()),
		HostEpoch: fault.Epoch(n.GetHostEpoch()), DNPEpoch: fault.Epoch(n.GetDnpEpoch()),
		Platform: fault.Platform(n.GetPlatform()), Restart: restart(n.GetRestarting()), Stop: stop(n.GetStopped()),
		LinksSettle: fromTimestamp(n.GetLinksSettle()),
	}
	st.Wiring = restoreWiring(n)
	var err error
	if st.Coord, err = grid.ParseCoord(n.GetCoord()); err != nil {
		return Entry{}, fmt.Errorf("restore node %q: %w", n.GetId(), err)
	}
	if !st.State.Valid() {
		return Entry{}, fmt.Errorf("restore node %q: state %v", n.GetId(), n.GetState())
	}
	causes := storedCauses(n)
	for i, c := range n.GetComponents() {
		comp, err := fault.ParseComponent(c.GetName())
		if err != nil {
			return Entry{}, fmt.Errorf("restore node %q: %w", n.GetId(), err)
		}
		cs := awareness.ComponentStatus{
			Component: comp, State: fault.State(c.GetState()), Cause: fault.CauseNone, Since: fromTimestamp(c.GetSince()),
			Flapping: c.GetFlapping(), Rule: c.GetReason(), Reason: c.GetWhy(),
		}
		if !cs.State.Valid() {
			return Entry{}, fmt.Errorf("restore node %q: %s is %v", n.GetId(), comp, c.GetState())
		}
		if c.GetCause() != 0 {
			cs.Cause = fault.Cause(c.GetCause())
		} else if i < len(causes) {
			cs.Cause = fault.Cause(causes[i])
		}
		for _, e := range c.GetEvidence() {
			kind, err := fault.ParseKind(e.GetKind())
			if err != nil {
				return Entry{}, fmt.Errorf("restore node %q: %s: %w", n.GetId(), comp, err)
			}
			cs.Evidence = append(cs.Evidence, awareness.EvidenceStatus{
				Kind: kind, Observer: e.GetObserver(), Path: fault.Path(e.GetPath()), State: fault.State(e.GetState()), Detail: e.GetDetail(),
			})
		}
		st.Components = append(st.Components, cs)
	}
	return Entry{Status: st, Revision: n.GetRevision(), Faults: faultEvidence(n, st), Watchdog: n.GetHostHealth().GetHardwareWatchdog(),
		GivenUp: [2]bool{givenUp(n.GetHostHealth()), givenUp(n.GetDnpHealth())},
		Kernels: [2]awareness.KernelVerdict{kernel(n.GetHostKernel()), kernel(n.GetDnpKernel())}}, nil
}

// givenUp reports whether the recovery daemon has given up the half of a stored health.
func givenUp(h *lofamov1.HalfHealth) bool {
	return h.GetRecovery().GetState() == lofamov1.RecoveryState_GIVEN_UP
}

// storeWiring adds where a node's links lead to its stored form.
func storeWiring(n *lofamov1.Node, w awareness.Wiring) {
	if w == (awareness.Wiring{}) {
		return
	}
	n.StoredLinks = &lofamov1.StoredLinks{Followed: uint32(w.Followed), Unclear: uint32(w.Unclear), TopologyRevision: w.Revision}
	for _, id := range w.Peers {
		n.StoredLinks.Peers = append(n.StoredLinks.Peers, string(id))
	}
	if w.Former != [2]fault.Epoch{} {
		n.StoredLinks.Former = []uint64{uint64(w.Former[0]), uint64(w.Former[1])}
	}
}

// restoreWiring is the inverse of storeWiring.
func restoreWiring(n *lofamov1.Node) (w awareness.Wiring) {
	links := n.GetStoredLinks()
	for i, id := range links.GetPeers()[:min(len(links.GetPeers()), len(w.Peers))] {
		w.Peers[i] = fault.NodeID(id)
	}
	w.Followed, w.Unclear, w.Revision = uint8(links.GetFollowed()), uint8(links.GetUnclear()), links.GetTopologyRevision()
	for i, e := range links.GetFormer()[:min(len(links.GetFormer()), len(w.Former))] {
		w.Former[i] = fault.Epoch(e)
	}
	return w
}

func storedCauses(n *lofamov1.Node) []byte {
	for b := []byte(n.ProtoReflect().GetUnknown()); len(b) > 0; {
		num, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return nil
		}
		b = b[size:]
		if num == causesField && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return v
		}
		if size = protowire.ConsumeFieldValue(num, typ, b); size < 0 {
			return nil
		}
		b = b[size:]
	}
	return nil
}

func fromTimestamp(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
