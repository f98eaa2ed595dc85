package hostcore

import (
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestNoticesOfBothHalvesAreAwaited: two daemons announce restarts of their halves. The supervisors commit the second notice first, and
// refuse the number of the first one. Each daemon goes on when its notice is committed.
func TestNoticesOfBothHalvesAreAwaited(t *testing.T) {
	w := newTested(t, testing2s)
	ids := map[fault.Half]fault.ReportID{}
	step := func(ev Event) (announced []NoticeKind) {
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
		if got := step(Restart{Notice: fault.RestartNotice{Half: h, Within: 20 * time.Second}}); got != nil {
			t.Errorf("%s: %s is committed at once", h, got)
		}
	}
	for range 20 {
		step(Tick{})
	}
	if got := step(ack(lofamov1.Ack_COMMITTED, ids[fault.HalfDNP])); !slices.Equal(got, []NoticeKind{fault.HalfDNP}) {
		t.Errorf("the notice of the DNP half is committed: announced %s", got)
	}
	first := ids[fault.HalfHost]
	if announced := step(ack(lofamov1.Ack_STALE_EPOCH, first)); announced != nil || ids[fault.HalfHost] == first {
		t.Errorf("the number of the host half's notice is refused: announced %s, and its number was %s", announced, first)
	}
	for range 20 {
		step(Tick{})
	}
	if got := step(ack(lofamov1.Ack_COMMITTED, ids[fault.HalfHost])); !slices.Equal(got, []NoticeKind{fault.HalfHost}) {
		t.Errorf("the notice of the host half is committed: announced %s", got)
	}
}
