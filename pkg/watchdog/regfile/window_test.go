package regfile

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// sharedPage is what the two halves of a node see of each other: one register file, or two that a window joins.
type sharedPage struct {
	host, dnp *File
	// wrote follows the writes of a half: through a window they arrive with it.
	wrote func(h fault.Half)
}

// sharedPages returns both kinds.
func sharedPages(t *testing.T) map[string]sharedPage {
	host, dnp, _ := openBoth(t)
	far := filepath.Join(t.TempDir(), "registers")
	hostHere, dnpHere, _ := openBoth(t)
	hostThere, dnpThere := mustOpen(t, far, fault.HalfHost), mustOpen(t, far, fault.HalfDNP)
	return map[string]sharedPage{
		"one file": {host, dnp, func(fault.Half) {}},
		"window":   {hostHere, dnpThere, joined(t, hostHere, hostThere, dnpThere, dnpHere)},
	}
}

// joined carries the words of the host half from its own file to the one at the other end, and those of the DNP half back.
func joined(t *testing.T, host, hostCopy, dnp, dnpCopy *File) func(fault.Half) {
	start := time.Unix(1000, 0)
	window := func(life uint64) *watchdog.Window {
		return watchdog.NewWindow(watchdog.WindowConfig{TRead: time.Second, Misses: 2, Life: life}, start)
	}
	atHost, atDNP, seq := window(1), window(2), uint64(0)
	return func(h fault.Half) {
		from, to, life, end := host, hostCopy, uint64(1), atDNP
		if h == fault.HalfDNP {
			from, to, life, end = dnp, dnpCopy, 2, atHost
		}
		b, err := watchdog.AppendStatement(nil, life, watchdog.BootID{byte(h)}, from.AppendWords(nil, h, true))
		must(t, err)
		seq++
		out, err := end.Hear(start, watchdog.WindowFrame{Session: 1, Seq: seq, Epoch: uint64(from.Epoch(h)), Payload: b})
		must(t, err)
		epoch, _ := end.Peer()
		must(t, to.SetEpoch(h, fault.Epoch(epoch)))
		must(t, to.StoreWords(out.Words))
	}
}

// TestContractOfSharedPage is what the halves rely on, however they share their registers.
func TestContractOfSharedPage(t *testing.T) {
	for name, p := range sharedPages(t) {
		t.Run(name, func(t *testing.T) {
			t.Run("taken word is valid again only when its owner writes", func(t *testing.T) { takenWords(t, p) })
			t.Run("each half writes its own words alone", func(t *testing.T) { ownWords(t, p) })
			t.Run("all words arrive", func(t *testing.T) { allWords(t, p) })
			t.Run("damaged word", func(t *testing.T) { damagedWord(t, p) })
			t.Run("lost page", func(t *testing.T) { lostPage(t, p) })
		})
	}
}

func takenWords(t *testing.T, p sharedPage) {
	hw, dw := watchdog.HostWord{Memory: watchdog.HealthBroken}, watchdog.DNPWord{Core: watchdog.HealthSick}
	if _, s, err := p.host.TakeDNP(); err != nil || s.Valid {
		t.Errorf("a word that nobody wrote: %+v %v", s, err)
	}
	for range 2 {
		must(t, p.host.StoreHost(hw))
		p.wrote(fault.HalfHost)
		must(t, p.dnp.StoreDNP(dw))
		p.wrote(fault.HalfDNP)
		for _, valid := range []bool{true, false} {
			if w, s, err := p.dnp.TakeHost(); err != nil || w.Memory != hw.Memory || s != (watchdog.Sample{Valid: valid}) {
				t.Errorf("host word: %+v %+v %v: want valid %t", w, s, err, valid)
			}
			if w, s, err := p.host.TakeDNP(); err != nil || w.Core != dw.Core || s != (watchdog.Sample{Valid: valid}) {
				t.Errorf("DNP word: %+v %+v %v: want valid %t", w, s, err, valid)
			}
		}
	}
	if w, _, err := p.host.LoadDNP(); err != nil || w.Valid || w.Core != dw.Core {
		t.Errorf("a taken word looked at: %+v %v", w, err)
	}
}

func ownWords(t *testing.T, p sharedPage) {
	refuse(t, p.host.StoreDNP(watchdog.DNPWord{}), "want the dnp half")
	refuse(t, p.dnp.StoreHost(watchdog.HostWord{}), "want the host half")
	refuse(t, p.host.SetEpoch(fault.HalfDNP, 3), "want the dnp half")
	_, _, err := p.host.TakeHost()
	refuse(t, err, "want the dnp half")
	refuse(t, p.host.StoreWords([]watchdog.WindowWord{{Name: uint16(watchdog.AddrPower), Value: 1}}), "word 0x0f44", "want the dnp half")
	refuse(t, p.dnp.StoreWords([]watchdog.WindowWord{{Name: uint16(watchdog.AddrPower), Value: 1 << 20}}), "word 0x0f44")
	must(t, p.dnp.StoreWords([]watchdog.WindowWord{{Name: 0x0ff0}, {Name: 0x1fff}, {Name: 0xffff}})) // of a later version
}

func allWords(t *testing.T, p sharedPage) {
	desc := watchdog.DescriptorWord{}
	desc.Neighbours[grid.ZMinus.Index()].ServiceNetwork = true
	must(t, p.dnp.SetEpoch(fault.HalfDNP, 7))
	must(t, p.host.SetEpoch(fault.HalfHost, 8))
	must(t, p.dnp.StoreDescriptor(desc))
	must(t, p.dnp.Store(watchdog.AddrTemperature, 45))
	must(t, p.dnp.SetLinkDetail(grid.YMinus, 0xdead))
	must(t, p.dnp.SetNeighbourHost(grid.XPlus, 0xbeef))
	must(t, p.dnp.SetSensor(fault.ComponentPower, -5))
	counters := [NumCounters]uint32{0: 1, NumCounters - 1: 2}
	must(t, p.dnp.SetCounters(counters))
	p.wrote(fault.HalfDNP)
	p.wrote(fault.HalfHost)
	if w, _, err := p.host.LoadDescriptor(); err != nil || w != desc {
		t.Errorf("descriptor: %+v %v", w, err)
	}
	if v, err := p.host.Load(watchdog.AddrTemperature); err != nil || v != 45 {
		t.Errorf("temperature: %d %v", v, err)
	}
	if v, err := p.host.Sensor(fault.ComponentPower); err != nil || v != -5 {
		t.Errorf("sensor: %d %v", v, err)
	}
	if p.host.LinkDetail(grid.YMinus) != 0xdead || p.host.NeighbourHost(grid.XPlus) != 0xbeef || p.host.Counters() != counters {
		t.Error("link detail, neighbour's host word or counters")
	}
	if p.host.Epoch(fault.HalfDNP) != 7 || p.dnp.Epoch(fault.HalfHost) != 8 {
		t.Errorf("epochs %d and %d", p.host.Epoch(fault.HalfDNP), p.dnp.Epoch(fault.HalfHost))
	}
}

func damagedWord(t *testing.T, p sharedPage) {
	must(t, p.dnp.StoreDNP(watchdog.DNPWord{}))
	p.wrote(fault.HalfDNP)
	p.host.write(dnpCell, write{partWord, uint64(p.host.state(dnpCell).word ^ 1<<9)})
	if _, s, err := p.host.TakeDNP(); !s.Corrupt || !errors.Is(err, ErrCorrupt) {
		t.Errorf("%+v %v", s, err)
	}
	must(t, p.dnp.StoreDNP(watchdog.DNPWord{}))
	p.wrote(fault.HalfDNP)
	if _, s, err := p.host.TakeDNP(); err != nil || !s.Valid {
		t.Errorf("the owner's next write does not repair it: %+v %v", s, err)
	}
}

// lostPage must be last.
func lostPage(t *testing.T, p sharedPage) {
	must(t, p.host.file.Truncate(0))
	if _, s, err := p.host.TakeDNP(); err == nil || s.Valid {
		t.Errorf("take from a truncated page: %+v %v", s, err)
	}
	refuse(t, p.host.Check(), "check register file")
}
