// Package host is the host half of a node, the paper's Host Fault Manager: the shell that executes the output of the
// pure machine in hostcore. One mutex guards the machine, as in package dnp.
//
// The shell decides nothing: states and reports are the machine's business, delivery is pkg/servicenet's. Start
// reading at Run.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

// hostHalf is the shell of the Host Fault Manager.
type hostHalf struct {
	half.Common
	page      *half.Page
	window    *half.Window // nil: both halves have one kernel
	setAt     time.Time    // when to set registers of the DNP half again
	settings  settingTries
	deadHosts [grid.NumDirections]bool // as the DNP half knows them
	box       *mailbox.Box
	nets      []*direct.Socket            // by the number of the service interface
	gossip    *gossip.Net                 // nil without gossip
	names     []string                    // of the service interfaces, by number, as are:
	targets   []map[string]netip.AddrPort // supervisors' addresses
	rails     rails
	ids       []string // of the supervisors, in the configured order
	keys      *sessionKeys
	opens     servicenet.Verifier // of certificates, and of the sessions with supervisors
	courier   *courier            // of requests for new certificates
	refused   [servicenet.NumRefusals]atomic.Uint64
	damaged   atomic.Uint64                 // packets that came damaged
	dnpCert   atomic.Pointer[half.Validity] // of the DNP half's certificate; nil: unknown
	pieces    routing.Reorder               // of envelopes that the DNP half passes on; the mailbox' goroutine alone uses it
	ended     half.EndedChecks              // of the DNP half's process; likewise

	disk       diskRoom
	unbound    chan uint8   // service interfaces whose sockets wait to be bound
	bindMu     sync.Mutex   // for bind
	gossipLate func() error // opens the gossip, which waits for service interface 0; nil: does not

	mu         half.Guard // the half's one mutex: see the package comment
	core       *hostcore.Machine
	halfStatus half.Status
	records    [2]halfcore.RecoveryRecord              // of both halves, as the daemon said last
	announced  map[hostcore.NoticeKind][]chan struct{} // closed when the newest notice of the kind is committed
	notices    windowNotices                           // of restarts, through the window
	stopping   chan struct{}                           // closed when the notice of a stop is committed; nil: none was announced
	tests      *half.Prober
	readers    half.Readers
	alarm      *half.Alarm
	next       []hostcore.Event // that follow from the output in hand
	takeDNP    bool             // the output in hand wants the words of the DNP half read
	bulk       *hostBulk
	local      *local.Server                         // of the jobs on this node
	jobMail    jobMail                               // messages for the DNP half
	acting     half.Actions                          // orders to act
	configured config.Agent                          // the configuration as read from its file
	peersLook  chan struct{}                         // wakes watchPeers to read the DNP half's peers file
	peersLost  half.Condition                        // watchPeers alone uses it
	peersFile  half.WatchedFile                      // of the DNP half; watchPeers alone uses it
	sends      map[servicenet.PathID]*half.Condition // of the configured supervisors alone
	relayed    struct {                              // the relayed envelope that was sealed last
		of     *hostcore.Relayed
		sealed []byte
	}
	// failed holds the send errors that the machine has not processed yet.
	failed []servicenet.PathFailed
}

// Run runs the host half until ctx ends, and then returns nil. It returns an error if a resource that it needs is not
// available.
func Run(ctx context.Context, cfg config.Agent, s half.Scheduling, log *slog.Logger) (err error) {
	peersFile := half.Watch(storage.PeerOrders().Path(cfg.StateDir)) // before it is read
	c, err := half.Prepare(cfg, fault.HalfHost, log)
	if err != nil {
		return fmt.Errorf("host half: %w", err)
	}
	h := &hostHalf{
		Common: c, configured: cfg, peersFile: peersFile, peersLook: make(chan struct{}, 1), keys: newSessionKeys(c.Origin()),
		acting:  half.NewActions(),
		unbound: make(chan uint8, 2*servicenet.MaxInterfaces),
	}
	h.jobMail.waiting = make(chan struct{}, 1)
	if h.local, err = h.newLocal(); err != nil {
		return fmt.Errorf("host half: %w", err)
	}
	h.opens = direct.WithSessions(c.Verifier, h.keys.table)
	h.halfStatus.NotRealtime = half.LacksRealtime(s, h.Config.Preset)
	h.tests = half.NewProber(ctx, &h.Common)
	h.courier = newCourier(h)
	h.Trust.Carry, h.Trust.Pass = h.courier.look, h.courier.pass
	h.Trust.Renewals.Send = func(b []byte, toAll bool) { h.courier.send(fault.HalfHost, b, toAll) }
	h.setTargets()
	var open half.Closers
	defer func() { err = errors.Join(err, open.Close()) }()
	h.Manager = sdnotify.New(h.Log)
	defer func() { _ = h.Manager.Close() }() // a manager that hangs does not keep the half from ending
	if err := h.open(&open); err != nil {
		return fmt.Errorf("host half of %s: %w", cfg.Node, err)
	}
	h.Log.Info("host half runs", "epoch", h.core.Epoch(), "listen", h.nets[0].LocalAddr().String(), "interfaces", len(h.nets), "platform",
		h.window.PlatformName())
	h.Manager.Ready()
	if err := h.serve(ctx); err != nil {
		return fmt.Errorf("host half of %s: %w", cfg.Node, err)
	}
	return nil
}

// setTargets applies the supervisors' addresses, as each service interface reaches them.
func (h *hostHalf) setTargets() {
	for k := range h.Config.Service.Interfaces() {
		addrs := make(map[string]netip.AddrPort, len(h.Config.Supervisors))
		for _, s := range h.Config.Supervisors {
			addrs[s.ID] = netip.MustParseAddrPort(s.Addr(k)) // validated
		}
		h.targets = append(h.targets, addrs)
	}
	h.names = h.Config.Service.InterfaceNames()
	h.sends = map[servicenet.PathID]*half.Condition{}
	for _, s := range h.Config.Supervisors {
		h.ids = append(h.ids, s.ID)
	}
}

// open acquires everything that may be refused, the lock on the register file first.
func (h *hostHalf) open(cs *half.Closers) error {
	var err error
	if h.alarm, err = half.NewAlarm(); err != nil {
		return err
	}
	cs.Add(h.alarm.Close)
	if h.page, err = half.OpenPage(h.StatePath(half.RegisterFile), h.Half, h.Log); err != nil {
		return err
	}
	cs.Add(func() error { return h.page.File.Close() })
	if h.window, err = h.OpenWindow(h.page, cs); err != nil {
		return err
	}
	h.OpenCopy(cs)
	if h.Copy.Numbers.Epoch != 0 {
		h.keys.resume(h.Copy.File.PathSessions())
	}
	h.keys.store = func(b []byte) { h.Copy.Note(h.Log, h.Copy.File.StorePathSessions(b)) }
	if h.box, err = mailbox.Open(h.Config.StateDir, h.Half); err != nil {
		return err
	}
	cs.Add(h.box.Close)
	failpoint.Hit(failpoint.StartOpened)
	for k, a := range h.Config.Service.Interfaces() {
		s, err := direct.Listen(a.Listen, direct.Options{
			Interface: a.Interface, Late: true, MaxRate: half.MaxDatagrams, Strangers: half.MaxStrangers,
			OnError: func(to netip.AddrPort, err error) { h.onPathError(uint8(k), to, err) },
			OnUnfiltered: func(err error) {
				h.Log.Warn("service socket: strangers are not filtered in the kernel", "address", a.Listen, "err", err)
			},
		})
		if err != nil {
			return err
		}
		s.Know(append(slices.Collect(maps.Values(h.targets[k])), half.Loopback(s.LocalAddr())))
		h.nets, h.rails.direct = append(h.nets, s), append(h.rails.direct, direct.NewRail(s, h.targets[k]))
		cs.Add(s.Close)
		if err := s.Absent(); err != nil { // a card that failed is to be reported, and no reason to end
			h.Log.Warn("continuing without a service interface until it exists", "interface", h.names[k], "err", err)
			h.bindLater(uint8(k))
		}
	}
	h.rails.torus = half.NewTorusRail(h.box, h.MaxHops())
	e, err := h.BeginEpoch()
	if err != nil {
		return err
	}
	h.page.SetEpoch(e)
	if h.bulk, err = newHostBulk(h, time.Now()); err != nil {
		return err
	}
	h.page.History = h.bulk.history
	if err := h.begin(e, h.OpenKeeper(cs)); err != nil {
		return err
	}
	if h.Config.Service.GossipListen == "" {
		return nil
	}
	return h.openGossip(cs)
}

func (h *hostHalf) openGossip(cs *half.Closers) error {
	keys, err := pki.LoadGossipKeys(h.Config.Service.GossipKeyFile)
	if err != nil {
		return err
	}
	g, err := gossip.New(gossip.Config{
		Name: string(h.Config.Node), Bind: h.Config.Service.GossipListen, Join: h.Config.Service.GossipJoin, Key: keys[0], Further: keys[1:],
		Meta: gossip.Meta{
			Role: gossip.RoleNode, ID: string(h.Config.Node), Coord: h.Topo.Coord.String(), ReportAddr: h.nets[0].LocalAddr().String(),
		},
		Logger: h.Log, OnMember: h.onMember, OnHeard: func(time.Time) { h.step(hostcore.GossipHeard{}) }, Timing: gossipTiming(h.Periods),
		MaxPackets: half.MaxGossip, Strangers: half.MaxStrangers, OnLoop: h.onLoop, MaxMembers: gossipMembers(h.Topo.Dims.Places()),
	})
	if err != nil && h.nets[0].Absent() != nil {
		h.Log.Warn("continuing without gossip until service interface 0 exists", "err", err)
		h.gossipLate = func() error { return h.openGossip(cs) }
		return nil //nolint:nilerr // opened later
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.gossip, h.rails.gossip = g, gossip.NewRail(g)
	for _, t := range g.Tickers() {
		h.alarm.AlsoRing(t.Made.Add(t.Period), t.Period)
	}
	h.mu.Unlock()
	h.trustChanged() // the list may have arrived before gossip started
	cs.Add(g.Close)
	return nil
}

// leastMembers is the room for gossip members in a small torus, which may grow while the half runs. It bounds what the half keeps of
// made-up members: their names and metadata take less than 1 MiB.
const leastMembers = 1024

// gossipMembers returns the number of gossip members that a half keeps in a torus of so many places: the nodes and supervisors, those that
// join later, and some that died. A half does not know the other nodes' names, and holders of the gossip key can make up any.
func gossipMembers(places int) int { return min(max(2*places+64, leastMembers), gossip.MaxMembers) }

// gossipTiming is slow: membership is a hint here, and its probes would be the main cost of an idle agent. But where
// no supervisor answers, probes must come before the service network would be called dead, which is 2.4 digest
// periods after the last answer.
func gossipTiming(p config.Periods) gossip.Timing {
	return gossip.Timing{
		ProbeInterval: p.DigestPeriod * 8 / 5, ProbeTimeout: max(p.DigestPeriod/2, 250*time.Millisecond),
		GossipInterval: 200 * time.Millisecond, PushPullInterval: time.Minute,
	}
}

// begin starts the machine and steps it at the same moment, so that all its periods begin together
// and share their wake-ups.
func (h *hostHalf) begin(e fault.Epoch, kept []servicenet.Kept) error {
	rails, silence := []fault.Path{fault.PathDirect, fault.PathTorus}, time.Duration(0)
	if h.Config.Service.GossipListen != "" {
		rails = []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus}
		if h.Config.Service.GossipFirst() {
			rails[0], rails[1] = rails[1], rails[0]
		}
		silence = gossipMisses * gossipTiming(h.Periods).ProbeInterval
	}
	offered, err := h.Config.Service.Offered()
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.StartRestored)
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	core, err := hostcore.New(hostcore.Config{
		Topo: h.Topo, Periods: h.Periods, Certificate: len(h.Signer.Cert()),
		Window: h.window != nil, MaxHops: h.MaxHops(), MaxFrame: h.Config.MTU, Rails: rails,
		Interfaces: h.names, Sensed: h.sensed(), Checksums: offered, Kept: kept,
		Resume:        hostcore.Numbers{OutboxSnapshot: h.Copy.Numbers.OutboxSnapshot, List: h.Copy.Numbers.List},
		GossipSilence: silence,
		SelfTest:      h.SelfTest(), Budget: h.Config.Processor.Budget,
	}, now, e)
	if err != nil {
		return err
	}
	h.core, h.halfStatus.Results, h.halfStatus.Processor = core, core.SelfTest().Results, core.ProcessorTime
	h.tests.Begin(h.testResults)
	h.halfStatus.WentOn(h.Copy.File.Cold())
	h.settle(now, core.Step(now, hostcore.Supervisors{Targets: h.ids}))
	if half, known := half.GivenHealth(); known != nil {
		h.settle(now, core.Step(now, hostcore.Health{Half: half, Health: known}))
	}
	h.settle(now, core.Step(now, readings(h.Copy.Wrong()))) // until they are read
	h.apply(now, core.Step(now, hostcore.Tick{}))
	failpoint.Hit(failpoint.StartServing)
	h.mu.Watch(&h.Common, h.core)
	failpoint.Live("host", h.core, h.mu.Unwatched())
	return nil
}

// gossipMisses is the number of unanswered probes after which the gossip counts as silent.
const gossipMisses = 4

// sensed returns the number of the service interface that the sensor looks at.
func (h *hostHalf) sensed() uint8 {
	for k, a := range h.Config.Service.Interfaces() {
		if a.Interface != "" && a.Interface == h.Config.Sensors.ServiceInterface {
			return uint8(k)
		}
	}
	return 0
}

// serve runs the half until ctx ends or one of them fails.
func (h *hostHalf) serve(ctx context.Context) error {
	sources, err := sensor.HostSources(h.Config.Sensors, half.CheckClient(h.Config.StateDir))
	if err != nil {
		return err
	}
	loop := half.Loop{
		Common: &h.Common, Mu: &h.mu, Alarm: h.alarm, Page: h.page, Box: h.box, Core: h.core, Status: &h.halfStatus, Readers: &h.readers,
		Probes: h.tests, Acting: h.acting, Bulk: h.bulk.server, Sources: sources,
		Inject: h.injectHandler(), InjectSocket: half.HostInjectSock,
		Tick:   func(now time.Time) { h.apply(now, h.core.Step(now, hostcore.Tick{})) },
		Mended: func(time.Time) {}, // the half writes its one word every TWrite
		Spent: func(now time.Time, total time.Duration) {
			h.settle(now, h.core.Step(now, hostcore.Spent{Total: total}))
		},
		EachSecond: h.eachSecond, OnMail: h.onMessage, OnReadings: h.onReadings, OnTest: h.tested, TrustChanged: h.trustChanged,
	}
	g, ctx := errgroup.WithContext(ctx)
	loop.Start(ctx, g)
	h.window.Run(ctx, g)
	for k, s := range h.nets {
		g.Go(func() error {
			return s.Run(ctx, func(from netip.AddrPort, b []byte) { h.onDatagram(uint8(k), from, b) })
		})
	}
	g.Go(func() error { h.watchInterfaces(ctx); return nil })
	g.Go(func() error { h.bindUntilBound(ctx); return nil })
	g.Go(func() error { h.watchPeers(ctx); return nil })
	g.Go(func() error { h.watchDisk(ctx); return nil })
	g.Go(func() error { h.serveStatus(ctx); return nil })
	g.Go(func() error { h.serveLocal(ctx); return nil })
	g.Go(func() error { h.local.Run(ctx); return nil })
	g.Go(func() error { h.postWaiting(ctx); return nil })
	if h.Config.Netconsole.Listen != "" {
		g.Go(func() error { h.ReceiveNetconsole(ctx, h.onLastWords); return nil })
	}
	if h.Config.HTTP != "" {
		g.Go(func() error { serveHTTP(ctx, h.Config.HTTP, h.Log, h.metrics()); return nil })
	}
	return g.Wait()
}

// eachSecond does the host half's own work that no event triggers.
func (h *hostHalf) eachSecond(now time.Time, own *lofamov1.HalfHealth) {
	h.tellDeadHosts(false)
	h.setRegisters(now)
	if own != nil {
		h.settle(now, h.core.Step(now, hostcore.Health{Half: fault.HalfHost, Health: own}))
	}
	select {
	case h.peersLook <- struct{}{}:
	default: // the disk hangs
	}
	if ev, changed := h.SpoolState(); changed {
		h.settle(now, h.core.Step(now, hostcore.Hint{Event: ev}))
	}
}

// onLastWords keeps the last words of other machines for the next digest.
func (h *hostHalf) onLastWords(words []*lofamov1.LastWords) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.settle(now, h.core.Step(now, hostcore.Health{Half: fault.HalfHost, Health: &lofamov1.HalfHealth{LastWords: words}}))
}

// step gives the machine an event that does not come from the timer.
func (h *hostHalf) step(ev hostcore.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.apply(now, h.core.Step(now, ev))
}

// apply executes an output and those of the events that follow from it, then sets the alarm. It runs under the mutex.
func (h *hostHalf) apply(now time.Time, out hostcore.Output) {
	h.settle(now, out)
	h.tellFailures(now)
	h.alarm.Set(now)
}

// settle is apply without the alarm: it executes an output, and then steps the machine by each event that followed,
// in order. It never executes an output inside another one.
func (h *hostHalf) settle(now time.Time, out hostcore.Output) {
	h.do(now, out)
	for i := 0; ; {
		switch {
		case i < len(h.next):
			ev := h.next[i]
			h.next[i] = nil
			i++
			h.do(now, h.core.Step(now, ev))
		case h.takeDNP:
			h.takeDNP = false
			h.do(now, h.core.Step(now, h.page.ReadDNP(now, true, h.Around.Load().Links)))
		default:
			h.next = h.next[:0]
			return
		}
	}
}

// do carries out one output.
func (h *hostHalf) do(now time.Time, out hostcore.Output) {
	h.alarm.Wake = out.Wake
	n := h.core.Numbers()
	h.CarryOut(out.SenderEffects, storage.Numbers{OutboxSnapshot: n.OutboxSnapshot, List: n.List}, h.page)
	if out.WriteHost {
		h.page.WriteHost(now, out.Host)
	}
	if out.Ring {
		_ = h.page.File.CountDoorbell() // for people to inspect
		_ = h.box.Ring()                // the DNP half reads every TRead anyway
	}
	h.logNotes(now, out.Notes)
	for _, kind := range out.Announced {
		for _, c := range h.announced[kind] {
			close(c)
		}
		delete(h.announced, kind)
	}
	if len(out.Learned) > 0 {
		h.local.Changed(out.Learned)
		h.tellDeadHosts(true)
	}
	if out.Aged {
		h.local.Aged()
	}
	for _, a := range out.Acts {
		h.toAct(a)
	}
	if out.AskGossip > 0 && h.gossip != nil {
		h.gossip.Ask(out.AskGossip)
	}
	if out.SaveTests {
		h.SaveTests(h.core.SelfTest().Snapshot(nil))
	}
	for _, t := range out.TestMail {
		h.sendTest(t)
	}
	for _, p := range out.Probes {
		for _, ev := range h.carry(p) {
			h.next = append(h.next, hostcore.Test{Event: ev})
		}
	}
	for i := range out.Send {
		h.send(&out.Send[i])
	}
	for _, m := range out.Relay {
		h.toDNP(m)
	}
	h.takeDNP = h.takeDNP || out.TakeDNP
}

func (h *hostHalf) logNotes(now time.Time, notes []hostcore.Note) {
	h.Doubts.Flush(h.Log, now)
	for _, n := range notes {
		level := slog.LevelInfo
		switch n.Kind {
		case hostcore.NoteLate, hostcore.NoteCorrupt:
			h.Doubts.Warn(h.Log, now, n.Text)
			continue
		case hostcore.NoteSelfTest, hostcore.NoteUnreadable, hostcore.NoteSensorStale, hostcore.NoteOverBudget:
			level = slog.LevelWarn
		case hostcore.NoteDNP:
			if h.core.Verdict() == watchdog.Stale {
				level = slog.LevelWarn
			}
		case hostcore.NoteSelfTested, hostcore.NoteRefused:
			level = slog.LevelDebug
		default:
		}
		h.Log.Log(context.Background(), level, n.Text)
	}
}
