package dnpcore

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/golden"
)

// A scenario is a list of commands, each followed by the DNP half's reactions, one per line, indented by two spaces.
//
//	torus DIMS COORD [earlier]    a new DNP half at default periods, or of an earlier version that knows no hops; host
//	                          and neighbours live, links are up
//	hops DIR yes|mute|no      the neighbour there knows hops, and acknowledges, or does not, or knows none
//	mailbox full|empty        the host half's
//	restart                   this half is killed and resumes from its copy, under new sessions
//	again DIR                 the neighbour there sends all its unacknowledged messages again
//	held                      the state of the held messages
//	run DURATION              advance the time
//	stall DURATION OTHERS     nothing on this machine runs: not this half, and not the neighbours and the host half, who
//	                          come back after OTHERS
//	host alive|dead|corrupt
//	window alive|refused|silent   that to the host half's kernel, from now on
//	host ended HOW            the kernel confirms that its process has ended
//	host word none|memory|service-network|peripheral/0    broken in the host word
//	peer DIR alive|dead|host-dead|host-silent|memory|ok|masked|unmasked     the neighbour there: its state and status
//	dead-hosts DIR...         in the fault map, as the host half knows it
//	announce DIR DURATION     the neighbour there, dead, is being restarted and back by then
//	cut DIR in|out|both|none  frames that do not pass
//	lose DIR PERCENT          of incoming frames damaged, evenly
//	drop DIR PERCENT          the same, but the interface drops them unseen
//	interface DIR COUNT       so many damaged frames the link's interface has counted
//	sensor COMPONENT STATE VALUE [CODE CODE CODE CODE]    and the thresholds, as register codes
//	set ADDRESS VALUE         the host half sets a register
//	sensors silent            they do not answer any more
//	up DIR TEXT [LIMIT]       an envelope comes from the neighbour, bound for the supervisors
//	down DIR COORD TEXT       an envelope comes from the neighbour, bound for a node
//	back DIR COORD TEXT       a chunk comes from the neighbour, bound for the gateway there
//	host-back COORD TEXT, own-back COORD TEXT   the same from the host half, from this half
//	dropped                   how many chunks were not passed on
//	bulk NODE                 a pull for the host half of a node turned out to have come down
//	host-up TEXT, host-down COORD TEXT          the same from the host half
//	challenge host|dnp|either, ack host|dnp     a message for this node contained this
//	mask NUMBER 0xBITS        the supervisors' order of the channel mask came down
//	own 0xBITS                the node's own mask
//	disk hangs|goes           states to store are not stored meanwhile
//	exception ADDRESS BITS
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		var w *world
		return golden.Lines(t, text, "  ", func(args []string) ([]string, error) {
			if args[0] == "torus" {
				w = newWorld(t, args[1], args[2], args[3:]...)
			} else {
				w.do(args)
			}
			deeds := w.deeds
			w.deeds = nil
			return deeds, nil
		})
	})
}

// peer is the other end of a link, with a link machine of its own.
type peer struct {
	dir     grid.Direction // of the node under test, to it
	machine *torus.Link
	wake    time.Time
	alive   bool
	status  torus.Status
	in, out bool // frames pass to, from the node under test
	lose    int  // per cent
	drops   bool // the losses are not visible either
	lost    int  // running sum, so that losses are even
	hop     *torus.Hop
	mute    bool     // it acknowledges nothing
	sent    [][]byte // payloads of TypeHop
}

// world is the environment of one DNP half.
type world struct {
	window     halfcore.Window
	t          *testing.T
	now, begun time.Time
	m          *Machine
	wake       time.Time
	peers      []*peer
	host       watchdog.HostWord
	hostAlive  bool
	corrupt    bool
	hostDead   map[grid.Direction]bool // last sent in frames
	hostKnown  map[grid.Direction]bool // the last host word in frames was valid
	maskedAt   map[grid.Direction]bool // last sent in frames
	diskHangs  bool
	diskFull   error     // the disk's answer; nil: it stores
	sensorsAt  time.Time // when the sensors answer next
	deeds      []string
	cfg        Config
	kept       Hops
	mailFull   bool
	sessions   uint32
}

var start = time.Unix(1000, 0)

func newWorld(t *testing.T, dims, at string, options ...string) *world {
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
	w := &world{t: t, now: start, begun: start, hostAlive: true, hostDead: map[grid.Direction]bool{}, hostKnown: map[grid.Direction]bool{},
		maskedAt: map[grid.Direction]bool{}}
	w.cfg = Config{
		Topo: halfcore.NewTopology(fault.DefaultNodeID(c), c, d, nil), Periods: p, MaxHops: 3, LinkGrace: time.Second, Hold: 2 * time.Second,
		RelayRate: 5,
		BulkRate:  10, BulkBurst: 3,
		NoHops: len(options) > 0,
	}
	w.m, err = New(w.cfg, w.now, 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range d.Links() {
		n, _ := d.Neighbour(c, dir)
		lc := w.m.links[dir.Index()].machine.Config()
		lc.Dir, lc.Src, lc.Dst = dir.Opposite(), n, c
		w.peers = append(w.peers, &peer{dir: dir, hop: torus.NewHop(w.m.hopConfig(), 40+uint32(dir)), machine: torus.NewLink(lc, w.now),
			wake: w.now, alive: true, in: true, out: true,
			status: torus.Status{Epoch: 1, Host: watchdog.HostWord{Valid: true}.Encode()}})
	}
	w.step(Tick{})
	w.handshakes()
	w.run(time.Second)
	w.deeds = nil
	return w
}

func (w *world) handshakes() {
	for _, p := range w.peers {
		w.sessions++
		p.machine.Step(w.now, torus.SessionStarted{ID: w.sessions})
		w.step(Session{Dir: p.dir, ID: w.sessions})
	}
}

// restart kills this half and starts it with its copy.
func (w *world) restart() {
	w.cfg.Hops = w.kept
	m, err := New(w.cfg, w.now, 7)
	w.must(err)
	w.m, w.wake = m, w.now
	w.step(Tick{})
	w.handshakes()
}

// keep stores into the copy.
func (w *world) keep(k Keep) {
	if k.Dir.Valid() {
		w.kept.Links[k.Dir.Index()] = k.Bytes
	} else {
		w.kept.Held[k.Slot] = Held{Bytes: k.Bytes}
	}
}

func (w *world) say(format string, args ...any) {
	at := w.now.Sub(w.begun).Round(100 * time.Microsecond)
	w.deeds = append(w.deeds, fmt.Sprintf("%7s ", at)+fmt.Sprintf(format, args...))
}

func (w *world) peer(d grid.Direction) *peer {
	for _, p := range w.peers {
		if p.dir == d {
			return p
		}
	}
	w.t.Fatalf("no link %s", d)
	return nil
}

func (w *world) step(ev Event) { w.apply(w.m.Step(w.now, ev)) }

func (w *world) apply(out Output) {
	w.wake = out.Wake
	frames := append([]Outgoing(nil), out.Frames...)
	for _, k := range out.Keep {
		w.keep(k)
	}
	if out.SaveMask {
		state, _ := w.m.Mask()
		does := "keeps"
		if w.diskFull != nil {
			does = "cannot keep"
		} else {
			w.cfg.Mask = &state
		}
		w.say("%s mask: own %06b, ordered %06b by %d", does, state.OwnWord(), state.Ordered, state.Number)
		if !w.diskHangs {
			defer w.step(MaskKept{State: state, Err: w.diskFull})
		}
	}
	if out.Ring {
		w.say("rings: %s", describe(out.DNP, w.m.descriptor))
	}
	for _, s := range out.Stores {
		if w.now.After(w.begun) {
			w.say("register %s := %#x", s.Addr, s.Value)
		}
	}
	for _, n := range out.Notes {
		if n.Kind == NoteLate {
			w.say("notes: %s", n.Text)
		}
	}
	for _, c := range out.Causes {
		if w.now.After(w.begun) {
			w.say("last cause %s := %#x", c.Dir, c.Value)
		}
	}
	for i := range frames {
		w.transmit(&frames[i])
	}
	for _, msg := range out.ToHost {
		w.say("to host: %s %q%s", msg.Kind, msg.Envelope, hopText(msg))
	}
	for _, h := range append([]HostMail(nil), out.Hand...) {
		if w.mailFull {
			w.step(NotTaken{h.Slot})
			continue
		}
		w.say("to host: %s %q%s", h.Message.Kind, h.Message.Envelope, hopText(h.Message))
	}
	for _, b := range out.Open {
		w.say("opens %q", b)
	}
	for _, s := range out.Seal {
		w.seal(s)
	}
	if out.TakeHost {
		w.step(Host{Taken: true, Sample: watchdog.Sample{Valid: w.hostAlive, Corrupt: w.corrupt}, Word: w.host, Window: w.window})
	}
}

func hopText(m halfcore.Relay) string {
	var s strings.Builder
	for _, h := range m.Hops {
		fmt.Fprintf(&s, " %s/%s", h.Coord, h.Half)
	}
	return s.String()
}

// seal plays the signer: reports and answers come back as short text envelopes.
func (w *world) seal(s Seal) {
	var text string
	switch {
	case s.Answer != nil:
		text = fmt.Sprintf("answer of %s at epoch %d", s.Answer.GetNode(), s.Answer.GetEpoch())
	case s.Order != nil:
		st := s.Order.GetMaskStatus()
		text = fmt.Sprintf("mask %d ordered %06b own %06b in force %06b lost %t", st.GetNumber(), st.GetOrdered(), st.GetOwn(),
			st.GetInForce(), st.GetLost())
	default:
		text = fmt.Sprintf("report %d attempt %d", s.Reports[0].ID.Seq, s.Attempt)
		if s.Reports[0].Digest {
			text = fmt.Sprintf("digest %d attempt %d", s.Reports[0].ID.Seq, s.Attempt)
		}
		if s.Attempt == 1 {
			for _, o := range s.Reports[0].Observations {
				by := o.Kind.String()
				if o.Ended {
					by += " (ended)"
				}
				w.say("    says %s %s by %s, %s old", o.Component, o.State, by, o.Age.Round(time.Millisecond))
			}
		}
	}
	w.step(Sealed{Envelope: []byte(text), Seal: s})
}

// transmit carries a frame to the neighbour, and prints a line for a message or a change of the host's state.
func (w *world) transmit(o *Outgoing) {
	if dead := o.Frame.Flags&torus.FlagHostDead != 0; dead != w.hostDead[o.Dir] {
		w.hostDead[o.Dir] = dead
		w.say("tells %s: host dead %t", o.Dir, dead)
	}
	switch known := o.Frame.Host&watchdog.ValidBit != 0; {
	case !known && w.hostKnown[o.Dir]:
		w.say("tells %s: host not known", o.Dir)
		w.hostKnown[o.Dir] = false
	case known:
		w.hostKnown[o.Dir] = true
	}
	if masked := o.Frame.Flags&torus.FlagMasked != 0; masked != w.maskedAt[o.Dir] {
		w.maskedAt[o.Dir] = masked
		w.say("tells %s: masked %t", o.Dir, masked)
	}
	if o.Frame.Type == torus.TypeMessage {
		m, err := halfcore.DecodeRelay(o.Frame.Payload)
		if err != nil {
			w.t.Fatal(err)
		}
		w.say("to %s: %s %q hop %d of %d%s", o.Dir, m.Kind, m.Envelope, m.Made, m.Limit, hopText(m))
	}
	if o.Frame.Type == torus.TypeHop {
		w.hop(o)
	}
	if p := w.peer(o.Dir); p.alive && p.out {
		p.machine.Step(w.now, torus.FrameReceived{Frame: o.Frame})
	}
}

// hop carries a frame of TypeHop to the neighbour. The neighbour acknowledges at the next tick of its link, in a frame
// of its own, because an acknowledgement cannot arrive within the same step.
func (w *world) hop(o *Outgoing) {
	hd, b, err := torus.DecodeHop(o.Frame.Payload)
	w.must(err)
	p := w.peer(o.Dir)
	if hd.Stream == 0 {
		w.say("acknowledges to %s: %d taken %b", o.Dir, hd.Ack, hd.Taken)
	} else {
		m, err := halfcore.DecodeRelay(b)
		w.must(err)
		w.say("to %s: %s %q hop %d of %d%s, number %d on %d", o.Dir, m.Kind, m.Envelope, m.Made, m.Limit, hopText(m), hd.Number, hd.Base)
	}
	if !p.alive || !p.out || p.mute {
		return
	}
	for _, ok := p.hop.Acked(hd); ok; _, ok = p.hop.Acked(hd) {
	}
	if hd.Stream != 0 && p.hop.Receive(hd) == torus.HopNew {
		p.hop.Take(hd.Number)
	}
}

// describe lists the abnormal fields of the words.
func describe(w watchdog.DNPWord, d watchdog.DescriptorWord) string {
	var out []string
	add := func(name string, h watchdog.Health) {
		if h != watchdog.HealthNormal {
			out = append(out, name+" "+h.String())
		}
	}
	add("core", w.Core)
	add("temperature", w.Temperature)
	add("power", w.Power)
	add("voltage", w.Voltage)
	for i, dir := range grid.Directions() {
		add("link "+dir.String(), w.Links[i])
		if w.NeighbourHostFailed[i] {
			out = append(out, fmt.Sprintf("neighbour %s fails %+v", dir, d.Neighbours[i]))
		}
	}
	if out == nil {
		return "all normal"
	}
	return strings.Join(out, ", ")
}

func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for {
		next := w.wake
		for _, p := range w.peers {
			if p.alive && p.wake.Before(next) {
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
		for _, p := range w.peers {
			if p.alive && !p.wake.After(w.now) {
				w.tickPeer(p)
			}
		}
		if !w.sensorsAt.After(w.now) {
			w.sensorsAt = w.now.Add(500 * time.Millisecond)
			w.step(Readings{})
		}
		if !w.wake.After(w.now) {
			w.step(Tick{})
		}
	}
}

// stall lets this half run again after own, and all others after that time.
func (w *world) stall(own, others time.Duration) {
	end := w.now.Add(others)
	for _, p := range w.peers {
		p.wake = end
	}
	w.hostAlive, w.now = false, w.now.Add(own)
	w.step(Tick{})
	w.run(end.Sub(w.now))
	w.hostAlive = true
}

func (w *world) tickPeer(p *peer) {
	out := p.machine.Step(w.now, torus.Tick{})
	p.wake = out.Wake
	if out.SendHeartbeat {
		w.receive(p, p.machine.NextFrame(p.status))
		if p.status.Hops && !p.mute {
			w.frame(p, torus.TypeHop, p.hop.Ack().Append(nil))
		}
	}
}

// receive delivers a neighbour's frame, if it passes.
func (w *world) receive(p *peer, f torus.Frame) {
	if !p.in {
		return
	}
	if p.lost += p.lose; p.lost >= 100 {
		p.lost -= 100
		if p.drops {
			return
		}
		w.step(Bad{Dir: p.dir, Kind: torus.BadCRC, Count: 1})
		return
	}
	w.step(&Frame{Dir: p.dir, Frame: f})
}

func (w *world) message(p *peer, m halfcore.Relay) {
	b, err := m.Append(nil)
	w.must(err)
	if p.status.Hops {
		hd, _ := p.hop.Send(w.now, 0)
		p.sent = append(p.sent, append(hd.Append(nil), b...))
		w.frame(p, torus.TypeHop, p.sent[len(p.sent)-1])
		return
	}
	w.frame(p, torus.TypeMessage, b)
}

func (w *world) frame(p *peer, t torus.FrameType, payload []byte) {
	f := torus.Frame{Type: t, Payload: payload}
	p.machine.Fill(&f)
	w.receive(p, f)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) coord(s string) grid.Coord {
	c, err := grid.ParseCoord(s)
	w.must(err)
	return c
}

func (w *world) peerOf(s string) *peer {
	d, err := grid.ParseDirection(s)
	w.must(err)
	return w.peer(d)
}

func (w *world) do(args []string) {
	w.t.Helper()
	switch args[0] {
	case "run":
		d, err := time.ParseDuration(args[1])
		w.must(err)
		w.run(d)
	case "stall":
		own, err := time.ParseDuration(args[1])
		w.must(err)
		others, err := time.ParseDuration(args[2])
		w.must(err)
		w.stall(own, others)
	case "host":
		w.setHost(args[1:])
	case "peer":
		w.setPeer(w.peerOf(args[1]), args[2])
	case "hops":
		p := w.peerOf(args[1])
		p.status.Hops, p.mute = args[2] != "no", args[2] == "mute"
		w.receive(p, p.machine.NextFrame(p.status))
	case "mailbox":
		w.mailFull = args[1] == "full"
	case "restart":
		w.restart()
	case "again":
		p := w.peerOf(args[1])
		for _, b := range p.sent {
			w.frame(p, torus.TypeHop, b)
		}
	case "held":
		w.say("%+v", w.m.HopStats())
	case "announce":
		p := w.peerOf(args[1])
		d, err := time.ParseDuration(args[2])
		w.must(err)
		w.receive(p, torus.RestartingFrame(p.machine.NextFrame(p.status), torus.Restarting{Back: d, Attempt: 1}))
	case "cut":
		p := w.peerOf(args[1])
		p.in, p.out = args[2] == "out" || args[2] == "none", args[2] == "in" || args[2] == "none"
	case "lose", "drop":
		p := w.peerOf(args[1])
		p.drops = args[0] == "drop"
		_, err := fmt.Sscan(args[2], &p.lose)
		w.must(err)
	case "interface":
		bad := Bad{Dir: w.peerOf(args[1]).dir, Kind: torus.BadInterface}
		_, err := fmt.Sscan(args[2], &bad.Count)
		w.must(err)
		w.step(bad)
	case "sensor":
		w.sensor(args[1:])
	case "set":
		var v Store
		_, err := fmt.Sscan(args[1]+" "+args[2], &v.Addr, &v.Value)
		w.must(err)
		w.step(Set{[]Store{v}})
	case "sensors":
		w.sensorsAt = w.now.Add(time.Hour)
	case "up":
		m := halfcore.Relay{Kind: halfcore.RelayUp, Limit: 9, Made: 1, Envelope: []byte(args[2]),
			Hops: []halfcore.RelayHop{{Half: fault.HalfDNP}}}
		if len(args) > 3 {
			_, err := fmt.Sscan(args[3], &m.Limit)
			w.must(err)
		}
		w.message(w.peerOf(args[1]), m)
	case "down":
		w.message(w.peerOf(args[1]), halfcore.Relay{Kind: halfcore.RelayDown, Limit: 9, Made: 1, Dst: w.coord(args[2]),
			Envelope: []byte(args[3])})
	case "window":
		w.window.State = map[string]watchdog.WindowState{
			"alive": watchdog.WindowAlive, "refused": watchdog.WindowRefused, "silent": watchdog.WindowSilent,
			"claimed": watchdog.WindowClaimed,
		}[args[1]]
		w.window.Silence = 70 * time.Millisecond
	case "dead-hosts":
		var ev DeadHosts
		for _, d := range args[1:] {
			ev.Dead[w.peerOf(d).dir.Index()] = true
		}
		w.step(ev)
	case "host-up":
		w.step(FromHost{Message: halfcore.Relay{Kind: halfcore.RelayUp, Envelope: []byte(args[1])}})
	case "host-down":
		w.step(FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: w.coord(args[1]), Envelope: []byte(args[2])}})
	case "back":
		w.message(w.peerOf(args[1]), halfcore.Relay{Kind: halfcore.RelayBack, Limit: 9, Made: 1, Dst: w.coord(args[2]),
			Envelope: []byte(args[3])})
	case "host-back":
		w.step(FromHost{Message: halfcore.Relay{Kind: halfcore.RelayBack, Dst: w.coord(args[1]), Envelope: []byte(args[2])}})
	case "own-back":
		w.step(Back{halfcore.Relay{Kind: halfcore.RelayBack, Dst: w.coord(args[1]), Envelope: []byte(args[2])}})
	case "bulk":
		w.step(Opened{servicenet.Opened{
			Role: servicenet.RoleSupervisor, Name: "sup-0", Raw: []byte("raw pull"),
			Msg: &lofamov1.Message{Body: &lofamov1.Message_BulkPull{BulkPull: &lofamov1.BulkPull{Node: args[1], Half: lofamov1.Half_HALF_HOST}}},
		}})
	case "dropped":
		w.say("back messages dropped: %d", w.m.BulkDropped())
	case "mask":
		o := &lofamov1.MaskOrder{Node: string(w.m.self)}
		_, err := fmt.Sscan(args[1]+" "+args[2], &o.Number, &o.Mask)
		w.must(err)
		if len(args) > 3 { // "epoch N", or "epoch unknown": from a supervisor of this version
			if o.EpochUnknown = args[4] == "unknown"; !o.GetEpochUnknown() {
				_, err := fmt.Sscan(args[4], &o.Epoch)
				w.must(err)
			}
		}
		w.step(Opened{servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0", Raw: []byte("raw mask"),
			Msg: &lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: o}}}})
	case "disk":
		hung := w.diskHangs
		w.diskHangs, w.diskFull = args[1] == "hangs", nil
		if args[1] == "full" {
			w.diskFull = syscall.ENOSPC
		}
		if state, _ := w.m.Mask(); hung && !w.diskHangs {
			w.step(MaskKept{State: state, Err: w.diskFull})
		}
	case "own":
		var bits uint8
		_, err := fmt.Sscan(args[1], &bits)
		w.must(err)
		w.step(OwnMask{chanmask.Mask(bits)})
	case "challenge", "ack":
		w.opened(args[0], args[1])
	case "exception":
		var a watchdog.Addr
		var bits uint32
		_, err := fmt.Sscanf(args[1]+" "+args[2], "%v %v", &a, &bits)
		w.must(err)
		w.step(Exception{Register: a, Bits: bits})
	default:
		w.t.Fatalf("unknown command %v", args)
	}
}

func (w *world) setHost(args []string) {
	if args[0] != "word" {
		w.hostAlive, w.corrupt = args[0] == "alive", args[0] == "corrupt"
		if args[0] == "ended" {
			w.step(Ended{How: strings.Join(args[1:], " "), Age: 2 * time.Millisecond})
		}
		return
	}
	w.host = watchdog.HostWord{Valid: true}
	switch args[1] {
	case "memory":
		w.host.Memory = watchdog.HealthBroken
	case "service-network":
		w.host.ServiceNetwork = watchdog.HealthBroken
	case "peripheral/0":
		w.host.Peripheral0 = watchdog.HealthBroken
	}
	w.step(Host{Word: w.host}) // the doorbell
}

func (w *world) setPeer(p *peer, what string) {
	switch what {
	case "alive", "dead":
		p.alive, p.wake = what == "alive", w.now
		return
	case "host-dead":
		p.status.HostDead = true
	case "host-silent":
		p.status.HostDead, p.status.Host = false, watchdog.HostWord{Memory: watchdog.HealthBroken}.Encode()
	case "memory":
		p.status.Host = watchdog.HostWord{Valid: true, Memory: watchdog.HealthBroken}.Encode()
	case "masked", "unmasked":
		p.status.Masked = what == "masked"
	case "ok":
		p.status.HostDead, p.status.Host = false, watchdog.HostWord{Valid: true}.Encode()
	default:
		w.t.Fatalf("unknown peer %q", what)
	}
	w.receive(p, p.machine.NextFrame(p.status))
}

func (w *world) sensor(args []string) {
	c, err := fault.ParseComponent(args[0])
	w.must(err)
	s, err := fault.ParseState(args[1])
	w.must(err)
	r := Reading{Component: c, State: s}
	_, err = fmt.Sscan(args[2], &r.Value)
	w.must(err)
	if len(args) > 3 {
		t := &watchdog.Thresholds{}
		_, err := fmt.Sscan(strings.Join(args[3:], " "), &t.AlarmLow, &t.WarnLow, &t.WarnHigh, &t.AlarmHigh)
		w.must(err)
		r.Thresholds = t
	}
	w.step(Readings{[]Reading{r}})
}

func (w *world) opened(kind, half string) {
	h := map[string]lofamov1.Half{"host": lofamov1.Half_HALF_HOST, "dnp": lofamov1.Half_HALF_DNP, "either": 0}[half]
	node := string(w.m.self)
	o := servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0", Raw: []byte("raw " + kind)}
	if kind == "challenge" {
		o.Msg = &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{Nonce: make([]byte, 16), Node: node, Half: h}}}
	} else {
		for seq := uint64(1); seq <= 9; seq++ {
			for _, st := range []lofamov1.Ack_Status{lofamov1.Ack_RECEIVED, lofamov1.Ack_COMMITTED} {
				o.Msg = &lofamov1.Message{Acks: []*lofamov1.Ack{{Status: st, Node: node, Half: h, Epoch: 7, Seqs: []uint64{seq}}}}
				w.step(Opened{o})
			}
		}
		return
	}
	w.step(Opened{o})
}
