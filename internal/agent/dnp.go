package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/backup"
	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/iferrors"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/maskfile"
	"github.com/lofamo/lofamo/internal/agent/notify"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/torusrail"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
)

// dnpHalf is the shell of the DNP Fault Manager.
type dnpHalf struct {
	common
	page    *page
	box     *mailbox.Box
	links   [grid.NumDirections]*udplink.Link // nil where the torus has none
	sources []sensor.Source

	mu       sync.Mutex // the half's one mutex: see the package comment
	core     *dnpcore.Machine
	fares    fares
	tests    *prober
	readers  readers
	alarm    *alarm
	bulk     *dnpBulk
	keys     [grid.NumDirections]torus.Keyring
	frame    dnpcore.Frame // of the packet under way: handed over by pointer, never kept
	packet   []byte        // being sent
	mail     mailbox.Stats // at the last look
	mailFull bool          // and something had been dropped since the one before
	lookAt   time.Time     // at the mailbox' counters
	spanAt   time.Time     // when the host half is told the certificate's begin and end

	jobMail  jobMail
	masks    newest[chanmask.State]    // to keep on disk
	words    newest[peers.State]       // of the peers, likewise
	judges   newest[dnpcore.JudgeData] // to verify
	acting   acting                    // orders to act
	kept     keptMask
	linkCopy linkCopy
	held     heldMessages
	ifErrors [grid.NumDirections]uint64 // of the links' interfaces, as told to the machine
}

// RunDNP runs the DNP half until ctx ends. It returns nil then, and an error when something that it
// needs cannot be had.
func RunDNP(ctx context.Context, cfg config.Agent, log *slog.Logger) (err error) {
	c, err := prepare(cfg, fault.HalfDNP, log)
	if err != nil {
		return fmt.Errorf("DNP half: %w", err)
	}
	d := &dnpHalf{common: c, alarm: newAlarm(), packet: make([]byte, 0, cfg.MTU), masks: make(newest[chanmask.State], 1), words: make(newest[peers.State], 1), judges: make(newest[dnpcore.JudgeData], 1), acting: newActing()}
	d.tests = newProber(ctx, &d.common)
	post := newDNPPost(d)
	d.trust.carry, d.trust.renewals.send = post.look, post.send
	var open closers
	defer func() { err = errors.Join(err, open.close()) }()
	d.manager = notify.New(d.log)
	defer func() { _ = d.manager.Close() }() // a manager that hangs does not keep the half from ending
	if err := d.open(&open); err != nil {
		return fmt.Errorf("DNP half of %s: %w", cfg.Node, err)
	}
	d.log.Info("DNP half runs", "epoch", d.core.Epoch(), "links", len(d.topo.Links), "platform", d.cfg.Platform)
	d.manager.Ready()
	if err := d.serve(ctx); err != nil {
		return fmt.Errorf("DNP half of %s: %w", cfg.Node, err)
	}
	return nil
}

// open takes everything that may be refused, the lock on the register file first.
func (d *dnpHalf) open(cs *closers) error {
	var err error
	if d.page, err = openPage(d.statePath(RegisterFile), d.half, d.log); err != nil {
		return err
	}
	cs.add(func() error { return d.page.file.Close() })
	d.openCopy(cs)
	d.linkCopy.resume, d.linkCopy.sessions = d.copy.links()
	if d.copy.numbers.Epoch != 0 {
		d.linkCopy.resume.Sensors = d.page.lastSensed()
	}
	if d.box, err = mailbox.Open(d.cfg.StateDir, d.half); err != nil {
		return err
	}
	cs.add(d.box.Close)
	failpoint.Hit(failpoint.StartOpened)
	for _, dir := range d.topo.Links {
		l, err := d.listen(dir)
		if err != nil {
			return err
		}
		d.links[dir.Index()] = l
		cs.add(l.Close)
	}
	if d.sources, err = d.dnpSources(); err != nil {
		return err
	}
	e, err := d.beginEpoch()
	if err != nil {
		return err
	}
	d.page.setEpoch(e)
	if d.bulk, err = newDNPBulk(d, time.Now()); err != nil {
		return err
	}
	d.page.history = d.bulk.history
	return d.begin(e, d.openKeeper(cs))
}

func (d *dnpHalf) listen(dir grid.Direction) (*udplink.Link, error) {
	addr := d.cfg.Links[dir.String()]
	local, err := netip.ParseAddrPort(addr.Local)
	if err != nil {
		return nil, fmt.Errorf("link %s: local address: %w", dir, err)
	}
	peer, err := netip.ParseAddrPort(addr.Peer)
	if err != nil {
		return nil, fmt.Errorf("link %s: peer address: %w", dir, err)
	}
	tls, err := pki.LinkTLS(d.signer, d.cfg.TLS.CA, d.trust.registry)
	if err != nil {
		return nil, err
	}
	node, _ := d.cfg.PeerNode(dir)
	dst, _ := d.topo.Dims.Neighbour(d.topo.Coord, dir)
	return udplink.Listen(udplink.Config{
		Dir: dir, Src: d.topo.Coord, Dst: dst, Local: local, Peer: peer, Interface: addr.Interface, Dialer: dir.Positive(),
		Socket: inherited(dir, local), Resumed: d.linkCopy.resume.Has[dir.Index()], SessionAge: d.copy.file.SessionAge(dir),
		TLS: tls, VerifyPeer: pki.VerifyPeerIdentity(pki.NodeIdentity(d.cfg.Cluster, node, fault.HalfDNP)),
		MTU: d.cfg.MTU, Logger: d.log,
	})
}

// begin starts the machine and steps it at the same moment, so that all its periods begin together
// and share their wake-ups.
func (d *dnpHalf) begin(e fault.Epoch, kept []servicenet.Kept) error {
	failpoint.Hit(failpoint.StartRestored)
	algorithm, err := routing.Parse(d.cfg.Routing)
	if err != nil {
		return err
	}
	mask, lost := maskfile.Load(d.statePath(maskfile.Name))
	if lost != nil {
		d.log.Error("channel mask lost: all channels are usable at this end until the supervisors have spoken", "err", lost)
	}
	now := inStep(d.periods.TWrite)
	d.mu.Lock()
	defer d.mu.Unlock()
	core, err := dnpcore.New(dnpcore.Config{
		Topo: d.topo, Periods: d.periods, MaxHops: d.maxHops(), Kept: kept, Resume: d.linkCopy.resume,
		SelfTest: d.selfTest(), MaxFrame: d.cfg.MTU, Hops: d.resumeHops(), Express: d.resumeExpress(),
		Routing: algorithm, Seed: randomSeed(),
		Mask: &mask, MaskLost: lost != nil, Masked: d.cfg.Masked(), Peers: d.peers,
		Procedure: dnpcore.ProcedureConfig{OnEvidence: d.cfg.Procedure.Start == config.ProcedureOnEvidence, MaskDead: d.cfg.Procedure.MaskDead},
	}, now, e)
	if err != nil {
		return err
	}
	for i, s := range d.linkCopy.sessions {
		if s != nil {
			d.keys[i].Add(now, s)
			d.linkCopy.stored[i] = d.linkCopy.resume.Links[i]
		}
	}
	d.core, d.fares.results = core, core.SelfTest().Results
	if lost == nil {
		d.kept.state = mask
	}
	d.tests.begin(d.testResults)
	d.fares.wentOn(d.copy.file.Cold())
	if half, known := given(); known != nil {
		d.do(now, core.Step(now, dnpcore.Health{Half: half, Health: known}))
	}
	d.apply(now, core.Step(now, dnpcore.Tick{}))
	failpoint.Hit(failpoint.StartServing)
	failpoint.Live("dnp", d.core, &d.mu)
	return nil
}

// serve runs the links, the readers and the timer until ctx ends or one of them fails.
func (d *dnpHalf) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.ring(ctx); return nil })
	g.Go(func() error { d.trust.run(ctx, d.trustChanged); return nil })
	g.Go(func() error {
		d.masks.run(ctx, d.keepMask, func(s chanmask.State) { d.step(dnpcore.MaskKept{State: s}) })
		return nil
	})
	g.Go(func() error {
		d.words.run(ctx, d.keepPeers, func(s peers.State) { d.step(dnpcore.PeersKept{State: s}) })
		return nil
	})
	g.Go(func() error { openAll(ctx, d.judges, d.openData, d.step); return nil })
	g.Go(func() error { d.serveMask(ctx); return nil })
	g.Go(func() error { d.acting.run(ctx, d.cfg.StateDir); return nil })
	g.Go(func() error { return d.box.Run(ctx, d.onMail) })
	g.Go(func() error { return d.bulk.server.Run(ctx) })
	g.Go(func() error {
		d.tests.run(ctx, func(ev selftest.Event) { d.step(dnpcore.Test{Event: ev}) })
		return nil
	})
	g.Go(func() error { return sensor.NewSet(d.sources).Run(ctx, d.periods.SensorPeriod, d.onReadings) })
	for _, l := range d.links {
		if l != nil {
			g.Go(func() error { return l.Run(ctx, d) })
		}
	}
	if d.cfg.Injection {
		g.Go(func() error { return serveUnix(ctx, d.statePath(DNPInjectSock), d.injectHandler()) })
	}
	return g.Wait()
}

// dnpSources are the sensors, and the error counters of the interfaces that links are bound to.
func (d *dnpHalf) dnpSources() ([]sensor.Source, error) {
	out, err := sensor.DNPSources(d.cfg.Sensors)
	if err != nil {
		return nil, err
	}
	for _, dir := range d.topo.Links {
		if name := d.cfg.Links[dir.String()].Interface; name != "" {
			out = append(out, iferrors.New(d.cfg.Sensors.Sysfs, name, dir))
		}
	}
	return out, nil
}

// ring is the timer's goroutine.
func (d *dnpHalf) ring(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			d.manager.Stopping()
			return
		case <-d.alarm.timer.C:
			d.mu.Lock()
			now := time.Now()
			d.alarm.rang()
			d.maintain(now)
			d.apply(now, d.core.Step(now, dnpcore.Tick{}))
			d.noteProven(d.page, d.core.SelfTest().Proving())
			d.mu.Unlock()
			d.manager.Round(now)
		}
	}
}

// maintain does once a second what no event tells of.
func (d *dnpHalf) maintain(now time.Time) {
	if d.page.maintain(now) {
		d.log.Info("register file mended")
		d.do(now, d.core.Step(now, dnpcore.Refresh{}))
	}
	d.maintainCopy(now)
	if now.Before(d.lookAt) {
		return
	}
	d.lookAt = now.Add(checkEvery)
	d.lookAtFares(now)
	d.trust.wake()
	d.publishCounters(now)
	d.tellDropped(now)
	if ev, changed := d.spoolState(); changed {
		d.do(now, d.core.Step(now, dnpcore.Hint{Event: ev}))
	}
	for i := range d.keys {
		d.keys[i].Expire(now)
	}
	s := d.box.Stats()
	var bits uint32
	full := s.DroppedFull > d.mail.DroppedFull
	if full && d.mailFull { // a burst, as at the start, is not a host half that does not empty its mailbox
		bits |= watchdog.RDMAMailboxFull
	}
	d.mailFull = full
	if s.Bad > d.mail.Bad {
		bits |= watchdog.RDMAMailboxBad
	}
	d.mail = s
	if bits != 0 {
		d.do(now, d.core.Step(now, dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: bits}))
	}
}

// step gives the machine an event that comes from elsewhere than the timer.
func (d *dnpHalf) step(ev dnpcore.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.apply(now, d.core.Step(now, ev))
}

// OnPacket handles a packet. It is the path of every heartbeat, and allocates nothing.
func (d *dnpHalf) OnPacket(dir grid.Direction, b []byte) {
	r := &d.readers.ways[dir.Index()]
	r.begin()
	defer r.end()
	for range failpoint.Packet(failpoint.LinkReceive, b) {
		d.onPacket(dir, b)
	}
}

func (d *dnpHalf) onPacket(dir grid.Direction, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	keys := &d.keys[dir.Index()]
	f, err := torus.Decode(b, d.cfg.MTU, keys)
	if err != nil {
		d.apply(now, d.core.Step(now, dnpcore.Bad{Dir: dir, Kind: torus.KindOf(err), Count: 1}))
		return
	}
	keys.Confirm(f.Session)
	d.frame.Dir, d.frame.Frame = dir, f
	d.apply(now, d.core.Step(now, &d.frame))
}

// OnSession takes the keys of a handshake.
func (d *dnpHalf) OnSession(dir grid.Direction, s *torus.Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.links[dir.Index()].Outdated(s) {
		return // with whom was there before
	}
	now := time.Now()
	d.keys[dir.Index()].Add(now, s)
	d.storeSession(dir, s)
	d.apply(now, d.core.Step(now, dnpcore.Session{Dir: dir, ID: s.ID()}))
}

// apply does what an output says, and all that follows from it. It runs under the mutex.
func (d *dnpHalf) apply(now time.Time, out dnpcore.Output) {
	d.do(now, out)
	if k := &d.jobMail; len(k.waiting) > 0 && k.again.Before(d.alarm.wake) {
		d.alarm.wake = k.again
	}
	d.alarm.set(now)
}

// do is apply but for the alarm, which is set once all is done. Frames and redials come before
// anything that steps the machine again, for they are the machine's own.
func (d *dnpHalf) do(now time.Time, out dnpcore.Output) {
	d.alarm.wake = out.Wake
	d.carryOut(out.Effects, backup.Numbers{OutboxSnapshot: d.core.Numbers(), Express: d.core.ExpressNumber()}, d.page)
	if out.SaveMask {
		state, _ := d.core.Mask()
		d.masks.put(state)
	}
	for _, dir := range out.Repeer {
		d.goOver(dir)
	}
	if out.SavePeers {
		d.words.put(d.core.Peers())
	}
	if out.Drains {
		d.publishCounters(now)
	}
	d.storeLinks()
	d.keepHops(out.Keep)
	d.keepExpress(&out)
	if out.Tested {
		d.tellTests(now)
	}
	if out.SaveTests {
		d.saveTests(d.core.SelfTest().Snapshot(nil))
	}
	d.write(now, &out)
	for _, dir := range out.Redial {
		d.links[dir.Index()].Redial()
	}
	d.sendFrames(now, out.Frames)
	d.tellJobs(now, &out)
	d.logNotes(out.Notes)
	for _, t := range out.TestMail {
		d.sendTest(t)
	}
	for _, m := range out.ToHost {
		_ = sendMail(d.box, m, d.log)
	}
	d.hand(now, out.Hand)
	for _, p := range out.Probes {
		d.carry(now, p)
	}
	for _, s := range out.Seal {
		if b, err := d.seal(s); err != nil {
			d.log.Error("message not sent", "err", err)
		} else {
			d.do(now, d.core.Step(now, dnpcore.Sealed{Envelope: b, Seal: s}))
		}
	}
	for _, b := range out.Open {
		if o, err := servicenet.Open(b, d.verifier); err != nil {
			d.log.Debug("message refused", "err", err)
			if servicenet.IsDamaged(err) {
				d.do(now, d.core.Step(now, dnpcore.Hint{Event: servicenet.Damaged{Path: fault.PathTorus}}))
			}
		} else {
			d.bulk.take(o)
			d.acting.hear(o.Msg)
			d.do(now, d.core.Step(now, dnpcore.Opened{Opened: o}))
		}
	}
	for _, j := range out.Judge {
		d.judges.put(j)
	}
	d.toAct(out.Acts)
	if out.TakeHost {
		d.do(now, d.core.Step(now, d.page.readHost(now, true)))
	}
}

// write puts registers and words into the page, the words last: who finds a word finds what
// explains it.
func (d *dnpHalf) write(now time.Time, out *dnpcore.Output) {
	d.page.writeDNP(now, out)
	if out.Ring {
		_ = d.page.file.CountDoorbell() // for people to look at
		_ = d.box.Ring()                // the host half reads every TRead anyway
	}
}

func (d *dnpHalf) sendFrames(now time.Time, frames []dnpcore.Outgoing) {
	var failed [grid.NumDirections]bool
	for i := range frames {
		o := &frames[i]
		d.testFrame(o)
		b, err := o.Frame.Append(d.packet[:0], &d.keys[o.Dir.Index()])
		if err == nil {
			for range failpoint.Packet(failpoint.LinkSend, b) {
				err = d.links[o.Dir.Index()].Send(b)
			}
		}
		failed[o.Dir.Index()] = failed[o.Dir.Index()] || err != nil
	}
	for i, dir := range grid.Directions() {
		if failed[i] {
			d.do(now, d.core.Step(now, dnpcore.Exception{Register: watchdog.AddrChannel(dir), Bits: watchdog.ChannelSend}))
		}
	}
}

// onMail handles what the host half says: a doorbell, or an envelope for the torus.
func (d *dnpHalf) onMail(m mailbox.Message) {
	d.readers.mail.begin()
	defer d.readers.mail.end()
	for range failpoint.Packet(failpoint.MailReceive, m.Payload) {
		d.onMessage(m)
	}
}

func (d *dnpHalf) onMessage(m mailbox.Message) {
	switch m.Type {
	case mailbox.Doorbell:
		d.mu.Lock()
		defer d.mu.Unlock()
		now := time.Now()
		d.apply(now, d.core.Step(now, d.page.readHost(now, false)))
	case mailbox.Jobs:
		d.onJobs(m.Payload)
	case mailbox.Test:
		echo, data := testMail(m)
		d.step(dnpcore.TestMail{Echo: echo, Data: data})
	case mailbox.Envelope:
		msg, held, err := torusrail.ReadMail(m.Payload, monotonic())
		if err != nil {
			d.step(dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: watchdog.RDMAMailboxBad})
			return
		}
		d.step(dnpcore.FromHost{Message: msg, Held: held})
	case mailbox.Recovery, mailbox.Health:
		if half, h := heard(m, fault.HalfHost); h != nil {
			d.step(dnpcore.Health{Half: half, Health: h})
		}
	default: // of a later version
	}
}
