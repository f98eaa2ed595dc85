package host

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local"
)

// serveStatus answers `lofamo-agent status` until ctx ends. The half can run without it: if the socket cannot be
// created, it logs a warning and continues.
func (h *hostHalf) serveStatus(ctx context.Context) {
	handler := local.StatusHandler(h.status, untilEnd(ctx, h.announce), untilEnd(ctx, h.announceStop))
	if err := half.ServeUnix(ctx, h.StatePath(local.StatusSocket), handler); err != nil {
		h.Log.Warn("lofamo-agent status will not be answered", "err", err)
	}
}

// untilEnd cancels a waiting announcement when this half ends. Otherwise the request would delay the end for as long as it waits for the
// commit, and the half no longer writes its watchdog word in that time. The waiting daemon then asks the next host half.
func untilEnd[N any](half context.Context, announce func(context.Context, N) error) func(context.Context, N) error {
	return func(ctx context.Context, notice N) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(half, cancel)()
		err := announce(ctx, notice)
		if err != nil && half.Err() != nil {
			return fmt.Errorf("%w: %w", local.ErrNotRunning, err)
		}
		return err
	}
}

// announce reports the restart or end of a half to the supervisors. It waits until they have committed a restart, or
// ctx ends.
func (h *hostHalf) announce(ctx context.Context, n fault.RestartNotice) error {
	h.mu.Lock()
	committed := h.announceAs(hostcore.Restart{Notice: n})
	h.mu.Unlock()
	if n.Within == 0 {
		return nil
	}
	return awaitCommit(ctx, committed)
}

// announceStop reports a stop of the node, or its end, to the supervisors. It waits until they have committed a stop, or
// ctx ends. Each half may have a daemon that announces the same stop: one report is enough.
func (h *hostHalf) announceStop(ctx context.Context, s fault.Stop) error {
	h.mu.Lock()
	committed := h.stopping
	switch {
	case !s.Begins():
		h.announceAs(hostcore.Stop{Notice: s})
		h.stopping = nil
	case committed == nil:
		committed = h.announceAs(hostcore.Stop{Notice: s})
		h.stopping = committed
	}
	h.mu.Unlock()
	if !s.Begins() {
		return nil
	}
	return awaitCommit(ctx, committed)
}

// announceAs reports a notice, and returns a channel that is closed when the supervisors have committed it. It runs under the
// mutex.
func (h *hostHalf) announceAs(notice hostcore.Notice) chan struct{} {
	committed, kind := make(chan struct{}), notice.Kind()
	if h.announced == nil {
		h.announced = make(map[hostcore.NoticeKind][]chan struct{})
	}
	if len(h.announced[kind]) == maxWaiters {
		h.announced[kind] = h.announced[kind][1:] // its request ends by its own deadline
	}
	h.announced[kind] = append(h.announced[kind], committed)
	now := time.Now()
	h.apply(now, h.core.Step(now, notice))
	return committed
}

// maxWaiters bounds the requests that wait for the commit of a notice of one kind.
const maxWaiters = 16

func awaitCommit(ctx context.Context, committed <-chan struct{}) error {
	select {
	case <-committed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no supervisor has committed the notice: %w", ctx.Err())
	}
}

// status returns this half's status for people on its node.
func (h *hostHalf) status() local.Status {
	s := local.Status{
		Node: string(h.Config.Node), Coord: h.Config.Coord, Platform: h.window.PlatformName(), Window: h.window.Status(time.Now()),
		Damaged: h.damaged.Load(), Spool: h.SpoolStatus(),
	}
	for i := range h.refused {
		s.Refused += h.refused[i].Load()
	}
	for k, n := range h.nets {
		s.Interfaces = append(s.Interfaces, local.InterfaceStatus{Name: h.names[k], Listen: n.LocalAddr().String()})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Host = local.HalfStatus{State: "RUNNING", Epoch: uint64(h.core.Epoch()), PID: os.Getpid()}
	s.DNP = local.HalfStatus{State: strings.ToUpper(h.core.Verdict().String()), Epoch: uint64(h.page.File.Epoch(fault.HalfDNP))}
	s.ServiceNetwork = fault.Unknown.String()
	for _, c := range h.core.States() {
		if c.Component == fault.ComponentServiceNetwork {
			s.ServiceNetwork = c.State.String()
		}
	}
	if s.Window != nil {
		s.Window.RefusedSettings = h.settings.refused()
	}
	answers := h.core.SupervisorAnswers()
	s.SupervisorAnswers = &answers
	now := time.Now()
	s.Delivery.DeliveryStatus = h.core.Delivery(now)
	h.statusOfHalves(now, &s)
	s.Broadcasts, s.Procedures, s.Torus, s.Master = h.broadcasts(), h.procedures(), h.torusCounters(), h.master()
	s.Migrations = map[string]uint64{}
	for why, n := range h.core.Migrations() {
		s.Migrations[why.String()] = n
	}
	return s
}

// statusOfHalves runs under the mutex.
func (h *hostHalf) statusOfHalves(now time.Time, s *local.Status) {
	known := h.core.Health(now)
	s.Health = map[string]local.HealthStatus{}
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if is := known.Of(half); is != nil {
			for _, t := range is.GetTests() {
				t.Module = servicenet.ModuleName(t.GetNumber(), s.Delivery.DeliveryStatus)
			}
			s.Health[half.String()] = local.HealthStatus{HalfHealth: is}
		}
	}
	heard := h.heardHalfStatus(now)
	s.Copy = local.CopyStatus{Path: h.Copy.File.Path(), Failing: heard.failing, Cold: h.halfStatus.Cold, Reports: heard.copy.Reports}
}
