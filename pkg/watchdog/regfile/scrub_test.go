package regfile

import (
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// TestScrubMendsFlipBehindOneGuard: a flip that one guard masks must not stay until a second flip, which is not masked.
func TestScrubMendsFlipBehindOneGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	dnp, err := Open(path, fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer dnp.Close()
	host, err := Open(path, fault.HalfHost)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, err := range []error{
		dnp.Store(watchdog.AddrMaxHops, 9), dnp.StoreDNP(watchdog.DNPWord{}), dnp.SetLinkDetail(grid.XPlus, 5), dnp.SetEpoch(fault.HalfDNP, 3),
		host.StoreHost(watchdog.HostWord{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	scrub := func(mended, lost int) {
		t.Helper()
		m, l, err := dnp.Scrub()
		if err != nil || m != mended || l != lost {
			t.Errorf("mended %d, lost %d, %v: want %d and %d", m, l, err, mended, lost)
		}
	}
	scrub(0, 0)
	maxHops, _ := registerCell(watchdog.AddrMaxHops)
	for _, at := range []int{maxHops.guards, maxHops.guards + 15, extCell(extLinkDetail).guards + 3, pageSize + offMagic,
		pageSize + offEpochs + epochStride} {
		for bit := range 8 {
			dnp.mem[at] ^= 1 << bit
			scrub(1, 0)
			scrub(0, 0)
		}
	}
	dnp.mem[maxHops.guards] ^= 1 // one after the other: in the end both guards have flipped
	scrub(1, 0)
	dnp.mem[maxHops.guards+8] ^= 1
	if v, err := host.Load(watchdog.AddrMaxHops); err != nil || v != 9 {
		t.Errorf("%d, %v", v, err)
	}
	scrub(1, 0)
	before := dnp.Corrupt()
	dnp.mem[maxHops.word] ^= 1 // only the half itself can correct this
	scrub(0, 1)
	if dnp.Corrupt() != before+1 {
		t.Error("it is not counted")
	}
	host.mem[hostCell.guards] ^= 1 // of the other half
	scrub(0, 1)
	if err := dnp.Store(watchdog.AddrMaxHops, 9); err != nil {
		t.Fatal(err)
	}
	clear(dnp.mem[pageSize+offGuards:]) // emptied from outside
	clear(dnp.mem[:pageSize])
	scrub(0, 3)
	ro, err := OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if _, _, err := ro.Scrub(); err == nil {
		t.Error("a reader scrubs")
	}
}
