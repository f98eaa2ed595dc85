package half

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/agenttest"
)

// TestDamagedRegistersAreNotTheDNPs: a flipped bit in any register but the watchdog word is no evidence against the
// DNP half. The register keeps its earlier value until the DNP half has written it again.
func TestDamagedRegistersAreNotTheDNPs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	open := func(h fault.Half) *Registers {
		r, err := OpenRegisters(path, h, 1, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	host, dnp, now := open(fault.HalfHost), open(fault.HalfDNP), time.Unix(1000, 0)
	want := watchdog.DescriptorWord{}
	want.Neighbours[0].Memory = true
	for _, err := range []error{
		dnp.File().StoreDNP(watchdog.DNPWord{}), dnp.File().StoreDescriptor(want), dnp.File().Store(watchdog.AddrPower, 45),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	host.ReadDNP(now, true, nil)
	agenttest.FlipWord(t, path, watchdog.AddrRemoteFaultDescriptor)
	agenttest.FlipWord(t, path, watchdog.AddrPower)
	if r := host.ReadDNP(now.Add(2*time.Second), false, nil); r.Sample.Corrupt || r.Descriptor != want || r.Power != 45 {
		t.Errorf("%+v", r)
	}
	if r := host.ReadDNP(now.Add(3*time.Second), false, nil); r.Sample.Corrupt || r.Power != 0 {
		t.Errorf("a register is taken for good for ever: %+v", r)
	}
	if !dnp.Maintain(now) {
		t.Error("the DNP half does not find its flipped registers")
	}
}
