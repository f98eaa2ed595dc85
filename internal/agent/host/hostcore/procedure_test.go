package hostcore

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// On an order for the fault management procedure, this half confirms at once that it lives. It passes the order on to
// its DNP half, unless the order came from there.
func TestProcedureOrderIsConfirmedAndPassedOn(t *testing.T) {
	order := func(node string) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{
			Number: &lofamov1.OrderNumber{Term: 4, Count: 2}, Node: node, ReplyTo: "198.51.100.1:99",
		}}}
	}
	for _, test := range []struct {
		path         fault.Path
		node         string
		says, passes int
	}{{fault.PathDirect, "n0-0-0", 1, 1}, {fault.PathTorus, "n0-0-0", 1, 0}, {fault.PathDirect, "n1-0-0", 0, 0}} {
		w := newWorld(t, "2x2x2", "0,0,0", nil)
		says, passes := 0, 0
		out := w.m.Step(w.now, Received{Path: test.path,
			Opened: servicenet.Opened{Msg: order(test.node), Role: servicenet.RoleSupervisor, Name: "sup-0", Raw: []byte("raw")}})
		for _, s := range out.Send {
			st := s.Order.GetProcedureStatus()
			if st == nil || st.GetHalf() != lofamov1.Half_HALF_HOST || st.GetNode() != "n0-0-0" || st.GetNumber().GetCount() != 2 ||
				st.GetEpoch() == 0 {
				t.Errorf("%+v", s)
			}
			if s.Path == fault.PathDirect {
				says++
			}
		}
		for _, r := range out.Relay {
			if string(r.Envelope) != "raw" || r.MayWait {
				t.Errorf("%+v", r)
			}
			passes++
		}
		if says != test.says || passes != test.passes {
			t.Errorf("%s by %s: says %d times that it lives, passes %d on: want %d and %d", test.node, test.path, says, passes, test.says,
				test.passes)
		}
	}
}

// While the torus drains, a half without another rail makes no digests for a few periods, so that no answer is
// missing and no rail is called dead. It still reports changes.
func TestDrainHoldsDigestsBack(t *testing.T) {
	w := newWorld(t, "2x2x2", "0,0,0", nil)
	w.do([]string{"supervisors", "silent"})
	w.do([]string{"sensor", "memory", "FAILED"})
	w.run(5 * 1e9)
	if w.m.sender.Network() != fault.Failed {
		t.Fatalf("the service network is %s", w.m.sender.Network())
	}
	digests := func(draining bool) (n uint64) {
		w.regs.Draining = draining
		w.run(60 * 1e6) // a read of the registers
		before := w.m.OutboxStats().Added
		w.run(17 * 1e8)
		return w.m.OutboxStats().Added - before
	}
	if n := digests(false); n == 0 {
		t.Error("no digest without a drain: the test tests nothing")
	}
	if n := digests(true); n > 0 {
		t.Errorf("%d reports into a drain", n)
	}
	w.do([]string{"sensor", "memory", "SICK"})
	if n := digests(true); n == 0 {
		t.Error("no digest in a drain that takes long")
	}
}

// A repeated report may wait on any rail; only the torus rail uses that. A change may not wait.
func TestOnlyDigestsMayWait(t *testing.T) {
	w := newWorld(t, "2x2x2", "0,0,0", nil)
	seen := map[bool]int{}
	for _, r := range []fault.Report{{Digest: true},
		{Observations: []fault.Observation{{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf}}}} {
		w.m.out = Output{}
		w.m.add(w.now, r)
		w.now = w.now.Add(1e9)
		w.m.sender.Tick(w.now)
		w.m.deliver(w.now)
		for _, s := range w.m.out.Send {
			if s.Reports == nil {
				continue
			}
			digest := true
			for _, r := range s.Reports {
				digest = digest && r.Digest
			}
			seen[digest]++
			if s.MayWait != digest {
				t.Errorf("may wait %t: %+v", s.MayWait, s.Reports)
			}
		}
	}
	if seen[false] == 0 || seen[true] == 0 {
		t.Errorf("digests sent: %d, changes: %d: the test tests nothing", seen[true], seen[false])
	}
}
