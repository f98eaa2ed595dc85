package view

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Ages count up to the request: those of single events from the report, those of constant tests from the latest
// confirmation.
func TestHealthAgesCountToRequest(t *testing.T) {
	at := time.Unix(1000, 0)
	h := Health{
		Said: &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(time.Second), UntilMs: 1500},
			Tests: []*lofamov1.SelfTest{
				{Number: 4, State: lofamov1.TestState_PASSED, AgeMs: 100}, {Number: 12, State: lofamov1.TestState_IDLE, AgeMs: 100},
				{Number: 17, State: lofamov1.TestState_FAILING, AgeMs: 1<<32 - 1}, {Number: 99},
			},
			AgeNs: uint64(time.Second),
		},
		At: at, Heard: at.Add(9 * time.Second), OldAt: at.Add(10 * time.Second),
	}
	rails := &lofamov1.DeliveryStatus{Rails: []*lofamov1.RailStatus{{Name: "direct/eth0"}, {Name: "direct/eth2"}}}
	want := &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(11 * time.Second)},
		Tests: []*lofamov1.SelfTest{
			{Number: 4, State: lofamov1.TestState_PASSED, AgeMs: 1100, Module: "link/Y-"}, {Number: 12, State: lofamov1.TestState_IDLE,
				AgeMs: 10_100, Module: "bulk"},
			{Number: 17, State: lofamov1.TestState_FAILING, AgeMs: 1<<32 - 1, Module: "direct/eth2"}, {Number: 99, AgeMs: 1000, Module: "module/99"},
		},
		AgeNs: uint64(2 * time.Second), Old: true,
	}
	n := Node(Entry{Health: [2]Health{1: h}, Delivery: rails}, at.Add(10*time.Second))
	if !proto.Equal(n.GetDnpHealth(), want) || n.GetHostHealth() != nil {
		t.Errorf("%v\nwant %v", n.GetDnpHealth(), want)
	}
}

func TestHalfStatusIsDescribed(t *testing.T) {
	now := time.Unix(1000, 0)
	entry := func(h *lofamov1.HalfHealth) Entry {
		return Entry{Health: [2]Health{1: {Said: h, At: now, Heard: now, OldAt: now.Add(time.Second)}}}
	}
	restarted := &lofamov1.RecoveryStatus{
		State: lofamov1.RecoveryState_RUNNING, Restarts: 3, Cause: "ended by signal 9", AgeNs: uint64(42 * time.Second), ServingUs: 43_000,
	}
	given := &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 5, Reason: "next start after 1m0s: 5 restarts"}
	under := &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 1, Cause: "hung", AgeNs: uint64(time.Second)}
	tests := []*lofamov1.SelfTest{
		{Number: 1, State: lofamov1.TestState_FAILING, Why: "altered: 1 of 3"}, {Number: 7, State: lofamov1.TestState_FAILING},
		{Number: 10, State: lofamov1.TestState_PASSED, Proving: true}, {Number: 11, State: lofamov1.TestState_PASSED},
	}
	busy := &lofamov1.ProcessorTime{BudgetLevel: 2, UsedPermille: 143}
	for name, tt := range map[string]struct {
		give *lofamov1.HalfHealth
		of   fault.Component
		at   time.Time
		want []string
	}{
		"nothing is known": {nil, fault.ComponentDNP, now, nil},
		"nothing to tell": {&lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING},
			Tests: tests[3:]}, fault.ComponentDNP, now, nil},
		"another component": {&lofamov1.HalfHealth{Recovery: restarted}, fault.ComponentMemory, now, nil},
		"of the other half": {&lofamov1.HalfHealth{Recovery: restarted}, fault.ComponentHost, now, nil},
		"restarted": {&lofamov1.HalfHealth{Recovery: restarted}, fault.ComponentDNP, now,
			[]string{"its daemon restarted the DNP half 3 times since the machine was booted, the last 42s ago: ended by signal 9, serving again " +
				"after 43ms"}},
		"given up": {&lofamov1.HalfHealth{Recovery: given}, fault.ComponentDNP, now,
			[]string{"its daemon has given the DNP half up: next start after 1m0s: 5 restarts"}},
		"restarting": {&lofamov1.HalfHealth{Recovery: under}, fault.ComponentDNPCore, now,
			[]string{"its daemon is restarting the DNP half; before that it did so once since the machine was booted, the last 1s ago: hung"}},
		"failing and proving": {&lofamov1.HalfHealth{Tests: tests}, fault.ComponentDNPCore, now, []string{
			"the DNP half's self-test of link/X+ fails: altered: 1 of 3", "the DNP half's self-test of relay fails: there was no room to say why",
			"since its restart the DNP half has yet to pass the self-test of mailbox",
		}},
		"over budget": {&lofamov1.HalfHealth{Processor: busy}, fault.ComponentDNP, now, []string{
			"the DNP half is over its processor budget and sends or makes fewer digests and probes (level 2): it uses 14.3 % of a core",
		}},
		"old": {&lofamov1.HalfHealth{Recovery: given}, fault.ComponentDNP, now.Add(time.Hour), []string{
			"its daemon has given the DNP half up: next start after 1m0s: 5 restarts", "that is of 1h0m0s ago, and may be otherwise by now",
		}},
	} {
		if got := HealthNotes(entry(tt.give), tt.of, tt.at); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q\nwant %q", name, got, tt.want)
		}
	}
}

// TestLostServicePathExplainsNode: the node and its service network name a lost interface, by a report that is not old.
func TestLostServicePathExplainsNode(t *testing.T) {
	now := time.Unix(1000, 0)
	e := Entry{DeliveryAt: now, DeliveryOldAt: now.Add(time.Second), Delivery: &lofamov1.DeliveryStatus{
		Rails: []*lofamov1.RailStatus{{Name: "direct/eth0", Down: true}, {Name: "direct/eth1"}, {Name: "gossip"}}}}
	want := []string{"it has 1 of 2 service paths left: eth0 is down"}
	for _, c := range []fault.Component{fault.ComponentNode, fault.ComponentServiceNetwork} {
		if got := PathNotes(e, c, now); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", c, got, want)
		}
	}
	if got := append(PathNotes(e, fault.ComponentHost, now), PathNotes(e, fault.ComponentNode, now.Add(time.Hour))...); len(got) > 0 {
		t.Errorf("of the host, and of an old report: %q", got)
	}
}

// TestStarvedNodeIsShownWithItsMeasure: of two starved halves the later one counts. Old health and dead nodes show none.
func TestStarvedNodeIsShownWithItsMeasure(t *testing.T) {
	now := time.Unix(1000, 0)
	half := func(ms uint32, oldAt time.Time) Health {
		p := &lofamov1.ProcessorTime{Starved: ms > 0, LongestMs: ms, SharePermille: 150}
		return Health{Said: &lofamov1.HalfHealth{Processor: p}, At: now, Heard: now, OldAt: oldAt}
	}
	starved := func(half string, ms uint32) *lofamov1.Starved {
		return &lofamov1.Starved{Half: half, LongestMs: ms, SharePermille: 150}
	}
	fresh := now.Add(time.Second)
	for name, tt := range map[string]struct {
		e    Entry
		want *lofamov1.Starved
	}{
		"neither":      {Entry{Health: [2]Health{half(0, fresh), half(0, fresh)}}, nil},
		"the host":     {Entry{Health: [2]Health{half(119, fresh), half(0, fresh)}}, starved("host", 119)},
		"both":         {Entry{Health: [2]Health{half(119, fresh), half(300, fresh)}}, starved("dnp", 300)},
		"an old state": {Entry{Health: [2]Health{half(119, now), {}}}, nil},
		"a dead node":  {Entry{Status: awareness.NodeStatus{State: fault.Failed}, Health: [2]Health{half(119, fresh), {}}}, nil},
	} {
		if n := Node(tt.e, now); !proto.Equal(n.GetStarved(), tt.want) {
			t.Errorf("%s: %v, want %v", name, n.GetStarved(), tt.want)
		}
	}
}
