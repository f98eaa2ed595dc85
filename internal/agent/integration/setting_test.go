package integration

import (
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestHostSetsRegistersThroughWindow: where the two halves have two kernels, the host half's configuration sets the
// thresholds and the maximum number of hops in the DNP half's registers, again after a restart of the DNP half.
func TestHostSetsRegistersThroughWindow(t *testing.T) {
	n := newWindowNet(t)
	host := n.cfgs[at0]
	alarm := 101.0
	host.MaxHops, host.Sensors.Temperature.AlarmHigh = 9, &alarm
	n.cfgs[at0] = host
	n.startAll()
	n.awaitWindow()
	isSet := func() {
		t.Helper()
		f := n.awaitFile(filepath.Join(n.apart[dnp0].StateDir, half.RegisterFile))
		defer func() { _ = f.Close() }()
		for _, s := range []half.Setting{{Addr: watchdog.AddrMaxHops, Value: 9}, {Addr: watchdog.AddrTemperatureThresholds, Value: 229 << 24}} {
			agenttest.Await(t, "a set register "+s.Addr.String(), func() bool { v, err := f.Load(s.Addr); return err == nil && s.In(v) })
		}
	}
	isSet()
	n.halt(at0, fault.HalfDNP)
	n.start(at0, fault.HalfDNP)
	isSet()
}
