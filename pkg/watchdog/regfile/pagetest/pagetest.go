// Package pagetest is the contract of the registers that the two halves of a node share. It runs against one register file, and against
// two that a window joins, of any kind.
package pagetest

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// Page holds the registers of a node with two halves.
type Page struct {
	Host, DNP *regfile.File // of the halves, each on its own kernel
	HostPath  string        // of the host half's file
	// Wrote is called after a half's writes. It returns when they have reached the other half.
	Wrote func(fault.Half)
}

// Contract tests the guarantees on which the halves rely, however they share their registers. It leaves the host half's file truncated.
func Contract(t *testing.T, p Page) {
	t.Run("taken word is valid again only when its owner writes", func(t *testing.T) { takenWords(t, p) })
	t.Run("each half writes its own words alone", func(t *testing.T) { ownWords(t, p) })
	t.Run("all words arrive", func(t *testing.T) { allWords(t, p) })
	t.Run("damaged word", func(t *testing.T) { damagedWord(t, p) })
	t.Run("lost page", func(t *testing.T) { lostPage(t, p) })
}

func takenWords(t *testing.T, p Page) {
	hw, dw := watchdog.HostWord{Memory: watchdog.HealthBroken}, watchdog.DNPWord{Core: watchdog.HealthSick}
	if _, s, err := p.Host.TakeDNP(); err != nil || s.Valid {
		t.Errorf("a word before its first write: %+v %v", s, err)
	}
	for range 2 {
		must(t, p.Host.StoreHost(hw))
		p.Wrote(fault.HalfHost)
		must(t, p.DNP.StoreDNP(dw))
		p.Wrote(fault.HalfDNP)
		for _, valid := range []bool{true, false} {
			if w, s, err := p.DNP.TakeHost(); err != nil || w.Memory != hw.Memory || s != (watchdog.Sample{Valid: valid}) {
				t.Errorf("host word: %+v %+v %v: want valid %t", w, s, err, valid)
			}
			if w, s, err := p.Host.TakeDNP(); err != nil || w.Core != dw.Core || s != (watchdog.Sample{Valid: valid}) {
				t.Errorf("DNP word: %+v %+v %v: want valid %t", w, s, err, valid)
			}
		}
	}
	if w, _, err := p.Host.LoadDNP(); err != nil || w.Valid || w.Core != dw.Core {
		t.Errorf("a taken word looked at: %+v %v", w, err)
	}
}

func ownWords(t *testing.T, p Page) {
	refuse(t, p.Host.StoreDNP(watchdog.DNPWord{}), "want the dnp half")
	refuse(t, p.DNP.StoreHost(watchdog.HostWord{}), "want the host half")
	refuse(t, p.Host.SetEpoch(fault.HalfDNP, 3), "want the dnp half")
	_, _, err := p.Host.TakeHost()
	refuse(t, err, "want the dnp half")
	power := uint16(watchdog.AddrPower)
	refuse(t, p.Host.StoreWords([]watchdog.WindowWord{{Name: power, Value: 1}}), "word 0x0f44", "want the dnp half")
	refuse(t, p.DNP.StoreWords([]watchdog.WindowWord{{Name: power, Value: 1 << 20}}), "word 0x0f44")
	must(t, p.DNP.StoreWords([]watchdog.WindowWord{{Name: 0x0ff0}, {Name: 0x1fff}, {Name: 0xffff}})) // of a later version
}

func allWords(t *testing.T, p Page) {
	desc := watchdog.DescriptorWord{}
	desc.Neighbours[grid.ZMinus.Index()].ServiceNetwork = true
	must(t, p.DNP.SetEpoch(fault.HalfDNP, 7))
	must(t, p.Host.SetEpoch(fault.HalfHost, 8))
	must(t, p.DNP.StoreDescriptor(desc))
	must(t, p.DNP.Store(watchdog.AddrTemperature, 45))
	must(t, p.DNP.SetLinkDetail(grid.YMinus, 0xdead))
	must(t, p.DNP.SetPeer(grid.ZMinus, 0xcafe))
	must(t, p.DNP.SetNeighbourHost(grid.XPlus, 0xbeef))
	must(t, p.DNP.SetSensor(fault.ComponentPower, -5))
	counters := [regfile.NumCounters]uint32{0: 1, regfile.NumCounters - 1: 2}
	must(t, p.DNP.SetCounters(counters))
	p.Wrote(fault.HalfDNP)
	p.Wrote(fault.HalfHost)
	if w, _, err := p.Host.LoadDescriptor(); err != nil || w != desc {
		t.Errorf("descriptor: %+v %v", w, err)
	}
	if v, err := p.Host.Load(watchdog.AddrTemperature); err != nil || v != 45 {
		t.Errorf("temperature: %d %v", v, err)
	}
	if v, err := p.Host.Sensor(fault.ComponentPower); err != nil || v != -5 {
		t.Errorf("sensor: %d %v", v, err)
	}
	if peer, err := p.Host.LoadPeer(grid.ZMinus); err != nil || peer != 0xcafe {
		t.Errorf("the mark of the peer is 0x%x, %v: want 0xcafe", peer, err)
	}
	if p.Host.LinkDetail(grid.YMinus) != 0xdead || p.Host.NeighbourHost(grid.XPlus) != 0xbeef || p.Host.Counters() != counters {
		t.Error("link detail, neighbour's host word or counters")
	}
	if p.Host.Epoch(fault.HalfDNP) != 7 || p.DNP.Epoch(fault.HalfHost) != 8 {
		t.Errorf("epochs %d and %d", p.Host.Epoch(fault.HalfDNP), p.DNP.Epoch(fault.HalfHost))
	}
}

func damagedWord(t *testing.T, p Page) {
	must(t, p.DNP.StoreDNP(watchdog.DNPWord{}))
	p.Wrote(fault.HalfDNP)
	flip(t, p.HostPath, watchdog.AddrDNPWatchdog)
	if _, s, err := p.Host.TakeDNP(); !s.Corrupt || !errors.Is(err, regfile.ErrCorrupt) {
		t.Errorf("%+v %v", s, err)
	}
	must(t, p.DNP.StoreDNP(watchdog.DNPWord{}))
	p.Wrote(fault.HalfDNP)
	if _, s, err := p.Host.TakeDNP(); err != nil || !s.Valid {
		t.Errorf("the owner's next write does not repair it: %+v %v", s, err)
	}
}

// flip flips a bit of a register in the file.
func flip(t *testing.T, path string, a watchdog.Addr) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	var b [4]byte
	_, err = f.ReadAt(b[:], int64(a))
	must(t, err)
	binary.LittleEndian.PutUint32(b[:], binary.LittleEndian.Uint32(b[:])^1<<9)
	_, err = f.WriteAt(b[:], int64(a))
	must(t, errors.Join(err, f.Close()))
}

// lostPage must be last.
func lostPage(t *testing.T, p Page) {
	must(t, os.Truncate(p.HostPath, 0))
	if _, s, err := p.Host.TakeDNP(); err == nil || s.Valid {
		t.Errorf("take from a truncated page: %+v %v", s, err)
	}
	refuse(t, p.Host.Check(), "check register file")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refuse fails the test unless the error contains each of want.
func refuse(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v: want %q in it", err, w)
		}
	}
}
