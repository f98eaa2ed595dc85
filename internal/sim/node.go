package sim

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// maxHops is the maximum number of hops of a message in these worlds.
const maxHops = 32

// node is one tile: two processes, the page between them, six cables' ends.
type node struct {
	w     *World
	topo  *halfcore.Topology
	page  registers
	links [grid.NumDirections]cable // frames that leave this node in each direction

	host     process
	hostCore *hostcore.Machine
	dnp      process
	dnpCore  *dnpcore.Machine
	copy     backup // of the DNP half

	recovers  bool                       // the next start is from the copy
	proves    bool                       // the daemon restarted the host half, which has yet to report that
	announced [grid.NumDirections]uint64 // frames that the recovery daemon has sent since the DNP half died

	stop      *stop                 // nil: none, or the agent was started again
	back      time.Time             // when the agent was last started after a stop
	returning bool                  // the agent was started after a stop, and has not announced the return yet
	restart   *restart              // the newest planned one, also when it is over; nil: none
	waits     []hostcore.NoticeKind // kinds of notices that the supervisors have not committed yet
	away      time.Time             // when the committed map last showed a stop of the node, or a restart was under way
	alone     time.Time             // when the DNP half last started without the supervisors' knowledge: see startsAlone

	machine *computer                     // nil: the world has no hardware watchdogs
	place   *place                        // nil: the world has no moves
	ends    [grid.NumDirections]*node     // where the ends lead by the DNP half's orders; nil: nowhere
	led     [grid.NumDirections]time.Time // since when

	rank    int
	liar    bool      // its processes send false reports
	lied    time.Time // when it last stopped that
	future  bool      // they have a later version
	replays [][]byte
	flaps   [grid.NumDirections]int // counts what keeps a cable flapping

	service  service
	joined   bool // the host half has joined the gossip
	spools   map[fault.Half]spool
	sensors  map[fault.Component]reading
	redialAt [grid.NumDirections]time.Time
	speakers map[fault.Half]sealer
}

func newNode(w *World, id fault.NodeID, at grid.Coord) *node {
	n := &node{w: w, rank: w.cfg.Dims.Index(at), topo: halfcore.NewTopology(id, at, w.cfg.Dims, nil), sensors: map[fault.Component]reading{},
		speakers: map[fault.Half]sealer{}}
	n.service.cut = make([]bool, w.cfg.Interfaces)
	n.spools = map[fault.Half]spool{fault.HalfHost: {}, fault.HalfDNP: {}}
	n.page.words = map[watchdog.Addr]uint32{}
	n.host.w, n.dnp.w = w, w
	n.host.maxTicks, n.dnp.maxTicks = maxTicks, maxTicks
	n.host.name, n.dnp.name = string(id)+"/host", string(id)+"/dnp"
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		n.speakers[h] = nodeSealer(fault.Origin{Node: id, Half: h}.String())
	}
	for _, c := range []fault.Component{fault.ComponentMemory, fault.ComponentServiceNetwork, fault.ComponentPeripheral0,
		fault.ComponentPeripheral1,
		fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage} {
		n.sensors[c] = reading{fault.Normal, 20}
	}
	return n
}

func (n *node) id() fault.NodeID { return n.topo.Node }

func (n *node) process(h fault.Half) *process {
	if h == fault.HalfHost {
		return &n.host
	}
	return &n.dnp
}

// goesOn reports whether a starting half finds a good copy of its former life: every other one does, if there is one of
// this boot.
func (n *node) goesOn(h fault.Half) bool {
	if n.process(h).cold {
		return false
	}
	if n.recovers {
		n.recovers = false
		return true
	}
	started := n.hostCore != nil
	if h == fault.HalfDNP {
		started = n.dnpCore != nil
	}
	return started && n.w.chance(0.5)
}

// resumeDNP returns the copy of the DNP half's previous life.
func (n *node) resumeDNP() (r dnpcore.Resume) {
	r.Outbox = n.dnpCore.Numbers()
	for _, d := range n.dnpCore.Links() {
		i := d.Index()
		if r.Links[i] = n.dnpCore.LinkSnapshot(d); n.w.now.Sub(n.dnp.lived) > time.Second {
			r.Links[i] = r.Links[i].Forget()
		}
		r.Has[i] = r.Links[i].TxSession != 0
		r.Links[i].TxSeq += n.announced[i]
	}
	n.announced = [grid.NumDirections]uint64{}
	return r
}

// start starts a dead half: from its copy, or with the next boot epoch.
func (n *node) start(h fault.Half) {
	p := n.process(h)
	if p.running || !n.mayStart(h) || n.machine != nil && !n.machine.on {
		return
	}
	if h == fault.HalfDNP && n.startsAlone() {
		n.alone = n.w.now
	}
	goesOn := n.goesOn(h)
	n.beginLife()
	var host hostcore.Numbers
	var dnp dnpcore.Resume
	if h == fault.HalfHost {
		p.become(func() { n.stepHost(hostcore.Tick{}) }, goesOn)
		if goesOn {
			host = n.hostCore.Numbers()
		}
	} else {
		p.become(func() { n.stepDNP(dnpcore.Tick{}) }, goesOn)
		if goesOn {
			dnp = n.resumeDNP()
		} else {
			n.copy = backup{}
		}
	}
	var err error
	if h == fault.HalfHost {
		n.hostCore, err = hostcore.New(hostcore.Config{
			Topo: n.around(), Periods: n.w.cfg.Periods, MaxHops: maxHops, Rails: []fault.Path{fault.PathDirect, fault.PathTorus},
			Interfaces: n.interfaces(), Kept: n.kept(h), GossipSilence: 4 * n.gossipPeriod(), Resume: host,
			SelfTest: halfcore.SelfTestConfig{Prove: n.proves},
		}, p.clock(), p.epoch)
		if err == nil {
			n.stepHost(hostcore.Supervisors{Targets: supervisorIDs(n.w.cfg.Supervisors)})
			n.stepHost(hostcore.Tick{})
			n.host.again(0, n.w.cfg.Periods.SensorPeriod, n.readHostSensors)
			n.joined = false
			n.host.again(n.w.between(0, n.gossipPeriod()), n.gossipPeriod(), n.probeGossip)
		}
	} else {
		n.leadEnds()
		var number express.Resume
		var seed uint64 // 0: derived from the epoch
		if goesOn {
			number.Number, seed = n.dnpCore.ExpressNumber(), n.dnp.life<<32|uint64(n.rank)
		}
		n.dnpCore, err = dnpcore.New(dnpcore.Config{Topo: n.around(), Periods: n.w.cfg.Periods, MaxHops: maxHops, Kept: n.kept(h),
			Resume: dnp, Hops: n.copy.resume(n.w.now), Peers: n.peersConfig(),
			Express: number, Seed: seed}, p.clock(), p.epoch)
		if err == nil {
			n.stepDNP(dnpcore.Tick{})
			n.dnp.again(0, n.w.cfg.Periods.SensorPeriod, n.readDNPSensors)
		}
	}
	if err == nil && n.machine != nil {
		n.machine.restate(h)
	}
	if err != nil {
		panic("sim: configuration that was validated is refused: " + err.Error())
	}
}

// stepHost is the host half's shell.
func (n *node) stepHost(ev hostcore.Event) {
	out := n.hostCore.Step(n.host.clock(), ev)
	n.carryOut(fault.HalfHost, out.SenderEffects)
	n.waits = slices.DeleteFunc(n.waits, func(k hostcore.NoticeKind) bool { return slices.Contains(out.Announced, k) })
	if out.WriteHost {
		n.page.stores[0]++
		n.page.host = out.Host
		n.page.host.Valid = true
	}
	if out.Ring {
		n.dnp.deliver(n.w.between(wakeDelayMin, wakeDelayMax), func() { n.stepDNP(dnpcore.Host{Word: n.page.host}) })
	}
	for _, s := range out.Send {
		n.sendHost(s)
	}
	for _, m := range out.Relay {
		n.dnp.deliver(n.w.between(wakeDelayMin, wakeDelayMax), func() { n.stepDNP(dnpcore.FromHost{Message: m}) })
	}
	n.askGossip(out.AskGossip)
	n.host.sleepUntil(out.Wake)
	if out.TakeDNP {
		sample := watchdog.Sample{Valid: n.page.dnp.Valid}
		n.page.dnp.Valid = false
		n.stepHost(n.look(true, sample))
	}
}

// look reads the page for the host half.
func (n *node) look(taken bool, s watchdog.Sample) hostcore.Registers {
	word := n.page.dnp
	word.Valid = true
	r := hostcore.Registers{
		Taken: taken, Sample: s, DNP: word, DNPRaw: word.Encode(), Descriptor: n.page.descriptor, DescriptorRaw: n.page.descriptor.Encode(),
		Causes: n.page.causes, Peers: n.page.peers,
		Temperature: n.page.words[watchdog.AddrTemperature], Power: n.page.words[watchdog.AddrPower], Voltage: n.page.words[watchdog.AddrVoltage],
		Router0: n.page.words[watchdog.AddrRouter0], Router1: n.page.words[watchdog.AddrRouter1],
		RDMA: n.page.words[watchdog.AddrRDMA], Engine: n.page.words[watchdog.AddrEngine],
	}
	for i, d := range n.page.details {
		r.Details[i], _ = torus.DecodeDetail(d) // a detail that does not decode is unknown
	}
	return r
}

// hostSensors are the parts that the host half's sensors measure.
var hostSensors = []fault.Component{fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
	fault.ComponentPeripheral1}

func (n *node) readHostSensors() {
	var rs []hostcore.Reading
	for _, c := range hostSensors {
		rs = append(rs, hostcore.Reading{Component: c, State: n.sensors[c].state})
	}
	n.stepHost(hostcore.Readings{Readings: rs})
}

func (n *node) readDNPSensors() {
	var rs []dnpcore.Reading
	for _, c := range []fault.Component{fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage} {
		rs = append(rs, dnpcore.Reading{Component: c, State: n.sensors[c].state, Value: n.sensors[c].value})
	}
	n.stepDNP(dnpcore.Readings{Readings: rs})
}

// sendHost signs and sends one message of the host half.
func (n *node) sendHost(s hostcore.Send) {
	key := n.speakers[fault.HalfHost]
	var b []byte
	var err error
	switch {
	case s.Reports != nil:
		b, err = n.sealReports(s.Reports, s.Status, s.Health, key)
	case s.Answer != nil:
		b, err = n.sealMessage(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
			Nonce: s.Answer.Nonce, Node: string(n.id()), Half: lofamov1.Half_HALF_HOST, Epoch: uint64(s.Answer.Epoch),
		}}}, key)
	case s.Request != nil:
		s.Request.Key = make([]byte, servicenet.KeySize) // sessions are not simulated: everything is signed
		b, err = n.sealMessage(&lofamov1.Message{Body: &lofamov1.Message_PathRequest{PathRequest: s.Request}}, key)
	case s.Ack != nil:
		b, err = n.sealMessage(&lofamov1.Message{Body: &lofamov1.Message_PathAck{PathAck: s.Ack}}, key)
	default:
		b, err = servicenet.SealRelayed(s.Relayed.Inner, s.Relayed.Hops, key)
	}
	if err != nil {
		n.w.violate("%s/host cannot seal what its core wants sent: %v", n.id(), err)
		return
	}
	if s.Path == fault.PathTorus {
		n.dnp.deliver(n.w.between(wakeDelayMin, wakeDelayMax), func() {
			n.stepDNP(dnpcore.FromHost{Message: halfcore.Relay{Kind: halfcore.RelayUp, Limit: maxHops, Envelope: b}})
		})
		return
	}
	n.toService(n.w.target(s.Target, s.Addr), s.Interface, b)
}

func (n *node) openHost(by string, b []byte, damaged bool, ev hostcore.Received) {
	o, err := servicenet.Open(b, verifier{})
	switch {
	case servicenet.IsDamaged(err):
		n.stepHost(hostcore.Hint{Event: servicenet.Damaged{Path: ev.Path, Interface: ev.Interface, Supervisor: by}})
	case err == nil:
		ev.Opened = o
		n.stepHost(ev)
	}
	if err != nil && !damaged {
		n.w.violate("%s/host refuses a message of the supervisor: %v", n.id(), err)
	}
	if err == nil && damaged {
		n.w.violate("%s/host takes a damaged message", n.id())
	}
}

// stepDNP is the DNP half's shell.
func (n *node) stepDNP(ev dnpcore.Event) {
	out := n.dnpCore.Step(n.dnp.clock(), ev)
	n.carryOut(fault.HalfDNP, out.SenderEffects)
	n.page.write(&out)
	if out.Ring {
		n.host.deliver(n.w.between(wakeDelayMin, wakeDelayMax), func() { n.stepHost(n.look(false, watchdog.Sample{})) })
	}
	for _, f := range out.Farewell {
		n.sendFrame(f)
	}
	for _, d := range out.Repeer {
		n.repeer(d)
	}
	if out.SavePeers {
		n.keepPeers()
	}
	n.copy.keep(n.w.now, out.Keep)
	for _, f := range out.Frames {
		n.sendFrame(f)
	}
	for _, m := range out.ToHost {
		n.toHost(m)
	}
	for _, d := range out.Redial {
		n.redial(d)
	}
	n.dnp.sleepUntil(out.Wake)
	// The next calls step the machine again, so all of this output is done by now.
	hand, open, seals, take := out.Hand, out.Open, out.Seal, out.TakeHost
	for _, h := range hand {
		if n.host.running {
			n.toHost(h.Message)
		} else {
			n.stepDNP(dnpcore.NotTaken{Slot: h.Slot})
		}
	}
	for _, b := range open {
		if o, err := servicenet.Open(b, verifier{}); err == nil {
			n.stepDNP(dnpcore.Opened{Opened: o})
		} else {
			n.w.violate("%s/dnp refuses a message of the supervisor: %v", n.id(), err)
		}
	}
	for _, s := range seals {
		n.seal(s)
	}
	if take {
		sample := watchdog.Sample{Valid: n.page.host.Valid}
		n.page.host.Valid = false
		n.stepDNP(dnpcore.Host{Taken: true, Sample: sample, Word: n.page.host})
	}
}

func (n *node) seal(s dnpcore.Seal) {
	var b []byte
	var err error
	switch {
	case s.Reports != nil:
		b, err = n.sealReports(s.Reports, s.Status, s.Health, n.speakers[fault.HalfDNP])
	case s.Order != nil:
		b, err = n.sealMessage(s.Order, n.speakers[fault.HalfDNP])
	default:
		b, err = n.sealMessage(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: s.Answer}}, n.speakers[fault.HalfDNP])
	}
	if err != nil {
		n.w.violate("%s/dnp cannot seal what its core wants sent: %v", n.id(), err)
		return
	}
	n.stepDNP(dnpcore.Sealed{Envelope: b, Seal: s})
}

// toHost passes a message through the mailbox.
func (n *node) toHost(m halfcore.Relay) {
	d := n.w.between(wakeDelayMin, wakeDelayMax)
	n.host.deliver(d, func() {
		if m.Kind == halfcore.RelayUp {
			n.arrive(m, d)
		} else {
			n.openHost("", m.Envelope, false, hostcore.Received{Path: fault.PathTorus})
		}
	})
}

// arrive has the host half relay another's message; a liar delays it, and claims no delay.
func (n *node) arrive(m halfcore.Relay, held time.Duration) {
	if !n.liar {
		n.stepHost(hostcore.Arrived{Message: m, Held: held})
		return
	}
	n.keepReplay(m)
	n.host.deliver(n.w.between(0, maxHolding), func() { n.stepHost(hostcore.Arrived{Message: m}) })
}
