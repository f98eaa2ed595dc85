package host

import (
	"errors"
	"syscall"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// rails holds the rails of the host half, each behind the one narrow interface.
type rails struct {
	direct []servicenet.Rail // by the number of the service interface
	gossip servicenet.Rail   // nil without gossip
	torus  *half.TorusRail
}

// maxFailures bounds the failed sends that one call passes to the machine. Each may make the machine send on another
// path, which may fail as well. Time-outs detect the rest.
const maxFailures = 16

// send signs a message and hands it to its rail. The origin retransmits messages lost here. Errors that speak against
// the path are kept for tellFailures.
func (h *hostHalf) send(s *hostcore.Send) {
	if len(s.Reports) > 0 && !h.MaySend() {
		return
	}
	b, err := h.sealOnce(s)
	if err != nil {
		h.Log.Error("message not sent", "path", s.Path.String(), "err", err)
		return
	}
	switch s.Path {
	case fault.PathDirect:
		if int(s.Interface) >= len(h.nets) {
			return // no such interface: cannot be
		}
		for range failpoint.Packet(failpoint.HostSend, b) {
			if s.Addr.IsValid() {
				err = h.nets[s.Interface].Send(s.Addr, b)
			} else {
				err = h.rails.direct[s.Interface].Send(s.Target, b)
			}
		}
		if s.Target != "" {
			h.noteSend(s.Interface, s.Target, err)
		}
	case fault.PathGossip:
		if h.rails.gossip != nil {
			_ = h.rails.gossip.Send("", b) // rate-limited and counted there; the outbox carries on
		}
	case fault.PathTorus:
		_ = h.rails.torus.Post(b, s.MayWait) // counted there
	}
}

// noteSend tracks which paths the kernel refuses, and keeps errors that speak against a path.
func (h *hostHalf) noteSend(k uint8, supervisor string, err error) {
	p := servicenet.PathID{Interface: k, Supervisor: supervisor}
	c := h.sends[p]
	if c == nil {
		c = &half.Condition{}
		h.sends[p] = c
	}
	c.Set(h.Log, "sending to "+supervisor+" by service interface "+h.names[k], err)
	if direct.PathError(err) && len(h.failed) < maxFailures {
		h.failed = append(h.failed, pathFailed(k, supervisor, err))
	}
}

// pathFailed returns the hint for an error from the kernel. It names only the plain reason, because the surrounding
// text changes from datagram to datagram.
func pathFailed(k uint8, supervisor string, err error) servicenet.PathFailed {
	why := err.Error()
	var errno syscall.Errno
	if errors.As(err, &errno) {
		why = errno.Error()
	}
	return servicenet.PathFailed{Path: servicenet.PathID{Interface: k, Supervisor: supervisor}, Why: why}
}

// tellFailures passes send errors to the machine up to maxFailures, until no new send fails.
func (h *hostHalf) tellFailures(now time.Time) {
	for i := 0; i < len(h.failed) && i < maxFailures; i++ {
		h.settle(now, h.core.Step(now, hostcore.Hint{Event: h.failed[i]}))
	}
	h.failed = h.failed[:0]
}

// sealOnce seals a message. A relayed envelope that goes to several supervisors is signed once.
func (h *hostHalf) sealOnce(s *hostcore.Send) ([]byte, error) {
	if s.Relayed == nil || s.Relayed != h.relayed.of {
		b, err := h.seal(s)
		if s.Relayed != nil && err == nil {
			h.relayed.of, h.relayed.sealed = s.Relayed, b
		}
		return b, err
	}
	return h.relayed.sealed, nil
}

func (h *hostHalf) seal(s *hostcore.Send) ([]byte, error) {
	body := &lofamov1.Message{}
	switch {
	case s.Reports != nil:
		if v := h.window.Denied(h.Trust.Version.Load()); v > 0 && s.Status != nil && s.Path == fault.PathDirect {
			s.Status.Denied = v
		}
		how := servicenet.SealOptions{Checksum: s.Checksum, Health: s.Health}
		if s.Session {
			how.Session = h.keys.newest(s.Target) // without one it is signed
		}
		return servicenet.SealReports(s.Reports, s.Status, h.Signer, how)
	case s.Relayed != nil:
		return servicenet.SealRelayed(s.Relayed.Inner, s.Relayed.Hops, h.Signer)
	case s.Answer != nil:
		return half.SealAnswer(s.Answer.Nonce, h.Origin(), s.Answer.Epoch, h.Signer)
	case s.Request != nil:
		if err := h.keys.fill(s.Request); err != nil {
			return nil, err
		}
		body.Body = &lofamov1.Message_PathRequest{PathRequest: s.Request}
	case s.Interest != nil:
		body.Body = &lofamov1.Message_Interest{Interest: s.Interest}
	case s.Order != nil:
		return half.SealOrderStatus(s.Order, h.Signer)
	case s.Ack != nil:
		body.Body = &lofamov1.Message_PathAck{PathAck: s.Ack}
	}
	return servicenet.Seal(body, h.Signer)
}

func (h *hostHalf) toDNP(m halfcore.Relay) { _ = half.SendMail(h.box, m, h.Log) }
