package host

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
	"github.com/lofamo/lofamo/pkg/torus/routing"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// onMessage handles a message from the DNP half: a doorbell, or an envelope that came by the torus.
func (h *hostHalf) onMessage(m mailbox.Message) {
	if m.Type == mailbox.Doorbell {
		h.mu.Lock()
		defer h.mu.Unlock()
		now := time.Now()
		h.apply(now, h.core.Step(now, h.page.ReadDNP(now, false, h.Around.Load().Links)))
		return
	}
	if m.Type == mailbox.Test {
		echo, data := half.ProbeMail(m)
		h.step(hostcore.TestMail{Echo: echo, Data: data})
		return
	}
	if m.Type == mailbox.Jobs {
		h.onJobs(m.Payload)
		return
	}
	if m.Type == mailbox.Restart {
		h.onRestart(m.Payload)
		return
	}
	if m.Type == mailbox.Certificate {
		h.onSpan(m.Payload)
		return
	}
	if m.Type == mailbox.Recovery {
		h.onRecord(m.Payload)
	}
	if m.Type == mailbox.Recovery || m.Type == mailbox.Health {
		if half, known := half.HeardHealth(m, fault.HalfDNP); known != nil {
			h.step(hostcore.Health{Half: half, Health: known})
		}
		if m.Type == mailbox.Recovery {
			h.onEnded(m)
		}
		return
	}
	if m.Type != mailbox.Envelope {
		return
	}
	msg, held, err := half.ReadMail(m.Payload, half.Monotonic())
	if err != nil {
		h.Log.Debug("message from the DNP half refused", "err", err)
		return
	}
	if msg.Kind == halfcore.RelayBack {
		h.bulk.passOn(msg, held)
		return
	}
	if msg.Kind == halfcore.RelayUp {
		h.step(hostcore.Arrived{Message: msg, Held: held})
		return
	}
	if b := h.whole(time.Now(), msg.Envelope); b != nil {
		h.receive(b, hostcore.Received{Path: fault.PathTorus})
	}
}

// Limits of restart notices through the window: the shortest time between two, how many a second, and how many at once. Each one
// becomes a report that the supervisors commit.
const (
	noticesApart = 50 * time.Millisecond
	noticeRate   = 2
	noticeBurst  = 4
)

// windowNotices decides which restart notices through the window the host half takes.
type windowNotices struct {
	last    fault.RestartNotice
	at      time.Time // of the last one
	limit   *rate.Limiter
	refused bool
}

// take reports whether to take a notice. It refuses repeated ones, because the window may lose one and the sender repeats it, and too
// many.
func (w *windowNotices) take(log *slog.Logger, now time.Time, n fault.RestartNotice) bool {
	if since := now.Sub(w.at); since < noticesApart || w.last == n && since < time.Second {
		return false
	}
	if w.limit == nil {
		w.limit = rate.NewLimiter(noticeRate, noticeBurst)
	}
	if !w.limit.AllowN(now, 1) {
		if !w.refused {
			log.Warn("refuse restart notice of the DNP half: too many come through the window; further refusals are not logged")
		}
		w.refused = true
		return false
	}
	w.last, w.at = n, now
	return true
}

// onRestart announces a restart of the DNP half to the supervisors, for its daemon on the other kernel. Daemons on this kernel
// use the half's socket, and wait for the supervisors.
func (h *hostHalf) onRestart(payload []byte) {
	within, err := half.ReadRestart(payload)
	if err != nil || h.window == nil {
		h.Log.Debug("restart notice refused", "window", h.window != nil, "err", err)
		return
	}
	n, now := fault.RestartNotice{Half: fault.HalfDNP, Within: within}, time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.notices.take(h.Log, now, n) {
		return
	}
	h.apply(now, h.core.Step(now, hostcore.Restart{Notice: n}))
}

// onEnded passes on that the DNP half's process has ended, if the daemon says so and the kernel confirms it.
func (h *hostHalf) onEnded(m mailbox.Message) {
	if how, age, ok := h.ended.Confirm(m, h.StatePath(half.RegisterFile), fault.HalfDNP); ok {
		h.step(hostcore.Ended{How: how, Age: age})
	}
}

// whole returns an envelope from the mailbox, assembled when the last of several pieces has arrived. Only the
// mailbox's goroutine calls it.
func (h *hostHalf) whole(now time.Time, b []byte) []byte {
	if !routing.IsPiece(b) {
		return b
	}
	missing := h.pieces.Tick(now)
	b, more, err := h.pieces.Take(now, 0, b)
	for _, m := range append(missing, more...) {
		h.Log.Warn("message from the DNP half given up", "why", m.String())
	}
	if err != nil {
		h.Log.Debug("message from the DNP half refused", "err", err)
	}
	return b
}

// onDatagram handles a datagram from a service interface.
func (h *hostHalf) onDatagram(k uint8, from netip.AddrPort, b []byte) {
	h.readers.Ways[k].Begin()
	defer h.readers.Ways[k].End()
	for range failpoint.Packet(failpoint.HostReceive, b) {
		if h.takesProbe(k, from, b) {
			continue
		}
		h.receive(slices.Clone(b), hostcore.Received{Path: fault.PathDirect, Interface: k, From: from})
	}
}

// receive verifies an envelope, outside the mutex, and gives the message to the machine.
func (h *hostHalf) receive(b []byte, ev hostcore.Received) {
	o, err := servicenet.Open(b, h.opens)
	if err != nil {
		h.refuse(err, ev)
		return
	}
	if r := o.Msg.GetPathReply(); r != nil {
		if err := h.keys.agree(o.Name, r); err != nil {
			h.Log.Debug("no session made", "err", err) // signatures still work
		}
	}
	if p := o.Msg.GetDenyPart(); p != nil {
		h.Trust.Take(o.Name, p) // and the machine gets the acknowledgements that came with it
	}
	if r := o.Msg.GetRenewReply(); r != nil {
		h.courier.take(r, b)
		return
	}
	h.bulk.take(o, ev.Path, ev.Interface)
	h.acting.Hear(o.Msg)
	ev.Opened = o
	h.step(ev)
}

// refuse counts rejected messages. The machine learns of damaged ones, because a damaged message may have held the
// answer to one of ours.
func (h *hostHalf) refuse(err error, ev hostcore.Received) {
	h.refused[servicenet.RefusalOf(err)].Add(1)
	h.Log.Debug("message refused", "path", ev.Path.String(), "err", err)
	if !servicenet.IsDamaged(err) {
		return
	}
	h.damaged.Add(1)
	hint := servicenet.Damaged{Path: ev.Path, Interface: ev.Interface}
	if ev.Path == fault.PathDirect {
		hint.Supervisor = h.supervisorAt(ev.Interface, ev.From)
	}
	h.step(hostcore.Hint{Event: hint})
}

// supervisorAt returns the supervisor that has this address on a service interface, or "" if there is none.
func (h *hostHalf) supervisorAt(k uint8, addr netip.AddrPort) string {
	for id, at := range h.targets[k] {
		if at == addr {
			return id
		}
	}
	return ""
}

// onPathError handles an error that the kernel returned for a datagram sent by a service interface.
func (h *hostHalf) onPathError(k uint8, to netip.AddrPort, err error) {
	if id := h.supervisorAt(k, to); id != "" {
		h.step(hostcore.Hint{Event: pathFailed(k, id, err)})
	}
}

func (h *hostHalf) onReadings(rs []sensor.Reading) { h.step(readings(rs)) }

func readings(rs []sensor.Reading) hostcore.Readings {
	ev := hostcore.Readings{Readings: make([]hostcore.Reading, 0, len(rs))}
	for _, r := range rs {
		ev.Readings = append(ev.Readings, hostcore.Reading{Component: r.Component, State: r.State, Absent: r.Absent, Detail: r.Detail,
			Quantity: r.Trend.Quantity, Value: r.Trend.Value, Threshold: r.Trend.Threshold})
	}
	return ev
}

// onMember evaluates the gossip's hints about the leader. Addresses come from the configuration.
func (h *hostHalf) onMember(ev gossip.Event) {
	m := ev.Member.Meta
	if m.Role != gossip.RoleSupervisor || !m.Leader || ev.Kind == gossip.EventLeave || ev.Kind == gossip.EventFail {
		return
	}
	if slices.Contains(h.ids, m.ID) {
		h.step(hostcore.Supervisors{Targets: h.ids, Leader: m.ID})
	}
}
