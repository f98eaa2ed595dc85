package halfcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

func TestBusIsStatedByWindow(t *testing.T) {
	for _, tc := range []struct {
		state   watchdog.WindowState
		verdict watchdog.Verdict
		want    fault.State // 0: none
	}{
		{0, watchdog.Stale, 0}, // one kernel
		{watchdog.WindowSilent, watchdog.Waiting, 0},
		{watchdog.WindowAlive, watchdog.Alive, fault.Normal},
		{watchdog.WindowAlive, watchdog.Stale, fault.Normal}, // it hangs
		{watchdog.WindowRefused, watchdog.Stale, fault.Normal},
		{watchdog.WindowSilent, watchdog.Alive, fault.Normal}, // this half was late itself
		{watchdog.WindowSilent, watchdog.Stale, fault.Failed},
		{watchdog.WindowClaimed, watchdog.Stale, fault.Normal}, // the kernel at the other end made a handshake
	} {
		o, known := Window{State: tc.state, Silence: time.Second}.Bus("n", tc.verdict)
		if known != (tc.want != 0) || o.State != tc.want {
			t.Errorf("%s, %s: %v %v", tc.state, tc.verdict, o, known)
		}
		if o.State == fault.Failed && (o.Kind != fault.KindSilence || o.Age != time.Second) {
			t.Errorf("%+v", o)
		}
		if err := o.CheckStatement("n", fault.HalfHost); known && err != nil {
			t.Error(err)
		}
	}
}
