package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
	"github.com/lofamo/lofamo/pkg/servicenet/sessions"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/backup"
	"github.com/lofamo/lofamo/internal/agent/checks"
	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/notify"
	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/agent/torusrail"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
)

// hostHalf is the shell of the Host Fault Manager.
type hostHalf struct {
	common
	page    *page
	box     *mailbox.Box
	nets    []*direct.Socket            // by the number of the service interface
	gossip  *gossip.Net                 // nil without gossip
	names   []string                    // of the service interfaces, by number, as are:
	targets []map[string]netip.AddrPort // supervisors' addresses
	rails   rails
	ids     []string // of the supervisors, in the configured order
	keys    *sessionKeys
	opens   servicenet.Verifier // of certificates, and of the sessions with supervisors
	courier *courier            // of requests for new certificates
	refused [servicenet.NumRefusals]atomic.Uint64
	damaged atomic.Uint64        // packets that came damaged
	dnpCert atomic.Pointer[span] // of the DNP half's certificate; nil: unknown
	pieces  routing.Reorder      // of envelopes that the DNP half passes on; the mailbox' goroutine alone uses it

	unbound    chan uint8   // service interfaces whose sockets wait to be bound
	bindMu     sync.Mutex   // for bind
	gossipLate func() error // opens the gossip, which waits for service interface 0; nil: does not

	mu         sync.Mutex // the half's one mutex: see the package comment
	core       *hostcore.Machine
	fares      fares
	records    [2]recovery.Record // of both halves, as the daemon said last
	tests      *prober
	readers    readers
	alarm      *alarm
	bulk       *hostBulk
	local      *local.Server                    // of the jobs on this node
	poster     poster                           // what it has to say to the DNP half
	acting     acting                           // orders to act
	lookAt     time.Time                        // at the spool
	configured config.Agent                     // as it is in its file
	peersLook  chan struct{}                    // takes one when it is time to look at what the DNP half was told
	peersSeen  peersSeen                        // the file of that, as watchPeers saw it last; it is its own
	sends      map[servicenet.PathID]*condition // of the configured supervisors alone
	relayed    struct {                         // the relayed envelope that was sealed last
		of     *hostcore.Relayed
		sealed []byte
	}
	// failed are the errors of sends that the machine has not been told yet.
	failed []servicenet.PathFailed
}

// RunHost runs the host half until ctx ends. It returns nil then, and an error when something that
// it needs cannot be had.
func RunHost(ctx context.Context, cfg config.Agent, log *slog.Logger) (err error) {
	seen := seenOf(filepath.Join(cfg.StateDir, peerfile.Name)) // before it is read
	c, err := prepare(cfg, fault.HalfHost, log)
	if err != nil {
		return fmt.Errorf("host half: %w", err)
	}
	h := &hostHalf{
		common: c, configured: cfg, peersSeen: seen, peersLook: make(chan struct{}, 1), alarm: newAlarm(), keys: newSessionKeys(c.self()), acting: newActing(),
		unbound: make(chan uint8, 2*servicenet.MaxInterfaces),
	}
	h.poster.waiting = make(chan struct{}, 1)
	if h.local, err = h.newLocal(); err != nil {
		return fmt.Errorf("host half: %w", err)
	}
	h.opens = sessions.With(c.verifier, h.keys.table)
	h.tests = newProber(ctx, &h.common)
	h.courier = newCourier(h)
	h.trust.carry, h.trust.pass = h.courier.look, h.courier.pass
	h.trust.renewals.send = func(b []byte, toAll bool) { h.courier.send(fault.HalfHost, b, toAll) }
	h.setTargets()
	var open closers
	defer func() { err = errors.Join(err, open.close()) }()
	h.manager = notify.New(h.log)
	defer func() { _ = h.manager.Close() }() // a manager that hangs does not keep the half from ending
	if err := h.open(&open); err != nil {
		return fmt.Errorf("host half of %s: %w", cfg.Node, err)
	}
	h.log.Info("host half runs", "epoch", h.core.Epoch(), "listen", h.nets[0].LocalAddr().String(), "interfaces", len(h.nets), "platform", h.cfg.Platform)
	h.manager.Ready()
	if err := h.serve(ctx); err != nil {
		return fmt.Errorf("host half of %s: %w", cfg.Node, err)
	}
	return nil
}

// setTargets takes over the supervisors' addresses, as each service interface reaches them.
func (h *hostHalf) setTargets() {
	for k := range h.cfg.Service.Interfaces() {
		addrs := make(map[string]netip.AddrPort, len(h.cfg.Supervisors))
		for _, s := range h.cfg.Supervisors {
			addrs[s.ID] = netip.MustParseAddrPort(s.Addr(k)) // validated
		}
		h.targets = append(h.targets, addrs)
	}
	h.names = h.cfg.Service.InterfaceNames()
	h.sends = map[servicenet.PathID]*condition{}
	for _, s := range h.cfg.Supervisors {
		h.ids = append(h.ids, s.ID)
	}
}

// open takes everything that may be refused, the lock on the register file first.
func (h *hostHalf) open(cs *closers) error {
	var err error
	if h.page, err = openPage(h.statePath(RegisterFile), h.half, h.log); err != nil {
		return err
	}
	cs.add(func() error { return h.page.file.Close() })
	h.openCopy(cs)
	if h.copy.numbers.Epoch != 0 {
		h.keys.resume(h.copy.file.PathSessions())
	}
	h.keys.store = func(b []byte) { h.copy.note(h.log, h.copy.file.StorePathSessions(b)) }
	if h.box, err = mailbox.Open(h.cfg.StateDir, h.half); err != nil {
		return err
	}
	cs.add(h.box.Close)
	failpoint.Hit(failpoint.StartOpened)
	for k, a := range h.cfg.Service.Interfaces() {
		s, err := direct.Listen(a.Listen, direct.Options{
			Interface: a.Interface, Late: true, MaxRate: maxDatagrams, Strangers: maxStrangers, OnError: func(to netip.AddrPort, err error) { h.onPathError(uint8(k), to, err) },
			OnUnfiltered: func(err error) {
				h.log.Warn("service socket: strangers are not filtered in the kernel", "address", a.Listen, "err", err)
			},
		})
		if err != nil {
			return err
		}
		s.Know(append(slices.Collect(maps.Values(h.targets[k])), loop(s.LocalAddr())))
		h.nets, h.rails.direct = append(h.nets, s), append(h.rails.direct, direct.NewRail(s, h.targets[k]))
		cs.add(s.Close)
		if err := s.Absent(); err != nil { // a card that failed is to be reported, and no reason to end
			h.log.Warn("going on without a service interface until it is there", "interface", h.names[k], "err", err)
			h.bindLater(uint8(k))
		}
	}
	h.rails.torus = torusrail.New(h.box, h.maxHops())
	e, err := h.beginEpoch()
	if err != nil {
		return err
	}
	h.page.setEpoch(e)
	if h.bulk, err = newHostBulk(h, time.Now()); err != nil {
		return err
	}
	h.page.history = h.bulk.history
	if err := h.begin(e, h.openKeeper(cs)); err != nil {
		return err
	}
	if h.cfg.Service.GossipListen == "" {
		return nil
	}
	return h.openGossip(cs)
}

func (h *hostHalf) openGossip(cs *closers) error {
	keys, err := pki.LoadGossipKeys(h.cfg.Service.GossipKeyFile)
	if err != nil {
		return err
	}
	g, err := gossip.New(gossip.Config{
		Name: string(h.cfg.Node), Bind: h.cfg.Service.GossipListen, Join: h.cfg.Service.GossipJoin, Key: keys[0], Further: keys[1:],
		Meta: gossip.Meta{
			Role: gossip.RoleNode, ID: string(h.cfg.Node), Coord: h.topo.Coord.String(), ReportAddr: h.nets[0].LocalAddr().String(),
		},
		Logger: h.log, OnMember: h.onMember, OnHeard: func(time.Time) { h.step(hostcore.GossipHeard{}) }, Timing: gossipTiming(h.periods),
		MaxPackets: maxGossip, Strangers: maxStrangers, OnLoop: h.onLoop,
	})
	if err != nil && h.nets[0].Absent() != nil {
		h.log.Warn("going on without gossip until service interface 0 is there", "err", err)
		h.gossipLate = func() error { return h.openGossip(cs) }
		return nil //nolint:nilerr // opened later
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.gossip, h.rails.gossip = g, gossip.NewRail(g)
	h.mu.Unlock()
	h.trustChanged() // the list may have arrived before gossip started
	cs.add(g.Close)
	return nil
}

// What a service interface and the gossip read in a second at most, whoever sends it: many times what
// supervisors and members do, and of one core a fifth. A half under SCHED_FIFO that is kept reading is
// late for its watchdogs, and then killed by its limit.
const (
	maxDatagrams = 2000
	maxGossip    = 500
	// maxStrangers is the number of datagrams per second that each of these sockets reads from strangers: a supervisor may answer from an address
	// that is not configured, and a member may still be unknown.
	maxStrangers = 200
)

// gossipTiming is unhurried: membership is a hint here, and its probes are what an idle agent would
// spend most on. But where no supervisor answers they must come before the service network would be
// called dead, which is 2.4 digest periods after the last answer.
func gossipTiming(p config.Periods) gossip.Timing {
	return gossip.Timing{
		ProbeInterval: p.DigestPeriod * 8 / 5, ProbeTimeout: max(p.DigestPeriod/2, 250*time.Millisecond),
		GossipInterval: 200 * time.Millisecond, PushPullInterval: time.Minute,
	}
}

// begin starts the machine and steps it at the same moment, so that all its periods begin together
// and share their wake-ups.
func (h *hostHalf) begin(e fault.Epoch, kept []servicenet.Kept) error {
	rails := []fault.Path{fault.PathDirect, fault.PathTorus}
	if h.cfg.Service.GossipListen != "" {
		rails = []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus}
	}
	offered, err := h.cfg.Service.Offered()
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.StartRestored)
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	core, err := hostcore.New(hostcore.Config{
		Topo: h.topo, Periods: h.periods, MaxHops: h.maxHops(), MaxFrame: h.cfg.MTU, Rails: rails,
		Interfaces: h.names, Sensed: h.sensed(), Checksums: offered, Kept: kept,
		Resume:        hostcore.Numbers{OutboxSnapshot: h.copy.numbers.OutboxSnapshot, List: h.copy.numbers.List},
		GossipSilence: gossipMisses * gossipTiming(h.periods).ProbeInterval,
		SelfTest:      h.selfTest(),
	}, now, e)
	if err != nil {
		return err
	}
	h.core, h.fares.results = core, core.SelfTest().Results
	h.tests.begin(h.testResults)
	h.fares.wentOn(h.copy.file.Cold())
	h.do(now, core.Step(now, hostcore.Supervisors{Targets: h.ids}))
	if half, known := given(); known != nil {
		h.do(now, core.Step(now, hostcore.Health{Half: half, Health: known}))
	}
	h.apply(now, core.Step(now, hostcore.Tick{}))
	failpoint.Hit(failpoint.StartServing)
	failpoint.Live("host", h.core, &h.mu)
	return nil
}

// gossipMisses is how many probes of the gossip may go unanswered before it is taken for silent.
const gossipMisses = 4

// sensed returns the number of the service interface that the sensor looks at.
func (h *hostHalf) sensed() uint8 {
	for k, a := range h.cfg.Service.Interfaces() {
		if a.Interface != "" && a.Interface == h.cfg.Sensors.ServiceInterface {
			return uint8(k)
		}
	}
	return 0
}

// serve runs the readers and the timer until ctx ends or one of them fails.
func (h *hostHalf) serve(ctx context.Context) error {
	sources, err := sensor.HostSources(h.cfg.Sensors, checks.Client(h.cfg.StateDir))
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { h.ring(ctx); return nil })
	g.Go(func() error { h.trust.run(ctx, h.trustChanged); return nil })
	g.Go(func() error { return h.box.Run(ctx, h.onMail) })
	g.Go(func() error { return h.bulk.server.Run(ctx) })
	g.Go(func() error { h.tests.run(ctx, h.tested); return nil })
	for k, s := range h.nets {
		g.Go(func() error {
			return s.Run(ctx, func(from netip.AddrPort, b []byte) { h.onDatagram(uint8(k), from, b) })
		})
	}
	g.Go(func() error { return sensor.NewSet(sources).Run(ctx, h.periods.SensorPeriod, h.onReadings) })
	g.Go(func() error { h.watchInterfaces(ctx); return nil })
	g.Go(func() error { h.bindUntilBound(ctx); return nil })
	g.Go(func() error { h.watchPeers(ctx); return nil })
	g.Go(func() error { h.serveStatus(ctx); return nil })
	g.Go(func() error { h.serveLocal(ctx); return nil })
	g.Go(func() error { h.local.Run(ctx); return nil })
	g.Go(func() error { h.postWaiting(ctx); return nil })
	g.Go(func() error { h.acting.run(ctx, h.cfg.StateDir); return nil })
	if h.cfg.Injection {
		g.Go(func() error { return serveUnix(ctx, h.statePath(HostInjectSock), h.injectHandler()) })
	}
	if h.cfg.HTTP != "" {
		g.Go(func() error { return serveHTTP(ctx, h.cfg.HTTP, h.metrics()) })
	}
	return g.Wait()
}

// ring is the timer's goroutine.
func (h *hostHalf) ring(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			h.manager.Stopping()
			return
		case <-h.alarm.timer.C:
			h.mu.Lock()
			now := time.Now()
			h.alarm.rang()
			h.maintain(now)
			h.apply(now, h.core.Step(now, hostcore.Tick{}))
			h.noteProven(h.page, h.core.SelfTest().Proving())
			h.mu.Unlock()
			h.manager.Round(now)
		}
	}
}

// maintain does once a second what no event tells of.
func (h *hostHalf) maintain(now time.Time) {
	if h.page.maintain(now) {
		h.log.Info("register file mended")
	}
	h.maintainCopy(now)
	if now.Before(h.lookAt) {
		return
	}
	h.lookAt = now.Add(checkEvery)
	h.lookAtFares(now)
	h.trust.wake()
	select {
	case h.peersLook <- struct{}{}:
	default: // the disk hangs
	}
	if ev, changed := h.spoolState(); changed {
		h.do(now, h.core.Step(now, hostcore.Hint{Event: ev}))
	}
}

// step gives the machine an event that comes from elsewhere than the timer.
func (h *hostHalf) step(ev hostcore.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.apply(now, h.core.Step(now, ev))
}

// apply does what an output says, and all that follows from it. It runs under the mutex.
func (h *hostHalf) apply(now time.Time, out hostcore.Output) {
	h.do(now, out)
	h.tellFailures(now)
	h.alarm.set(now)
}

// do is apply but for the alarm, which is set once all is done.
func (h *hostHalf) do(now time.Time, out hostcore.Output) {
	h.alarm.wake = out.Wake
	n := h.core.Numbers()
	h.carryOut(out.Effects, backup.Numbers{OutboxSnapshot: n.OutboxSnapshot, List: n.List}, h.page)
	if out.WriteHost {
		h.page.writeHost(now, out.Host)
	}
	if out.Ring {
		_ = h.page.file.CountDoorbell() // for people to look at
		_ = h.box.Ring()                // the DNP half reads every TRead anyway
	}
	h.logNotes(out.Notes)
	if len(out.Learned) > 0 {
		h.local.Changed(out.Learned)
	}
	if out.Aged {
		h.local.Aged()
	}
	for _, a := range out.Acts {
		h.toAct(a)
	}
	if out.SaveTests {
		h.saveTests(h.core.SelfTest().Snapshot(nil))
	}
	for _, t := range out.TestMail {
		h.sendTest(t)
	}
	var tested []selftest.Event
	for _, p := range out.Probes {
		tested = append(tested, h.carry(p)...)
	}
	for i := range out.Send {
		h.send(&out.Send[i])
	}
	for _, m := range out.Relay {
		h.toDNP(m)
	}
	for _, ev := range tested {
		h.do(now, h.core.Step(now, hostcore.Test{Event: ev}))
	}
	if out.TakeDNP {
		h.do(now, h.core.Step(now, h.page.readDNP(now, true, h.topo.Links)))
	}
}

func (h *hostHalf) logNotes(notes []hostcore.Note) {
	for _, n := range notes {
		level := slog.LevelInfo
		switch n.Kind {
		case hostcore.NoteSelfTest, hostcore.NoteLate, hostcore.NoteCorrupt, hostcore.NoteUnreadable, hostcore.NoteSensorStale:
			level = slog.LevelWarn
		case hostcore.NoteDNP:
			if h.core.Verdict() == watchdog.Stale {
				level = slog.LevelWarn
			}
		case hostcore.NoteSelfTested, hostcore.NoteRefused:
			level = slog.LevelDebug
		default:
		}
		h.log.Log(context.Background(), level, n.Text)
	}
}
