package half

import (
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/bundle"
	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// CheckEvery is the interval between checks of the register file itself: truncation and replacement do not show in
// mapped memory.
const CheckEvery = time.Second

// Page is a half's register file, repaired after it was truncated, unlinked or replaced.
type Page struct {
	path    string
	half    fault.Half
	log     *slog.Logger
	File    *regfile.File
	epoch   fault.Epoch
	tests   string // the self-test result in the lock's file; empty: none
	checkAt time.Time
	broken  Condition
	History *bundle.History // of writes and reads; nil: none
	recent  map[pageWord]recentWord
	Window  *Window // to the kernel of the other half; nil: both have one kernel
	other   starvation
}

// rememberFor is how long the last good value of a corrupt word stands in: the word's owner checks its words every
// checkEvery, and rewrites damaged ones.
const rememberFor = 2*CheckEvery + CheckEvery/2

// pageWord is a word beside the other half's watchdog word: a register, or one of the extension page.
type pageWord struct {
	register watchdog.Addr
	sensor   fault.Component
	detail   grid.Direction
	cause    grid.Direction
	peer     grid.Direction
}

type recentWord struct {
	value uint32
	at    time.Time
}

// OpenPage opens the register file at path for one half, which may write its own words.
func OpenPage(path string, half fault.Half, log *slog.Logger) (*Page, error) {
	f, err := regfile.Open(path, half)
	if err != nil {
		return nil, err
	}
	return &Page{path: path, half: half, log: log, File: f, recent: map[pageWord]recentWord{}}, nil
}

// Maintain checks the file once a second. It reports whether there is a fresh page that must be filled in.
func (p *Page) Maintain(now time.Time) (fresh bool) {
	if now.Before(p.checkAt) {
		return false
	}
	p.checkAt = now.Add(CheckEvery)
	lost := p.scrub()
	err := p.File.Check()
	p.broken.Set(p.log, "register file", err)
	if err == nil {
		return lost
	}
	_ = p.File.Close() // it is of no use any more
	f, err := regfile.Open(p.path, p.half)
	if err != nil {
		return false // the closed File answers with errors; tried again in a second
	}
	p.File = f
	p.note(f.SetEpoch(p.half, p.epoch))
	if p.tests != "" { // taking the lock again has erased it
		p.note(f.NoteTests(p.tests))
	}
	p.note(f.Check())
	return true
}

// noteTests writes the self-test result for the recovery daemon.
func (p *Page) noteTests(what string) {
	p.tests = what
	p.note(p.File.NoteTests(what))
}

// scrub repairs flipped guards and copies before a second flip makes a word unreadable. It reports whether there are
// unreadable words, which must be written again.
func (p *Page) scrub() (lost bool) {
	mended, n, err := p.File.Scrub()
	p.note(err)
	if mended+n > 0 {
		p.log.Warn("words of the register file were damaged, and are repaired", "file", p.path, "mended", mended, "written_again", n)
	}
	if n > 0 {
		p.note(p.File.SetEpoch(p.half, p.epoch))
	}
	return n > 0
}

// note records whether the page works. A corrupt word is not the page's fault.
func (p *Page) note(err error) {
	if errors.Is(err, regfile.ErrCorrupt) {
		return
	}
	p.broken.Set(p.log, "register file", err)
}

// SetEpoch writes the boot epoch of the half into its registers.
func (p *Page) SetEpoch(e fault.Epoch) {
	p.epoch = e
	p.note(p.File.SetEpoch(p.half, e))
}

func (p *Page) load(now time.Time, a watchdog.Addr) uint32 {
	v, err := p.File.Load(a)
	return p.recall(now, pageWord{register: a}, v, err)
}

// LastSensed returns the sensor registers as an earlier incarnation of the DNP half left them.
func (p *Page) LastSensed() (out [3]dnpcore.Sensed) {
	w, _, err := p.File.LoadDNP()
	if err != nil {
		return out
	}
	for i, at := range [...]struct {
		value, thresholds watchdog.Addr
		health            watchdog.Health
	}{
		{watchdog.AddrTemperature, watchdog.AddrTemperatureThresholds, w.Temperature},
		{watchdog.AddrPower, watchdog.AddrPowerThresholds, w.Power},
		{watchdog.AddrVoltage, watchdog.AddrVoltageThresholds, w.Voltage},
	} {
		value, err := p.File.Load(at.value)
		thresholds, err2 := p.File.Load(at.thresholds)
		if err == nil && err2 == nil && value <= math.MaxUint8 {
			out[i] = dnpcore.Sensed{Value: byte(value), Thresholds: thresholds, Health: at.health}
		}
	}
	return out
}

// recall returns the value read. If the word is damaged, it returns the previous value for some time, and then 0.
func (p *Page) recall(now time.Time, w pageWord, v uint32, err error) uint32 {
	if err == nil {
		p.recent[w] = recentWord{v, now}
		return v
	}
	if r, ok := p.recent[w]; ok && errors.Is(err, regfile.ErrCorrupt) && now.Sub(r.at) <= rememberFor {
		return r.value
	}
	return 0
}

// saw records a register's value in the history.
func (p *Page) saw(now time.Time, a watchdog.Addr, v uint32) {
	if p.History != nil {
		p.History.Note(now, a, v)
	}
}

// sensed reads the finer value of a sensor, and its thresholds.
func (p *Page) sensed(now time.Time, c fault.Component, thresholds watchdog.Addr) hostcore.Sensed {
	v, err := p.File.Sensor(c)
	p.note(err)
	return hostcore.Sensed{Thousandths: int32(p.recall(now, pageWord{sensor: c}, uint32(v), err)), Thresholds: p.load(now, thresholds)}
}

// ReadDNP reads the DNP half's registers for the host half, taking the DNP word or only looking at it.
func (p *Page) ReadDNP(now time.Time, take bool, links []grid.Direction) hostcore.Registers {
	r := hostcore.Registers{Taken: take}
	r.Window = p.Window.State(now)
	var err error
	if take {
		r.DNP, r.Sample, err = p.File.TakeDNP()
		r.Sample.Starved = p.other.look(now, p.path, fault.HalfDNP, r.Sample.Valid)
	} else {
		r.DNP, _, err = p.File.LoadDNP()
		r.Sample.Corrupt = errors.Is(err, regfile.ErrCorrupt)
	}
	p.note(err)
	if err != nil {
		r.Unreadable = !errors.Is(err, regfile.ErrCorrupt)
		return r
	}
	r.DNP.Valid, r.Draining = true, p.draining()
	r.DNPRaw = r.DNP.Encode()
	p.saw(now, watchdog.AddrDNPWatchdog, r.DNPRaw)
	// A damaged descriptor is no evidence against the DNP half, whose word is good.
	_, raw, err := p.File.LoadDescriptor()
	r.DescriptorRaw = p.recall(now, pageWord{register: watchdog.AddrRemoteFaultDescriptor}, raw, err)
	if r.Descriptor, err = watchdog.DecodeDescriptorWord(r.DescriptorRaw); err != nil {
		r.Sample.Corrupt = true // cannot be: it was decoded
		return r
	}
	p.saw(now, watchdog.AddrRemoteFaultDescriptor, r.DescriptorRaw)
	for _, d := range links {
		v, err := p.File.LoadPeer(d) // before the detail, which the DNP half writes before it: a new mark has the new detail
		r.Peers[d.Index()] = p.recall(now, pageWord{peer: d}, v, err)
		v, err = p.File.LoadLinkDetail(d)
		if det, err := torus.DecodeDetail(p.recall(now, pageWord{detail: d}, v, err)); err == nil {
			r.Details[d.Index()] = det
		}
		if r.DNP.NeighbourHostFailed[d.Index()] {
			v, err := p.File.LoadNeighbourHost(d)
			if r.Causes[d.Index()] = p.recall(now, pageWord{cause: d}, v, err); err != nil && r.Causes[d.Index()] == 0 {
				r.Causes[d.Index()] = watchdog.BitOfMap // without the word, the raised bit is no evidence
			}
		}
	}
	r.Sensed = [3]hostcore.Sensed{
		p.sensed(now, fault.ComponentTemperature, watchdog.AddrTemperatureThresholds),
		p.sensed(now, fault.ComponentPower, watchdog.AddrPowerThresholds),
		p.sensed(now, fault.ComponentVoltage, watchdog.AddrVoltageThresholds),
	}
	r.Temperature, r.Power, r.Voltage = p.load(now, watchdog.AddrTemperature), p.load(now, watchdog.AddrPower),
		p.load(now, watchdog.AddrVoltage)
	if r.DNP.Core != watchdog.HealthNormal {
		r.Router0, r.Router1 = p.load(now, watchdog.AddrRouter0), p.load(now, watchdog.AddrRouter1)
		r.RDMA, r.Engine = p.load(now, watchdog.AddrRDMA), p.load(now, watchdog.AddrEngine)
	}
	return r
}

// WriteDNP writes the register updates of the DNP half's machine.
func (p *Page) WriteDNP(now time.Time, out *dnpcore.Output) {
	for _, s := range out.Stores {
		p.note(p.File.Store(s.Addr, s.Value))
		p.saw(now, s.Addr, s.Value)
	}
	for _, e := range out.Details {
		p.note(p.File.SetLinkDetail(e.Dir, e.Value))
	}
	for _, e := range out.Causes {
		p.note(p.File.SetNeighbourHost(e.Dir, e.Value))
	}
	for _, e := range out.Peers {
		p.note(p.File.SetPeer(e.Dir, e.Value))
	}
	if out.WriteDescriptor {
		p.note(p.File.StoreDescriptor(out.Descriptor))
		p.saw(now, watchdog.AddrRemoteFaultDescriptor, out.Descriptor.Encode())
	}
	if out.WriteDNP {
		p.note(p.File.StoreDNP(out.DNP))
		p.saw(now, watchdog.AddrDNPWatchdog, out.DNP.Encode())
		p.Window.Wrote(now, p)
	}
}

// WriteHost writes the host word.
func (p *Page) WriteHost(now time.Time, w watchdog.HostWord) {
	p.note(p.File.StoreHost(w))
	p.saw(now, watchdog.AddrHostWatchdog, w.Encode())
	p.Window.Wrote(now, p)
}

// ReadHost reads the host word for the DNP half, taking it or only looking at it.
func (p *Page) ReadHost(now time.Time, take bool) dnpcore.Host {
	h := dnpcore.Host{Taken: take}
	h.Window = p.Window.State(now)
	var err error
	if take {
		h.Word, h.Sample, err = p.File.TakeHost()
		h.Sample.Starved = p.other.look(now, p.path, fault.HalfHost, h.Sample.Valid)
	} else {
		h.Word, _, err = p.File.LoadHost()
		h.Sample.Corrupt = errors.Is(err, regfile.ErrCorrupt)
	}
	p.note(err)
	h.Unreadable = err != nil && !errors.Is(err, regfile.ErrCorrupt)
	if err == nil {
		p.saw(now, watchdog.AddrHostWatchdog, h.Word.Encode())
	}
	return h
}
