// Package dnp is the DNP half of a node, the paper's DNP Fault Manager: the shell that runs the pure machine of
// dnpcore.
//
// A half is one machine behind one mutex. Each event source (the timer, a socket reader, the sensors) takes the mutex,
// steps the machine, carries out its output and releases the mutex. So a packet costs no hand-over to another
// goroutine, and all steps are serial. Nothing under the mutex blocks except the boot epoch's rare fsync. All periodic
// work uses one timer.
//
// The shell decides nothing: the machine owns states and reports, and pkg/torus owns links. Start reading at Run.
package dnp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
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

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// dnpHalf is the shell of the DNP Fault Manager.
type dnpHalf struct {
	half.Common
	page   *half.Page
	window *half.Window // nil: both halves have one kernel
	box    *mailbox.Box
	ended  half.EndedChecks              // of the host half's process; the mailbox' goroutine alone uses it
	denied map[pki.Identity][]pki.Denial // that the link sessions are known not to rest on. Only trustChanged uses it
	judged bool                          // trustChanged has run; only it uses this
	// links are nil where the node never had one, and where one could not be opened: see openMissing. One that leads nowhere any more stays,
	// without a peer. Guarded by mu.
	links   [grid.NumDirections]*udplink.Link
	linkTLS *tls.Config         // of all links: one that appears while the half runs is opened without the disk
	runLink func(*udplink.Link) // runs a link that appears while the half runs
	// unopened has the error of each link that could not be opened or connected with its new peer.
	unopened [grid.NumDirections]error
	sources  []sensor.Source

	mu         half.Guard // the half's one mutex: see the package comment
	core       *dnpcore.Machine
	halfStatus half.Status
	tests      *half.Prober
	readers    half.Readers
	alarm      *half.Alarm
	next       []dnpcore.Event // events that follow from the current output
	takeHost   bool            // the current output wants the host words read
	bulk       *dnpBulk
	keys       [grid.NumDirections]torus.Keyring
	frame      dnpcore.Frame // of the current packet: passed by pointer, never kept
	packet     []byte        // being sent
	quiet      quietFrames
	mail       mailbox.Stats // at the last look
	mailFull   bool          // messages had been dropped since the look before
	spanAt     time.Time     // when to send the certificate's validity to the host half

	jobMail  jobMail
	masks    newest[chanmask.State]    // to keep on disk
	words    newest[peers.State]       // peer states to keep on disk
	judges   newest[dnpcore.JudgeData] // to verify
	acting   half.Actions              // orders to act
	plain    plainOrders
	kept     keptMask
	linkCopy linkCopy
	held     heldMessages
	ifErrors [grid.NumDirections]uint64 // of the links' interfaces, as reported to the machine
}

// Run runs the DNP half until ctx ends, and then returns nil. It returns an error when a resource that it needs is
// unavailable.
func Run(ctx context.Context, cfg config.Agent, s half.Scheduling, log *slog.Logger) error {
	return run(ctx, cfg, s, log, nil)
}

// With returns a Run for a half with these options.
func With(options ...Option) func(ctx context.Context, cfg config.Agent, s half.Scheduling, log *slog.Logger) error {
	return func(ctx context.Context, cfg config.Agent, s half.Scheduling, log *slog.Logger) error {
		return run(ctx, cfg, s, log, options)
	}
}

func run(ctx context.Context, cfg config.Agent, s half.Scheduling, log *slog.Logger, options []Option) (err error) {
	c, err := half.Prepare(cfg, fault.HalfDNP, log)
	if err != nil {
		return fmt.Errorf("DNP half: %w", err)
	}
	d := &dnpHalf{Common: c, packet: make([]byte, 0, cfg.MTU), masks: make(newest[chanmask.State], 1),
		words: make(newest[peers.State], 1), judges: make(newest[dnpcore.JudgeData], 1), acting: half.NewActions(),
		plain: newPlainOrders(options)}
	d.halfStatus.NotRealtime = half.LacksRealtime(s, d.Config.Preset)
	d.tests = half.NewProber(ctx, &d.Common)
	post := newDNPPost(d)
	d.Trust.Carry, d.Trust.Renewals.Send = post.look, post.send
	var open half.Closers
	defer func() { err = errors.Join(err, open.Close()) }()
	d.Manager = sdnotify.New(d.Log)
	defer func() { _ = d.Manager.Close() }() // a manager that hangs must not keep the half from ending
	if err := d.open(&open); err != nil {
		return fmt.Errorf("DNP half of %s: %w", cfg.Node, err)
	}
	d.Log.Info("DNP half runs", "epoch", d.core.Epoch(), "links", len(d.Topo.Links), "platform", d.window.PlatformName())
	d.Manager.Ready()
	if err := d.serve(ctx); err != nil {
		return fmt.Errorf("DNP half of %s: %w", cfg.Node, err)
	}
	return nil
}

// open acquires every resource that may be refused, starting with the lock on the register file.
func (d *dnpHalf) open(cs *half.Closers) error {
	var err error
	if d.alarm, err = half.NewAlarm(); err != nil {
		return err
	}
	cs.Add(d.alarm.Close)
	if d.page, err = half.OpenPage(d.StatePath(half.RegisterFile), d.Half, d.Log); err != nil {
		return err
	}
	cs.Add(func() error { return d.page.File.Close() })
	if d.window, err = d.OpenWindow(d.page, cs); err != nil {
		return err
	}
	d.OpenCopy(cs)
	d.linkCopy.resume, d.linkCopy.sessions = d.Copy.Links()
	if d.Copy.Numbers.Epoch != 0 {
		d.linkCopy.resume.Sensors = d.page.LastSensed()
	}
	if d.box, err = mailbox.Open(d.Config.StateDir, d.Half); err != nil {
		return err
	}
	cs.Add(d.box.Close)
	failpoint.Hit(failpoint.StartOpened)
	if d.linkTLS, err = pki.LinkTLS(d.Signer, d.Config.TLS.CA, d.Trust.Registry); err != nil {
		return err
	}
	for _, dir := range d.Topo.Links {
		addr := d.Config.Links[dir.String()]
		dst, _ := d.Topo.Dims.Neighbour(d.Topo.Coord, dir)
		node, _ := d.Config.PeerNode(dir)
		peer, err := netip.ParseAddrPort(addr.Peer)
		if err != nil {
			return fmt.Errorf("link %s: peer address: %w", dir, err)
		}
		l, err := d.listen(dir, dst, peers.Peer{Node: node, Address: peer})
		switch {
		case errors.Is(err, udplink.ErrAbsent): // one missing interface must not keep the others from being supervised
			d.failed(dir, node, cannotOpen, err)
			continue
		case err != nil:
			return err
		}
		d.links[dir.Index()] = l
		cs.Add(l.Close)
	}
	if d.sources, err = d.dnpSources(); err != nil {
		return err
	}
	e, err := d.BeginEpoch()
	if err != nil {
		return err
	}
	d.page.SetEpoch(e)
	if d.bulk, err = newDNPBulk(d, time.Now()); err != nil {
		return err
	}
	d.page.History = d.bulk.history
	return d.begin(e, d.OpenKeeper(cs))
}

func (d *dnpHalf) listen(dir grid.Direction, dst grid.Coord, peer peers.Peer) (*udplink.Link, error) {
	addr := d.Config.Links[dir.String()]
	local, err := netip.ParseAddrPort(addr.Local)
	if err != nil {
		return nil, fmt.Errorf("link %s: local address: %w", dir, err)
	}
	return udplink.Listen(udplink.Config{
		Dir: dir, Src: d.Topo.Coord, Dst: dst, Local: local, Peer: peer.Address, Interface: addr.Interface,
		Dialer: dir.Positive(),
		Socket: half.Inherited(dir, local, addr.Interface), Resumed: d.linkCopy.resume.Has[dir.Index()], SessionAge: d.Copy.File.SessionAge(dir),
		TLS: d.linkTLS, VerifyPeer: pki.VerifyPeerIdentity(pki.NodeIdentity(d.Config.Cluster, peer.Node, fault.HalfDNP)),
		MTU: d.Config.MTU, Logger: d.Log,
	})
}

// begin starts the machine and steps it at the same moment, so that all its periods begin together
// and share their wake-ups.
func (d *dnpHalf) begin(e fault.Epoch, kept []servicenet.Kept) error {
	failpoint.Hit(failpoint.StartRestored)
	algorithm, err := routing.Parse(d.Config.Routing)
	if err != nil {
		return err
	}
	mask, lost := storage.MaskOrders().Load(d.Config.StateDir)
	if lost != nil {
		d.Log.Error("channel mask lost: all channels are usable at this end until the supervisors have answered", "err", lost)
	}
	orders, ordersLost := storage.PlainOrders().Load(d.Config.StateDir)
	now := half.InStep(d.Periods.TWrite)
	d.mu.Lock()
	defer d.mu.Unlock()
	core, err := dnpcore.New(dnpcore.Config{
		Topo: d.Topo, Periods: d.Periods, Certificate: len(d.Signer.Cert()),
		Window: d.window != nil, MaxHops: d.MaxHops(), Kept: kept, Resume: d.linkCopy.resume,
		SelfTest: d.SelfTest(), Budget: d.Config.Processor.Budget, MaxFrame: d.Config.MTU, Hops: d.resumeHops(), Express: d.resumeExpress(),
		Routing: algorithm, Seed: randomSeed(),
		Mask: &mask, MaskLost: lost != nil, Masked: d.Config.Masked(), Peers: d.Peers, Orders: d.plain.kinds,
		StoredOrders: orders, OrdersLost: ordersLost,
		Procedure: dnpcore.ProcedureConfig{OnEvidence: d.Config.Procedure.Start == config.ProcedureOnEvidence,
			MaskDead: d.Config.Procedure.MaskDead},
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
	d.core, d.halfStatus.Results, d.halfStatus.Processor = core, core.SelfTest().Results, core.ProcessorTime
	if lost == nil {
		d.kept.state = mask
	}
	d.tests.Begin(d.testResults)
	d.halfStatus.WentOn(d.Copy.File.Cold())
	if half, known := half.GivenHealth(); known != nil {
		d.settle(now, core.Step(now, dnpcore.Health{Half: half, Health: known}))
	}
	d.apply(now, core.Step(now, dnpcore.Tick{}))
	failpoint.Hit(failpoint.StartServing)
	d.mu.Watch(&d.Common, d.core)
	failpoint.Live("dnp", d.core, d.mu.Unwatched())
	return nil
}

// serve runs the half until ctx ends or one of them fails.
func (d *dnpHalf) serve(ctx context.Context) error {
	loop := half.Loop{
		Common: &d.Common, Mu: &d.mu, Alarm: d.alarm, Page: d.page, Box: d.box, Core: d.core, Status: &d.halfStatus, Readers: &d.readers,
		Probes: d.tests, Acting: d.acting, Bulk: d.bulk.server, Sources: d.sources,
		Inject: d.injectHandler(), InjectSocket: half.DNPInjectSock,
		Tick:       func(now time.Time) { d.handle(now, dnpcore.Tick{}) },
		Mended:     func(now time.Time) { d.handle(now, dnpcore.Refresh{}) },
		Spent:      func(now time.Time, total time.Duration) { d.handle(now, dnpcore.Spent{Total: total}) },
		EachSecond: d.eachSecond, OnMail: d.onMessage, OnReadings: d.onReadings, TrustChanged: d.trustChanged,
		OnTest: func(ev selftest.Event) { d.step(dnpcore.Test{Event: ev}) },
	}
	g, ctx := errgroup.WithContext(ctx)
	loop.Start(ctx, g)
	d.window.Run(ctx, g)
	g.Go(func() error {
		return storeOrders(ctx, d, storage.MaskOrders(), d.masks, func(s chanmask.State, err error) {
			d.noteKept(s, err)
			d.step(dnpcore.MaskKept{State: s, Err: err})
		})
	})
	g.Go(func() error {
		return storeOrders(ctx, d, storage.PeerOrders(), d.words, func(s peers.State, err error) {
			d.step(dnpcore.PeersKept{State: s, Err: err})
		})
	})
	g.Go(func() error {
		return storeOrders(ctx, d, storage.PlainOrders(), d.plain.keep, func(b []byte, err error) {
			d.step(dnpcore.OrdersKept{Stored: b, Err: err})
		})
	})
	g.Go(func() error { d.runOrders(ctx); return nil })
	g.Go(func() error { openAll(ctx, d.judges, d.openData, d.step); return nil })
	g.Go(func() error { d.serveMask(ctx); return nil })
	if d.window != nil && d.Config.Netconsole.Listen != "" { // on one kernel, the host half receives
		g.Go(func() error { d.ReceiveNetconsole(ctx, d.onLastWords); return nil })
	}
	d.mu.Lock()
	d.runLink = func(l *udplink.Link) { g.Go(func() error { return l.Run(ctx, d) }) }
	for _, l := range d.links {
		if l != nil {
			d.runLink(l)
		}
	}
	d.mu.Unlock()
	return g.Wait()
}

// dnpSources returns the sensors, and the error counters of the interfaces that the ends of links are bound to. An end may get
// its link while the half runs; the machine ignores the errors of one without a link.
func (d *dnpHalf) dnpSources() ([]sensor.Source, error) {
	out, err := sensor.DNPSources(d.Config.Sensors)
	if err != nil {
		return nil, err
	}
	for _, dir := range grid.Directions() {
		if name := d.Config.Links[dir.String()].Interface; name != "" {
			out = append(out, newInterfaceErrors(d.Config.Sensors.Sysfs, name, dir))
		}
	}
	return out, nil
}

// eachSecond does the DNP half's own work that no event triggers.
func (d *dnpHalf) eachSecond(now time.Time, own *lofamov1.HalfHealth) {
	d.readDue(now)
	d.tellSpan(now)
	if own != nil {
		d.settle(now, d.core.Step(now, dnpcore.Health{Half: fault.HalfDNP, Health: own}))
	}
	d.openMissing()
	d.publishCounters(now)
	d.tellDropped(now)
	if ev, changed := d.SpoolState(); changed {
		d.settle(now, d.core.Step(now, dnpcore.Hint{Event: ev}))
	}
	for i := range d.keys {
		d.keys[i].Expire(now)
	}
	s := d.box.Stats()
	var bits uint32
	full := s.DroppedFull > d.mail.DroppedFull
	if full && d.mailFull { // a single burst, as at the start, does not show that the host half stopped reading
		bits |= watchdog.RDMAMailboxFull
	}
	d.mailFull = full
	if s.Bad > d.mail.Bad {
		bits |= watchdog.RDMAMailboxBad
	}
	d.mail = s
	if bits != 0 {
		d.settle(now, d.core.Step(now, dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: bits}))
	}
}

// step gives the machine an event from a source other than the timer.
func (d *dnpHalf) step(ev dnpcore.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handle(time.Now(), ev)
}

// OnSession takes the keys from a handshake.
func (d *dnpHalf) OnSession(dir grid.Direction, s *torus.Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, linked := d.core.LinkTo(dir); !linked || d.links[dir.Index()].Outdated(s) {
		return // a session with the former peer
	}
	now := time.Now()
	d.keys[dir.Index()].Add(now, s)
	d.storeSession(dir, s)
	d.handle(now, dnpcore.Session{Dir: dir, ID: s.ID()})
}

// apply carries out an output and those of the events that follow from it, then sets the alarm. It runs under the
// mutex.
func (d *dnpHalf) apply(now time.Time, out dnpcore.Output) {
	d.settle(now, out)
	if k := &d.jobMail; len(k.waiting) > 0 && k.again.Before(d.alarm.Wake) {
		d.alarm.Wake = k.again
	}
	d.alarm.Set(now)
}

// settle is apply without the alarm: it carries out an output, and then steps the machine by each event that followed,
// in order. No output is carried out inside another one.
func (d *dnpHalf) settle(now time.Time, out dnpcore.Output) {
	d.do(now, out)
	for i := 0; ; {
		switch {
		case i < len(d.next):
			ev := d.next[i]
			d.next[i] = nil
			i++
			d.do(now, d.core.Step(now, ev))
		case d.takeHost:
			d.takeHost = false
			d.do(now, d.core.Step(now, d.page.ReadHost(now, true)))
		default:
			d.next = d.next[:0]
			return
		}
	}
}

// then makes settle step the machine by an event after the present output.
func (d *dnpHalf) then(ev dnpcore.Event) { d.next = append(d.next, ev) }

// do carries out one output.
func (d *dnpHalf) do(now time.Time, out dnpcore.Output) {
	d.alarm.Wake = out.Wake
	d.CarryOut(out.SenderEffects, storage.Numbers{OutboxSnapshot: d.core.Numbers(), Express: d.core.ExpressNumber()}, d.page)
	if out.SaveMask {
		state, _ := d.core.Mask()
		d.masks.put(state)
	}
	for _, dir := range out.Repeer { // a later process must not use the numbers of the farewell again
		d.Copy.Note(d.Log, d.Copy.File.StoreSession(dir, storage.Session{}))
	}
	d.sendFrames(out.Farewell)
	for _, dir := range out.Repeer {
		d.goOver(dir)
	}
	if out.SavePeers {
		d.Around.Store(d.core.Around())
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
		d.SaveTests(d.core.SelfTest().Snapshot(nil))
	}
	d.write(now, &out)
	for _, dir := range out.Redial {
		if l := d.links[dir.Index()]; l != nil { // else it could not be opened: see openMissing
			l.Redial()
		}
	}
	d.sendFrames(out.Frames)
	d.tellJobs(now, &out)
	d.logNotes(now, out.Notes)
	for _, t := range out.TestMail {
		d.sendTest(t)
	}
	for _, m := range out.ToHost {
		_ = half.SendMail(d.box, m, d.Log)
	}
	d.hand(out.Hand)
	for _, p := range out.Probes {
		d.carry(p)
	}
	for _, s := range out.Seal {
		if len(s.Reports) > 0 && !d.MaySend() {
			continue
		}
		if b, err := d.seal(s); err != nil {
			d.Log.Error("message not sent", "err", err)
		} else {
			d.then(dnpcore.Sealed{Envelope: b, Seal: s})
		}
	}
	for _, b := range out.Open {
		d.receive(b)
	}
	for _, j := range out.Judge {
		d.judges.put(j)
	}
	d.toAct(out.Acts)
	d.applyOrders(&out)
	d.takeHost = d.takeHost || out.TakeHost
}

// receive verifies a message and takes it.
func (d *dnpHalf) receive(envelope []byte) {
	o, err := servicenet.Open(envelope, d.Verifier)
	if err != nil {
		d.Log.Debug("message refused", "err", err)
		if servicenet.IsDamaged(err) {
			d.then(dnpcore.Hint{Event: servicenet.Damaged{Path: fault.PathTorus}})
		}
		return
	}
	d.bulk.take(o)
	d.acting.Hear(o.Msg)
	d.then(dnpcore.Opened{Opened: o})
}

// write puts registers and words into the page. The words come last, so a reader of a word always finds the registers
// that explain it.
func (d *dnpHalf) write(now time.Time, out *dnpcore.Output) {
	d.page.WriteDNP(now, out)
	if out.Ring {
		_ = d.page.File.CountDoorbell() // for display
		_ = d.box.Ring()                // the host half reads every TRead anyway
	}
}

// onMessage handles a mailbox message of the host half: a doorbell, or an envelope for the torus.
func (d *dnpHalf) onMessage(m mailbox.Message) {
	switch m.Type {
	case mailbox.Doorbell:
		d.mu.Lock()
		defer d.mu.Unlock()
		now := time.Now()
		d.handle(now, d.page.ReadHost(now, false))
	case mailbox.Jobs:
		d.onJobs(m.Payload)
	case mailbox.Test:
		echo, data := half.ProbeMail(m)
		d.step(dnpcore.TestMail{Echo: echo, Data: data})
	case mailbox.Envelope:
		msg, held, err := half.ReadMail(m.Payload, half.Monotonic())
		if err != nil {
			d.step(dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: watchdog.RDMAMailboxBad})
			return
		}
		d.step(dnpcore.FromHost{Message: msg, Held: held})
	case mailbox.Recovery, mailbox.Health:
		d.onHealth(m)
	case mailbox.DeadHosts:
		d.onDeadHosts(m.Payload)
	case mailbox.Setting:
		d.onSetting(m.Payload)
	default: // of a later version
	}
}
