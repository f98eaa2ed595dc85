package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestNoticeAfterItsOwnEndDelaysNothing delivers the end of a restart first, and then a copy of the notice that began it.
func TestNoticeAfterItsOwnEndDelaysNothing(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 3, Y: 3, Z: 3}))
	if err != nil {
		t.Fatal(err)
	}
	id := w.m.nodes[0].id
	notice := func(seq fault.Seq, within time.Duration) {
		w.step(Evidence{fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
			ID:      fault.ReportID{Origin: fault.Origin{Node: id, Half: fault.HalfHost}, Epoch: 1, Seq: seq},
			Restart: fault.RestartNotice{Half: fault.HalfDNP, Within: within},
		}}})
	}
	notice(8, 0)
	w.now = w.now.Add(time.Second)
	notice(7, fault.MaxRestart)
	if r := w.m.announced(w.m.nodes[0], w.now); r.Half != 0 {
		t.Errorf("%+v: want no restart", r)
	}
	w.now = w.now.Add(time.Second)
	notice(9, fault.MaxRestart)
	if r := w.m.announced(w.m.nodes[0], w.now); r.Half != fault.HalfDNP {
		t.Errorf("%+v: want the restart of the DNP half", r)
	}
}
