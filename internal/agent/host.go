package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/epoch"
	"github.com/lofamo/lofamo/internal/agent/hostcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/agent/relay"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// hostHalf is the shell of the Host Fault Manager.
type hostHalf struct {
	common
	page    *page
	box     *mailbox.Box
	nets    []*direct.Socket            // by the number of the service interface
	gossip  *gossip.Net                 // nil without gossip
	targets []map[string]netip.AddrPort // supervisors' addresses, by the number of the service interface
	ids     []string                    // of the supervisors, in the configured order
	refused [servicenet.NumRefusals]atomic.Uint64

	mu    sync.Mutex // the half's one mutex: see the package comment
	core  *hostcore.Machine
	alarm *alarm
	sends condition
}

// RunHost runs the host half until ctx ends. It returns nil then, and an error when something that
// it needs cannot be had.
func RunHost(ctx context.Context, cfg config.Agent, log *slog.Logger) (err error) {
	c, err := prepare(cfg, fault.HalfHost, log)
	if err != nil {
		return fmt.Errorf("host half: %w", err)
	}
	h := &hostHalf{common: c, alarm: newAlarm()}
	h.setTargets()
	var open closers
	defer func() { err = errors.Join(err, open.close()) }()
	if err := h.open(&open); err != nil {
		return fmt.Errorf("host half of %s: %w", cfg.Node, err)
	}
	h.log.Info("host half runs", "epoch", h.core.Epoch(), "listen", h.nets[0].LocalAddr().String(), "interfaces", len(h.nets), "platform", cfg.Platform)
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
	if h.box, err = mailbox.Open(h.cfg.StateDir, h.half); err != nil {
		return err
	}
	cs.add(h.box.Close)
	for _, a := range h.cfg.Service.Interfaces() {
		s, err := direct.Listen(a.Listen, direct.Options{Interface: a.Interface})
		if err != nil {
			return err
		}
		h.nets = append(h.nets, s)
		cs.add(s.Close)
	}
	e, err := h.nextEpoch()
	if err != nil {
		return err
	}
	h.page.setEpoch(e)
	if err := h.begin(e); err != nil {
		return err
	}
	if h.cfg.Service.GossipListen == "" {
		return nil
	}
	return h.openGossip(cs)
}

func (h *hostHalf) openGossip(cs *closers) error {
	key, err := pki.LoadGossipKey(h.cfg.Service.GossipKeyFile)
	if err != nil {
		return err
	}
	g, err := gossip.New(gossip.Config{
		Name: string(h.cfg.Node), Bind: h.cfg.Service.GossipListen, Join: h.cfg.Service.GossipJoin, Key: key,
		Meta: gossip.Meta{
			Role: gossip.RoleNode, ID: string(h.cfg.Node), Coord: h.topo.Coord.String(), ReportAddr: h.nets[0].LocalAddr().String(),
		},
		Logger: h.log, OnMember: h.onMember, Timing: gossipTiming(h.periods),
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.gossip = g
	h.mu.Unlock()
	cs.add(g.Close)
	return nil
}

// gossipTiming is unhurried: membership is a hint here, and its probes are what an idle agent would
// spend most on.
func gossipTiming(p config.Periods) gossip.Timing {
	return gossip.Timing{
		ProbeInterval: max(2*p.DigestPeriod, time.Second), ProbeTimeout: max(p.DigestPeriod/2, 250*time.Millisecond),
		GossipInterval: 200 * time.Millisecond, PushPullInterval: time.Minute,
	}
}

// begin starts the machine and steps it at the same moment, so that all its periods begin together
// and share their wake-ups.
func (h *hostHalf) begin(e fault.Epoch) error {
	rails := []fault.Path{fault.PathDirect, fault.PathTorus}
	if h.cfg.Service.GossipListen != "" {
		rails = []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus}
	}
	now := inStep(h.periods.TWrite)
	h.mu.Lock()
	defer h.mu.Unlock()
	core, err := hostcore.New(hostcore.Config{
		Topo: h.topo, Periods: h.periods, MaxHops: uint8(min(h.cfg.MaxHops, relay.MaxHops)), Rails: rails,
	}, now, e)
	if err != nil {
		return err
	}
	h.core = core
	h.do(now, core.Step(now, hostcore.Supervisors{Targets: h.ids}))
	h.apply(now, core.Step(now, hostcore.Tick{}))
	return nil
}

// serve runs the readers and the timer until ctx ends or one of them fails.
func (h *hostHalf) serve(ctx context.Context) error {
	sources, err := sensor.HostSources(h.cfg.Sensors)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { h.ring(ctx); return nil })
	g.Go(func() error { return h.box.Run(ctx, h.onMail) })
	for k, s := range h.nets {
		g.Go(func() error {
			return s.Run(ctx, func(_ netip.AddrPort, b []byte) { h.onDatagram(uint8(k), b) })
		})
	}
	g.Go(func() error { return sensor.NewSet(sources).Run(ctx, h.periods.SensorPeriod, h.onReadings) })
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
			return
		case <-h.alarm.timer.C:
			h.mu.Lock()
			now := time.Now()
			h.alarm.rang()
			if h.page.maintain(now) {
				h.log.Info("register file mended")
			}
			h.apply(now, h.core.Step(now, hostcore.Tick{}))
			h.mu.Unlock()
		}
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
	h.alarm.set(now)
}

// do is apply but for the alarm, which is set once all is done.
func (h *hostHalf) do(now time.Time, out hostcore.Output) {
	h.alarm.wake = out.Wake
	if out.NewEpoch != 0 {
		if err := epoch.Set(h.epochPath(), out.NewEpoch); err != nil {
			h.log.Error("boot epoch not kept: the next start will ask the supervisors again", "err", err)
		}
		h.page.setEpoch(out.NewEpoch)
	}
	if out.WriteHost {
		h.page.note(h.page.file.StoreHost(out.Host))
	}
	if out.Ring {
		_ = h.page.file.CountDoorbell() // for people to look at
		_ = h.box.Ring()                // the DNP half reads every TRead anyway
	}
	h.logNotes(out.Notes)
	for i := range out.Send {
		h.send(&out.Send[i])
	}
	for _, m := range out.Relay {
		h.toDNP(m)
	}
	if out.TakeDNP {
		h.do(now, h.core.Step(now, h.page.readDNP(true, h.topo.Links)))
	}
}

// send signs a message and hands it to its rail. What is lost here, its origin sends again.
func (h *hostHalf) send(s *hostcore.Send) {
	b, err := h.seal(s)
	if err != nil {
		h.log.Error("message not sent", "path", s.Path.String(), "err", err)
		return
	}
	switch s.Path {
	case fault.PathDirect:
		to, ok := h.targets[s.Interface][s.Target]
		if s.Addr != "" {
			to, err = netip.ParseAddrPort(s.Addr)
			ok = err == nil
		}
		if ok {
			h.sends.set(h.log, "sending on the service network", h.nets[s.Interface].Send(to, b))
		}
	case fault.PathGossip:
		if h.gossip != nil {
			_ = h.gossip.Broadcast(b) // rate-limited: counted there, and the outbox goes on
		}
	case fault.PathTorus:
		h.toDNP(relay.Message{Kind: relay.Up, Limit: uint8(min(h.cfg.MaxHops, relay.MaxHops)), Envelope: b})
	}
}

func (h *hostHalf) seal(s *hostcore.Send) ([]byte, error) {
	switch {
	case s.Reports != nil:
		return servicenet.SealReports(s.Reports, nil, h.signer, servicenet.SealOptions{})
	case s.Relayed != nil:
		return servicenet.SealRelayed(s.Relayed.Inner, s.Relayed.Hops, h.signer)
	}
	return sealAnswer(s.Answer.Nonce, fault.Origin{Node: h.cfg.Node, Half: h.half}, s.Answer.Epoch, h.signer)
}

func (h *hostHalf) toDNP(m relay.Message) { sendMail(h.box, m, h.log) }

// onMail handles what the DNP half says: a doorbell, or an envelope that came by the torus.
func (h *hostHalf) onMail(m mailbox.Message) {
	if m.Type == mailbox.Doorbell {
		h.mu.Lock()
		defer h.mu.Unlock()
		now := time.Now()
		h.apply(now, h.core.Step(now, h.page.readDNP(false, h.topo.Links)))
		return
	}
	if m.Type != mailbox.Envelope {
		return
	}
	msg, held, err := readMail(m.Payload, monotonic())
	if err != nil {
		h.log.Debug("message from the DNP half refused", "err", err)
		return
	}
	if msg.Kind == relay.Up {
		h.step(hostcore.Arrived{Message: msg, Held: held})
		return
	}
	h.open1(msg.Envelope, fault.PathTorus, 0)
}

// onDatagram handles what came by the service network.
func (h *hostHalf) onDatagram(k uint8, b []byte) {
	h.open1(slices.Clone(b), fault.PathDirect, k)
}

// open1 verifies an envelope, outside the mutex, and gives the message to the machine.
func (h *hostHalf) open1(b []byte, path fault.Path, k uint8) {
	o, err := servicenet.Open(b, h.verifier)
	if err != nil {
		h.refused[servicenet.RefusalOf(err)].Add(1)
		h.log.Debug("message refused", "path", path.String(), "err", err)
		return
	}
	h.step(hostcore.Received{Opened: o, Path: path, Interface: k})
}

func (h *hostHalf) onReadings(rs []sensor.Reading) {
	ev := hostcore.Readings{Readings: make([]hostcore.Reading, 0, len(rs))}
	for _, r := range rs {
		ev.Readings = append(ev.Readings, hostcore.Reading{Component: r.Component, State: r.State, Detail: r.Detail})
	}
	h.step(ev)
}

// onMember takes hints from the gossip: who leads. Addresses are the configuration's.
func (h *hostHalf) onMember(ev gossip.Event) {
	m := ev.Member.Meta
	if m.Role != gossip.RoleSupervisor || !m.Leader || ev.Kind == gossip.EventLeave || ev.Kind == gossip.EventFail {
		return
	}
	if slices.Contains(h.ids, m.ID) {
		h.step(hostcore.Supervisors{Targets: h.ids, Leader: m.ID})
	}
}

func (h *hostHalf) logNotes(notes []hostcore.Note) {
	for _, n := range notes {
		level := slog.LevelInfo
		switch n.Kind {
		case hostcore.NoteLate, hostcore.NoteCorrupt, hostcore.NoteUnreadable, hostcore.NoteShortened, hostcore.NoteEpoch, hostcore.NoteSensorStale:
			level = slog.LevelWarn
		case hostcore.NoteDNP:
			if h.core.Verdict() == watchdog.Stale {
				level = slog.LevelWarn
			}
		case hostcore.NoteRefused:
			level = slog.LevelDebug
		default:
		}
		h.log.Log(context.Background(), level, n.Text)
	}
}
