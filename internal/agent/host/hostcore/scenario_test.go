package hostcore

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/golden"
)

// A scenario is a list of commands. Below each stand the host half's actions in response, one a line,
// beginning with "  ".
//
//	torus DIMS COORD [alone] [joins DURATION] [INTERFACES]  a new host half at default periods, with a direct rail for each service
//	                          interface; the DNP half runs, supervisors answer. joins: the half has gossip, and GossipSilence is DURATION.
//	                          alone: supervisors have been silent from before the start
//	run DURATION              time passes
//	stall DURATION            time passes in which the half does not run; then it runs late
//	dnp alive|dead|corrupt
//	window alive|refused|silent   that to the DNP half's kernel, from now on
//	dnp ended HOW             the kernel confirms that its process has ended
//	link DIR normal|sick|restarting|silent|refused|never-heard|unheard|unknown
//	neighbour DIR ok|dead|dead-in-map|service-network|memory|peripheral/0|peripheral/1 [cause MASK]
//	peer DIR NODE             of which the DNP half writes there
//	core|temperature|power|voltage normal|sick|broken|absent
//	sensor COMPONENT STATE    of the host's own sensors
//	measured temperature|power|voltage LOW HIGH VALUE   a finer value with its thresholds, in the sensor's unit
//	measured corrected-errors HIGH VALUE                by the memory's sensor, errors a second
//	measured loss DIR VALUE                             share of packets that a link loses
//	sensors silent            they stop answering
//	supervisors answer|silent
//	gossip lives|answers|silent   other members send gossip, or only answer questions, or do neither: silent at first
//	interface K up|down       a service interface, by its number
//	damaged K                 a damaged packet came in there
//	challenge host|dnp|either NODE direct|torus [K]   on the direct rail by interface K
//	downcall NODE             a message for another node
//	told REVISION SINCE PART/PARTS [want] NODE=STATE...   by a supervisor, on the direct rail; host-dead: its host is FAILED
//	quorum lost|back          of the supervisors that answer: without one they commit nothing, and report since when
//	quorum elsewhere          an answer of one that has a quorum
//	watch NODE...             a client on this node watches them
//	known NODE...             prints the view of these nodes; without NODE, of the node and its neighbours
//	arrived COORD [digest]    another node's envelope, come by the torus
//	health host|dnp RESTARTS TESTS   reported by the daemon and the self-tests; RESTARTS 0 and TESTS 0: unknown
//	health host|dnp given-up WORDS   by its daemon
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		var w *world
		return golden.Lines(t, text, "  ", func(args []string) ([]string, error) {
			if args[0] == "torus" {
				w = newWorld(t, args[1], args[2], args[3:])
			} else {
				w.do(args)
			}
			deeds := w.deeds
			w.deeds = nil
			return deeds, nil
		})
	})
}

// world is what surrounds one host half.
type world struct {
	t          *testing.T
	now, begun time.Time
	m          *Machine
	wake       time.Time
	regs       Registers
	alive      bool
	corrupt    bool
	answer     bool
	lost       time.Time // since when the supervisors have no quorum; zero: they have one
	elsewhere  bool      // the next answer comes from a supervisor that has a quorum
	gossip     bool
	answers    bool      // other members of the gossip answer questions
	sensorsAt  time.Time // when they answer next
	deeds      []string
}

var start = time.Unix(1000, 0)

func newWorld(t *testing.T, dims, at string, interfaces []string) *world {
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	c, err := grid.ParseCoord(at)
	if err != nil {
		t.Fatal(err)
	}
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	answer, joins := true, time.Duration(0)
	if len(interfaces) > 0 && interfaces[0] == "alone" {
		answer, interfaces = false, interfaces[1:]
	}
	if len(interfaces) > 1 && interfaces[0] == "joins" {
		if joins, err = time.ParseDuration(interfaces[1]); err != nil {
			t.Fatal(err)
		}
		interfaces = interfaces[2:]
	}
	w := &world{t: t, now: start, begun: start, alive: true, answer: answer}
	w.regs.Temperature, w.regs.Power, w.regs.Voltage = uint32(watchdog.EncodeCelsius(40)), uint32(watchdog.EncodeWatts(100)),
		uint32(watchdog.EncodeVolts(12))
	for _, dir := range d.Links() {
		w.regs.Details[dir.Index()] = torus.Detail{Rx: torus.LinkNormal, Tx: torus.LinkNormal}
	}
	if len(interfaces) == 0 {
		interfaces = []string{"service"}
	}
	w.m, err = New(Config{
		Topo: halfcore.NewTopology(fault.DefaultNodeID(c), c, d, nil), Periods: p, MaxHops: 9,
		Rails: []fault.Path{fault.PathDirect, fault.PathTorus}, Interfaces: interfaces, GossipSilence: joins,
	}, w.now, 7)
	if err != nil {
		t.Fatal(err)
	}
	w.step(Supervisors{Targets: []string{"sup-0", "sup-1"}})
	w.step(Readings{[]Reading{
		{Component: fault.ComponentMemory, State: fault.Normal},
		{Component: fault.ComponentServiceNetwork, State: fault.Normal},
		{Component: fault.ComponentPeripheral0, State: fault.Normal},
	}})
	w.step(Tick{})
	return w
}

func (w *world) say(format string, args ...any) {
	at := w.now.Sub(w.begun).Round(100 * time.Microsecond)
	w.deeds = append(w.deeds, fmt.Sprintf("%7s ", at)+fmt.Sprintf(format, args...))
}

func (w *world) step(ev Event) { w.apply(w.m.Step(w.now, ev)) }

func (w *world) apply(out Output) {
	w.wake = out.Wake
	if out.Ring {
		w.say("host word: service network %s, memory %s, peripherals %s %s",
			out.Host.ServiceNetwork, out.Host.Memory, out.Host.Peripheral0, out.Host.Peripheral1)
	}
	if out.AskGossip > 0 {
		w.say("asks %d members of the gossip", out.AskGossip)
		if w.answers {
			w.step(GossipHeard{})
		}
	}
	for _, n := range out.SenderNotes {
		w.say("note: %s", n.Text)
	}
	for i := range out.Send {
		w.sent(&out.Send[i])
	}
	for _, id := range out.Learned {
		w.say("learned of %s", id)
	}
	if out.Aged {
		w.say("stale: %v", w.m.Known(nil).Stale)
	}
	for _, r := range out.Relay {
		w.say("to DNP: %s to %s", r.Kind, r.Dst)
	}
	if out.TakeDNP {
		r := w.regs
		r.Taken, r.Sample = true, watchdog.Sample{Valid: w.alive, Corrupt: w.corrupt}
		w.step(r)
	}
}

func (w *world) sent(s *Send) {
	switch {
	case s.Reports != nil:
		w.sentHealth(s)
		for _, r := range s.Reports {
			w.sentReport(s, r)
		}
	case s.Request != nil:
		if w.answer {
			w.receiveOn(fault.PathDirect, s.Interface, s.Target, &lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{
				Node: s.Request.GetNode(), Half: s.Request.GetHalf(), Epoch: s.Request.GetEpoch(), Id: s.Request.GetId(), Session: 1,
			}}})
		}
	case s.Ack != nil:
	case s.Interest != nil:
		w.say("%s %s interest %d, part %d of %d: %s", s.Path, s.Target, s.Interest.GetSerial(), s.Interest.GetPart(), s.Interest.GetParts(),
			strings.Join(s.Interest.GetNodes(), " "))
	case s.Answer != nil:
		to := ""
		if s.Addr.IsValid() {
			to = s.Addr.String()
		}
		w.say("%s%s %s answer %q at epoch %d", s.Path, w.iface(s), to, s.Answer.Nonce, s.Answer.Epoch)
	default:
		w.say("%s%s %s relayed %q by %v", s.Path, w.iface(s), s.Target, s.Relayed.Inner, s.Relayed.Hops)
	}
}

func (w *world) sentReport(s *Send, r fault.Report) {
	for _, v := range r.Readings {
		w.say("%s%s %s digest %d: %s %s is %.4g%s, threshold %.4g%s", s.Path, w.iface(s), s.Target, r.ID.Seq, v.Component, v.Quantity, v.Value,
			v.Quantity.Unit(), v.Threshold, v.Quantity.Unit())
	}
	if !r.Digest {
		w.say("%s%s %s report %d:", s.Path, w.iface(s), s.Target, r.ID.Seq)
		for _, o := range r.Observations {
			w.say("    %s %s %s by %s%s, %s old %s", o.Node, o.Component, o.State, o.Kind, ended(o), o.Age.Round(time.Millisecond), o.Detail)
		}
	}
	if w.answer && s.Path == fault.PathDirect {
		said := []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED}
		if !w.lost.IsZero() {
			said = said[:1]
		}
		for _, st := range said {
			w.receiveOn(fault.PathDirect, s.Interface, s.Target, withLeader(servicenet.NewAcks(st, r.ID), "sup-1"))
		}
	}
}

// ended marks an observation of a process that a kernel reported as ended.
func ended(o fault.Observation) string {
	if o.Ended {
		return " (ended)"
	}
	return ""
}

// iface names the service interface where there are several.
func (w *world) iface(s *Send) string {
	if s.Path != fault.PathDirect || len(w.m.cfg.Interfaces) == 1 {
		return ""
	}
	return "/" + w.m.cfg.Interfaces[s.Interface]
}

func (w *world) receive(path fault.Path, by string, m *lofamov1.Message) { w.receiveOn(path, 0, by, m) }

func (w *world) receiveOn(path fault.Path, k uint8, by string, m *lofamov1.Message) {
	if !w.lost.IsZero() && !w.elsewhere {
		m.NoQuorumMs = max(1, w.now.Sub(w.lost).Milliseconds())
	}
	w.step(Received{Path: path, Interface: k, From: netip.MustParseAddrPort("198.51.100.1:99"),
		Opened: servicenet.Opened{Msg: m, Role: servicenet.RoleSupervisor, Name: by, Raw: []byte("raw")}})
	w.elsewhere = false
}

// ring is the doorbell: the registers are looked at.
func (w *world) ring() {
	if w.alive {
		w.step(w.regs)
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); ; {
		if w.wake.After(end) {
			w.now = end
			return
		}
		if w.wake.After(w.now) {
			w.now = w.wake
		}
		if !w.sensorsAt.After(w.now) {
			w.sensorsAt = w.now.Add(500 * time.Millisecond)
			w.step(Readings{})
			if w.gossip {
				w.step(GossipHeard{})
			}
		}
		w.step(Tick{})
	}
}

func (w *world) do(args []string) {
	w.t.Helper()
	switch args[0] {
	case "run", "stall":
		d, err := time.ParseDuration(args[1])
		w.must(err)
		if args[0] == "run" {
			w.run(d)
			return
		}
		w.now = w.now.Add(d)
		w.step(Tick{})
	case "dnp":
		w.alive, w.corrupt = args[1] == "alive", args[1] == "corrupt"
		if args[1] == "ended" {
			w.step(Ended{How: strings.Join(args[2:], " "), Age: 2 * time.Millisecond})
		}
	case "window":
		w.regs.Window.State = map[string]watchdog.WindowState{
			"alive": watchdog.WindowAlive, "refused": watchdog.WindowRefused, "silent": watchdog.WindowSilent,
		}[args[1]]
		w.regs.Window.Silence = 70 * time.Millisecond
	case "link":
		w.link(w.dir(args[1]), args[2])
		w.ring()
	case "neighbour":
		w.neighbour(w.dir(args[1]), args[2:])
		w.ring()
	case "peer":
		w.peer(w.dir(args[1]), args[2])
	case "core", "temperature", "power", "voltage":
		w.field(args[0], args[1])
		w.ring()
	case "sensor":
		c, err := fault.ParseComponent(args[1])
		w.must(err)
		s, err := fault.ParseState(args[2])
		w.must(err)
		w.step(Readings{[]Reading{{Component: c, State: s, Detail: "as told"}}})
	case "measured":
		w.measured(args[1:])
	case "sensors":
		w.sensorsAt = w.now.Add(time.Hour)
	case "supervisors":
		w.answer = args[1] == "answer"
	case "gossip":
		w.gossip, w.answers = args[1] == "lives", args[1] == "answers"
	case "interface":
		var ev servicenet.Event = servicenet.RailUp{Path: fault.PathDirect, Interface: w.number(args[1])}
		if args[2] == "down" {
			ev = servicenet.RailDown{Path: fault.PathDirect, Interface: w.number(args[1]), Why: "no carrier"}
		}
		w.step(Hint{ev})
	case "damaged":
		w.step(Hint{servicenet.Damaged{Path: fault.PathDirect, Interface: w.number(args[1])}})
	case "challenge":
		half := map[string]lofamov1.Half{"host": lofamov1.Half_HALF_HOST, "dnp": lofamov1.Half_HALF_DNP, "either": 0}[args[1]]
		path := map[string]fault.Path{"direct": fault.PathDirect, "torus": fault.PathTorus}[args[3]]
		var k uint8
		if len(args) > 4 {
			k = w.number(args[4])
		}
		w.receiveOn(path, k, "sup-0", &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
			Nonce: []byte("0123456789abcdef"), Node: args[2], Half: half, ReplyTo: "192.0.2.1:7",
		}}})
	case "told":
		w.told(args[1:])
	case "health":
		w.health(args[1:])
	case "watch":
		var ids []fault.NodeID
		for _, id := range args[1:] {
			ids = append(ids, fault.NodeID(id))
		}
		w.step(Watch{ids})
	case "known":
		var ids []fault.NodeID
		for _, id := range args[1:] {
			ids = append(ids, fault.NodeID(id))
		}
		k := w.m.Known(ids)
		pending := ""
		if k.Pending {
			pending = ", not all was told yet"
		}
		stale := ""
		if k.Stale && k.Confirmed.IsZero() {
			stale = ", never with a quorum"
		} else if k.Stale {
			stale = fmt.Sprintf(", with a quorum %s ago", w.now.Sub(k.Confirmed).Round(time.Millisecond))
		}
		w.say("known at revision %d, supervisors heard %s ago%s%s:", k.Revision, w.now.Sub(k.Heard).Round(time.Millisecond), stale, pending)
		for _, n := range k.Nodes {
			w.say("    %s %s", n.GetId(), n.GetState())
		}
	case "quorum":
		switch args[1] {
		case "lost":
			w.lost = w.now
		case "back":
			w.lost = time.Time{}
		case "elsewhere":
			w.elsewhere = true
		}
	case "downcall":
		w.receive(fault.PathDirect, "sup-0", &lofamov1.Message{Body: &lofamov1.Message_Downcall{Downcall: &lofamov1.Downcall{
			Node: args[1], Inner: &lofamov1.Envelope{Payload: []byte("p"), Certificate: []byte("c"), Signature: []byte("s")},
		}}})
	case "arrived":
		c, err := grid.ParseCoord(args[1])
		w.must(err)
		w.step(Arrived{Held: 2 * time.Millisecond, Message: halfcore.Relay{
			Kind: halfcore.RelayUp, MayWait: len(args) > 2, Envelope: []byte("envelope"),
			Hops: []halfcore.RelayHop{{Coord: c, Half: fault.HalfDNP, Held: time.Millisecond}},
		}})
	default:
		w.t.Fatalf("unknown command %v", args)
	}
}

// measured sets a measured value, as the page or the sensors would report it.
func (w *world) measured(args []string) {
	value := func(i int) float64 {
		v, err := strconv.ParseFloat(args[i], 64)
		w.must(err)
		return v
	}
	if args[0] == "corrected-errors" {
		w.step(Readings{[]Reading{{Component: fault.ComponentMemory, State: fault.Normal, Quantity: fault.QuantityCorrectedErrors,
			Threshold: value(1), Value: value(2)}}})
		return
	}
	if args[0] == "loss" {
		w.regs.Details[w.dir(args[1]).Index()].Loss = uint16(value(2) * torus.LossUnits)
		w.ring()
		return
	}
	for i, s := range []struct {
		name   string
		encode func(float64) byte
	}{{"temperature", watchdog.EncodeCelsius}, {"power", watchdog.EncodeWatts}, {"voltage", watchdog.EncodeVolts}} {
		if s.name == args[0] {
			w.regs.Sensed[i] = Sensed{int32(value(3) * 1000),
				watchdog.Thresholds{WarnLow: s.encode(value(1)), WarnHigh: s.encode(value(2))}.Encode()}
			w.ring()
		}
	}
}

// told handles REVISION SINCE PART/PARTS [want] NODE=STATE...
func (w *world) told(args []string) {
	var m lofamov1.FaultUpdate
	_, err := fmt.Sscanf(strings.Join(args[:3], " "), "%d %d %d/%d", &m.Revision, &m.Since, &m.Part, &m.Parts)
	w.must(err)
	m.Node, m.Interest = string(w.m.self), w.m.view.Serial()
	for _, a := range args[3:] {
		if m.WantInterest = m.WantInterest || a == "want"; a == "want" {
			continue
		}
		id, state, _ := strings.Cut(a, "=")
		if id, dead := strings.CutSuffix(a, "=host-dead"); dead {
			m.Nodes = append(m.Nodes, &lofamov1.NodeView{Id: id, State: lofamov1.State_SICK, Faults: []*lofamov1.ComponentFault{
				{Component: uint32(fault.ComponentHost), State: lofamov1.State_FAILED},
			}})
			continue
		}
		m.Nodes = append(m.Nodes, &lofamov1.NodeView{Id: id, State: lofamov1.State(lofamov1.State_value[state])})
	}
	w.receive(fault.PathDirect, "sup-0", &lofamov1.Message{Body: &lofamov1.Message_FaultUpdate{FaultUpdate: &m}})
	for i, dead := range w.m.DeadHosts() {
		if dead {
			w.say("tells the DNP half: the host at %s is dead", grid.Directions()[i])
		}
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) number(s string) uint8 {
	w.t.Helper()
	k, err := strconv.ParseUint(s, 10, 8)
	w.must(err)
	return uint8(k)
}

func (w *world) dir(s string) grid.Direction {
	d, err := grid.ParseDirection(s)
	w.must(err)
	return d
}

func (w *world) link(d grid.Direction, state string) {
	type view struct {
		h   watchdog.Health
		det torus.Detail
	}
	v, ok := map[string]view{
		"normal":     {watchdog.HealthNormal, torus.Detail{Rx: torus.LinkNormal, Tx: torus.LinkNormal}},
		"sick":       {watchdog.HealthSick, torus.Detail{Rx: torus.LinkSick, Tx: torus.LinkNormal}},
		"restarting": {watchdog.HealthSick, torus.Detail{Rx: torus.LinkSick, Tx: torus.LinkNormal, Restarting: true}},
		"silent": {watchdog.HealthBroken, torus.Detail{Rx: torus.LinkBroken, Tx: torus.LinkUnknown, Silent: true,
			HeardAge: 75 * time.Millisecond}},
		"refused": {watchdog.HealthBroken, torus.Detail{Rx: torus.LinkBroken, Tx: torus.LinkUnknown, Silent: true,
			HeardAge: 32 * time.Millisecond}},
		"never-heard": {watchdog.HealthBroken, torus.Detail{Rx: torus.LinkBroken, Tx: torus.LinkUnknown, Silent: true,
			HeardAge: 5 * time.Second}},
		"unheard": {watchdog.HealthBroken, torus.Detail{Rx: torus.LinkNormal, Tx: torus.LinkBroken, Handshake: true}},
		"unknown": {watchdog.HealthNormal, torus.Detail{Rx: torus.LinkUnknown, Tx: torus.LinkUnknown}},
	}[state]
	if !ok {
		w.t.Fatalf("unknown state of a link %q", state)
	}
	w.regs.DNP.Links[d.Index()], w.regs.Details[d.Index()] = v.h, v.det
	if v.det.Silent { // the DNP half clears the fields that it cannot know
		w.regs.DNP.NeighbourHostFailed[d.Index()] = false
		w.regs.Descriptor.Neighbours[d.Index()] = watchdog.NeighbourFaults{}
	}
}

func (w *world) neighbour(d grid.Direction, args []string) {
	i := d.Index()
	w.regs.DNP.NeighbourHostFailed[i] = args[0] != "ok"
	w.regs.Descriptor.Neighbours[i] = watchdog.NeighbourFaults{
		ServiceNetwork: args[0] == "service-network", Memory: args[0] == "memory",
		Peripheral0: args[0] == "peripheral/0", Peripheral1: args[0] == "peripheral/1",
	}
	w.regs.Causes[i] = watchdog.BitOfMap
	if args[0] == "dead" {
		w.regs.Causes[i] = 0
	}
	if len(args) == 3 && args[2] == "memory" {
		w.regs.Causes[i] = watchdog.HostWord{Memory: watchdog.HealthBroken}.Encode()
	}
}

// peer lets the DNP half follow a change of places: its words about a link now describe another node.
func (w *world) peer(d grid.Direction, node string) {
	w.regs.Peers[d.Index()] = halfcore.NewTopology(w.m.self, grid.Coord{}, grid.Dims{X: 2, Y: 2, Z: 2},
		map[grid.Direction]fault.NodeID{d: fault.NodeID(node)}).PeerMark(d)
}

func (w *world) field(name, state string) {
	h, known := map[string]watchdog.Health{"normal": watchdog.HealthNormal, "sick": watchdog.HealthSick,
		"broken": watchdog.HealthBroken}[state]
	switch name {
	case "core":
		w.regs.DNP.Core, w.regs.Router0 = h, watchdog.RouterHopsExceeded
	case "temperature":
		w.regs.DNP.Temperature, w.regs.Temperature = h, uint32(watchdog.EncodeCelsius(95))
		if !known {
			w.regs.Temperature = 0
		}
	case "power":
		w.regs.DNP.Power = h
	case "voltage":
		w.regs.DNP.Voltage = h
	}
}

func withLeader(acks []*lofamov1.Ack, leader string) *lofamov1.Message {
	for _, a := range acks {
		a.Leader = leader
	}
	return &lofamov1.Message{Acks: acks}
}
