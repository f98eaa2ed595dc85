package hostcore

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestNoticesOfBothHalvesAreAwaited: two daemons announce restarts of their halves. The supervisors commit the second notice first, and
// refuse the number of the first one. Neither daemon goes on before both notices are committed.
func TestNoticesOfBothHalvesAreAwaited(t *testing.T) {
	w := newTested(t, testing2s)
	ids := map[fault.Half]fault.ReportID{}
	step := func(ev Event) (announced bool) {
		t.Helper()
		w.now = w.now.Add(10 * time.Millisecond)
		out := w.m.Step(w.now, ev)
		for _, r := range out.Keep {
			if h := r.Restart.Half; h != 0 {
				ids[h] = r.ID
			}
		}
		return out.Announced
	}
	ack := func(status lofamov1.Ack_Status, id fault.ReportID) Received {
		acks := servicenet.NewAcks(status, id)
		for _, a := range acks {
			a.HighestEpoch = uint64(id.Epoch)
		}
		return Received{Path: fault.PathDirect, Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0",
			Msg: &lofamov1.Message{Acks: acks}}}
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if step(Restart{Notice: fault.RestartNotice{Half: h, Within: 20 * time.Second}}) {
			t.Errorf("%s: committed at once", h)
		}
	}
	for range 20 {
		step(Tick{})
	}
	if step(ack(lofamov1.Ack_COMMITTED, ids[fault.HalfDNP])) {
		t.Error("the notice of the DNP half is committed: want to wait for that of the host half")
	}
	first := ids[fault.HalfHost]
	if announced := step(ack(lofamov1.Ack_STALE_EPOCH, first)); announced || ids[fault.HalfHost] == first {
		t.Errorf("the number of the host half's notice is refused: announced %t, and its number is still %s", announced, first)
	}
	for range 20 {
		step(Tick{})
	}
	if !step(ack(lofamov1.Ack_COMMITTED, ids[fault.HalfHost])) {
		t.Error("both notices are committed: want them announced")
	}
}
