package inject

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/config"
)

// world is one node in virtual time: the machines of both halves with their watchdogs, the real register file between
// them, neighbours on six links, and a supervisor that acknowledges. It has faults from the start, so that the
// registers are not empty: a neighbour's host is dead, another's memory broken, a link cut, the temperature high.
type world struct {
	t       *testing.T
	periods config.Periods
	now     time.Time
	topo    *halfcore.Topology
	page    []byte // the file, mapped here as well: faults are applied to it
	raw     *os.File

	host      *hostcore.Machine
	hostPage  *half.Page
	hostWake  time.Time
	dnp       *dnpcore.Machine
	dnpPage   *half.Page
	dnpWake   time.Time
	peers     []*peer
	sensorsAt time.Time
	memory    fault.State // reading of the host's sensor
	stuck     func()      // applied again after every store; nil if nothing is stuck

	told   map[string]string // by component: the last report of the host half
	beaten [grid.NumDirections]string
	mended int // number of times that a half found its page broken and recreated it
	notes  int // notes of corruption and delay
}

type peer struct {
	dir     grid.Direction
	machine *torus.Link
	wake    time.Time
	status  torus.Status
	cut     bool
}

var epoch0 = time.Unix(1000, 0)

func newWorld(t *testing.T) *world {
	t.Helper()
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	dims := grid.Dims{X: 3, Y: 3, Z: 3}
	at := grid.Coord{X: 1, Y: 1, Z: 1}
	w := &world{t: t, periods: p, now: epoch0, topo: halfcore.NewTopology(fault.DefaultNodeID(at), at, dims, nil), told: map[string]string{},
		memory: fault.Normal}
	path := filepath.Join(t.TempDir(), "registers")
	log := slog.New(slog.DiscardHandler)
	if w.hostPage, err = half.OpenPage(path, fault.HalfHost, log); err != nil {
		t.Fatal(err)
	}
	w.hostPage.SetEpoch(7)
	t.Cleanup(func() { _ = w.hostPage.File.Close() })
	if w.dnpPage, err = half.OpenPage(path, fault.HalfDNP, log); err != nil {
		t.Fatal(err)
	}
	w.dnpPage.SetEpoch(9)
	t.Cleanup(func() { _ = w.dnpPage.File.Close() })
	if w.raw, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	if w.page, err = unix.Mmap(int(w.raw.Fd()), 0, regfile.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(w.page); _ = w.raw.Close() })
	w.start(dims, at)
	w.run(8 * time.Second) // a neighbour's host that was dead before the start is stated after 6 s
	return w
}

func (w *world) start(dims grid.Dims, at grid.Coord) {
	w.t.Helper()
	var err error
	w.dnp, err = dnpcore.New(dnpcore.Config{Topo: w.topo, Periods: w.periods, MaxHops: 9, LinkGrace: time.Second,
		Hold: 500 * time.Millisecond}, w.now, 9)
	if err != nil {
		w.t.Fatal(err)
	}
	w.host, err = hostcore.New(hostcore.Config{
		Topo: w.topo, Periods: w.periods, MaxHops: 9, Rails: []fault.Path{fault.PathDirect, fault.PathTorus}, Interfaces: []string{"service"},
	}, w.now, 7)
	if err != nil {
		w.t.Fatal(err)
	}
	w.stepHost(hostcore.Supervisors{Targets: []string{"sup-0"}})
	for i, d := range dims.Links() {
		n, _ := dims.Neighbour(at, d)
		lc := torus.LinkConfig{
			Dir: d.Opposite(), Src: n, Dst: at, Period: w.periods.LinkPeriod, Misses: w.periods.LinkMisses, Grace: time.Second,
			SickRatio: w.periods.LinkSickRatio, ClearRatio: w.periods.LinkClearRatio, Window: w.periods.LinkWindow,
			MinErrors: w.periods.LinkMinErrors, HoldOff: w.periods.LinkHoldOff,
		}
		q := &peer{dir: d, machine: torus.NewLink(lc, w.now), wake: w.now,
			status: torus.Status{Epoch: 1, Host: watchdog.HostWord{Valid: true}.Encode()}}
		switch d {
		case grid.XPlus:
			q.status.Host = watchdog.HostWord{Valid: true, Memory: watchdog.HealthBroken}.Encode()
		case grid.YMinus:
			q.status.HostDead = true
		case grid.ZPlus:
			q.cut = true
		default:
		}
		q.machine.Step(w.now, torus.SessionStarted{ID: uint32(i + 1)})
		w.peers = append(w.peers, q)
		w.stepDNP(dnpcore.Session{Dir: d, ID: uint32(i + 1)})
	}
}

// run advances the virtual time.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); ; {
		next := w.hostWake
		for _, at := range []time.Time{w.dnpWake, w.sensorsAt} {
			if at.Before(next) {
				next = at
			}
		}
		for _, p := range w.peers {
			if p.wake.Before(next) {
				next = p.wake
			}
		}
		if next.After(end) {
			w.now = end
			return
		}
		if next.After(w.now) {
			w.now = next
		}
		w.wake()
	}
}

// wake makes the steps that are due.
func (w *world) wake() {
	if !w.now.Before(w.sensorsAt) {
		w.sensorsAt = w.now.Add(w.periods.SensorPeriod)
		w.sense()
	}
	for _, p := range w.peers {
		if w.now.Before(p.wake) {
			continue
		}
		out := p.machine.Step(w.now, torus.Tick{})
		p.wake = out.Wake
		if out.SendHeartbeat {
			f := p.machine.NextFrame(p.status)
			if !p.cut {
				w.stepDNP(&dnpcore.Frame{Dir: p.dir, Frame: f})
			}
		}
	}
	if !w.now.Before(w.dnpWake) {
		if w.dnpPage.Maintain(w.now) {
			w.mended++
			w.stepDNP(dnpcore.Refresh{})
		}
		w.again()
		w.stepDNP(dnpcore.Tick{})
	}
	if !w.now.Before(w.hostWake) {
		if w.hostPage.Maintain(w.now) {
			w.mended++
		}
		w.again()
		w.stepHost(hostcore.Tick{})
	}
}

// again resets stuck bits to their stuck value.
func (w *world) again() {
	if w.stuck != nil {
		w.stuck()
	}
}

func (w *world) sense() {
	w.stepHost(hostcore.Readings{Readings: []hostcore.Reading{
		{Component: fault.ComponentMemory, State: w.memory}, {Component: fault.ComponentServiceNetwork, State: fault.Normal},
		{Component: fault.ComponentPeripheral0, State: fault.Sick, Detail: "slow"}, {Component: fault.ComponentPeripheral1, State: fault.Normal},
	}})
	th := watchdog.Thresholds{AlarmLow: watchdog.EncodeCelsius(0), WarnLow: watchdog.EncodeCelsius(5),
		WarnHigh: watchdog.EncodeCelsius(75), AlarmHigh: watchdog.EncodeCelsius(90)}
	w.stepDNP(dnpcore.Readings{Readings: []dnpcore.Reading{
		{Component: fault.ComponentTemperature, State: fault.Sick, Value: 80, Thresholds: &th},
		{Component: fault.ComponentPower, State: fault.Normal, Value: 180}, {Component: fault.ComponentVoltage, State: fault.Normal, Value: 12},
	}})
}

func (w *world) stepHost(ev hostcore.Event) {
	out := w.host.Step(w.now, ev)
	w.hostWake = out.Wake
	if out.WriteHost {
		w.hostPage.WriteHost(w.now, out.Host)
		w.again()
	}
	for _, n := range out.Notes {
		if n.Kind == hostcore.NoteCorrupt || n.Kind == hostcore.NoteUnreadable {
			w.notes++
		}
	}
	for i := range out.Send {
		w.sent(&out.Send[i])
	}
	if out.Ring {
		w.stepDNP(w.dnpPage.ReadHost(w.now, false))
	}
	if out.TakeDNP {
		r := w.hostPage.ReadDNP(w.now, true, w.topo.Links)
		w.again()
		w.stepHost(r)
	}
}

// sent simulates the supervisor: it receives the node's reports and acknowledges them.
func (w *world) sent(s *hostcore.Send) {
	answer := func(m *lofamov1.Message) {
		w.stepHost(hostcore.Received{Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: s.Target, Msg: m},
			Path: fault.PathDirect, Interface: s.Interface})
	}
	if q := s.Request; q != nil {
		answer(&lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{Node: q.GetNode(), Half: q.GetHalf(),
			Epoch: q.GetEpoch(), Id: q.GetId(), Session: 1}}})
	}
	for _, r := range s.Reports {
		for _, o := range r.Observations {
			w.told[fmt.Sprintf("%s %s", o.Node, o.Component)] = fmt.Sprintf("%s %s %s", o.State, o.Kind, stripTimes(o.Detail))
		}
		if s.Path == fault.PathDirect {
			for _, st := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
				answer(&lofamov1.Message{Acks: servicenet.NewAcks(st, r.ID)})
			}
		}
	}
}

// stripTimes removes the trailing times from a detail, which differ between looks.
func stripTimes(s string) string { return strings.TrimRight(s, "0123456789.µms ") }

func (w *world) stepDNP(ev dnpcore.Event) {
	out := w.dnp.Step(w.now, ev)
	w.dnpWake = out.Wake
	for _, s := range slices.Clone(out.Stores) { // store by store, since stuck bits are reset after each
		w.dnpPage.WriteDNP(w.now, &dnpcore.Output{Stores: []dnpcore.Store{s}})
		w.again()
	}
	rest := out
	rest.Stores = nil
	w.dnpPage.WriteDNP(w.now, &rest)
	w.again()
	for _, n := range out.Notes {
		if n.Kind == dnpcore.NoteCorrupt || n.Kind == dnpcore.NoteUnreadable {
			w.notes++
		}
	}
	frames, ring, take := slices.Clone(out.Frames), out.Ring, out.TakeHost
	for i := range frames {
		w.frame(&frames[i])
	}
	if ring {
		w.stepHost(w.hostPage.ReadDNP(w.now, false, w.topo.Links))
	}
	if take {
		h := w.dnpPage.ReadHost(w.now, true)
		w.again()
		w.stepDNP(h)
	}
}

// frame delivers the node's frame to a neighbour.
func (w *world) frame(o *dnpcore.Outgoing) {
	for _, p := range w.peers {
		if p.dir == o.Dir {
			if !p.cut {
				p.machine.Step(w.now, torus.FrameReceived{Frame: o.Frame})
			}
			host, _ := watchdog.DecodeHostWord(o.Frame.Host)
			host.Valid = true
			w.beaten[o.Dir.Index()] = fmt.Sprintf("%+v dead=%t", host, o.Frame.Flags&torus.FlagHostDead != 0)
		}
	}
}

// public returns all that an application-level prober can know of the node: its reported states of itself and its
// neighbours, through its status socket and to the supervisors, and its messages to the neighbours.
func (w *world) public() string {
	var b strings.Builder
	for _, s := range w.host.States() {
		fmt.Fprintf(&b, "%s=%s ", s.Component, s.State)
	}
	for _, k := range slices.Sorted(maps.Keys(w.told)) {
		if !strings.HasPrefix(w.told[k], "NORMAL") && !strings.HasPrefix(w.told[k], "UNKNOWN") { // States has those
			fmt.Fprintf(&b, "| %s: %s ", k, w.told[k])
		}
	}
	fmt.Fprintf(&b, "| %v | dnp %s host %s", w.beaten, w.host.Verdict(), w.dnp.Verdict())
	return b.String()
}

// detections counts the detections by detector since the start of the world.
func (w *world) detections() map[detector]uint64 {
	return map[detector]uint64{
		byGuard: w.hostPage.File.Corrupt() + w.dnpPage.File.Corrupt() + uint64(w.notes),
		byFile:  uint64(w.mended),
	}
}

func (w *world) stale() bool {
	return w.host.Verdict() == watchdog.Stale || w.dnp.Verdict() == watchdog.Stale
}

// Faults are applied by atomic stores of single bytes, as in real memory, since 64-bit words could tear.
func (w *world) flip(bit int) { w.page[bit/8] ^= 1 << (bit % 8) }

func (w *world) bit(bit int) bool { return w.page[bit/8]>>(bit%8)&1 == 1 }
