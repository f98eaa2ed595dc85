// Package rails is where a supervisor meets the agents: the sender of acks and challenges, and the
// intake that verifies what comes by the direct rail and by gossip, answers RECEIVED at once and
// passes it on to whoever leads.
//
// It judges signatures and who may say what, never health.
package rails

import (
	"context"
	"log/slog"
	"net/netip"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Socket sends datagrams; it does not block.
type Socket interface {
	Send(to netip.AddrPort, b []byte) error
}

// SenderConfig of a sender.
type SenderConfig struct {
	ID      string                          // this supervisor's
	ReplyTo string                          // its report address, for challenges
	Nodes   map[fault.NodeID]netip.AddrPort // service addresses
	Leader  func() string                   // as far as known
	Signer  servicenet.Signer
	Socket  Socket
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// sendQueue bounds each of acks and challenges that wait to be signed and sent; beyond it they are
// dropped and counted: agents send again what is not acknowledged, and the machine asks again.
const sendQueue = 4096

// Sender signs and sends what supervisors have to say to agents. Challenges go before acks: the time
// for their answer is already running.
type Sender struct {
	cfg        SenderConfig
	challenges chan func()
	acks       chan func()
}

// NewSender returns a sender; Run makes it work.
func NewSender(cfg SenderConfig) *Sender {
	return &Sender{cfg: cfg, challenges: make(chan func(), sendQueue), acks: make(chan func(), sendQueue)}
}

// Run sends what was queued until the context ends.
func (s *Sender) Run(ctx context.Context) {
	for {
		select {
		case job := <-s.challenges:
			job()
			continue
		default:
		}
		select {
		case <-ctx.Done():
			return
		case job := <-s.challenges:
			job()
		case job := <-s.acks:
			job()
			s.cfg.Metrics.Depth.WithLabelValues("send").Set(float64(len(s.acks)))
		}
	}
}

func (s *Sender) enqueue(queue chan<- func(), job func()) {
	select {
	case queue <- job:
	default:
		s.cfg.Metrics.Dropped.WithLabelValues("send").Inc()
	}
}

// Answer implements engine.Answerer.
func (s *Sender) Answer(to engine.To, ack *lofamov1.Ack) {
	s.enqueue(s.acks, func() { s.ack(to, ack) })
}

// ack signs and sends at once.
func (s *Sender) ack(to engine.To, ack *lofamov1.Ack) {
	origin := fault.NodeID(ack.GetNode())
	addr := s.cfg.Nodes[origin]
	if to.Addr != "" {
		var err error
		if addr, err = netip.ParseAddrPort(to.Addr); err != nil {
			s.fail("ack", origin, err)
			return
		}
	}
	ack.Leader = s.cfg.Leader()
	b, err := servicenet.Seal(&lofamov1.Message{Acks: []*lofamov1.Ack{ack}}, s.cfg.Signer)
	if err == nil && to.Relayed {
		b, err = servicenet.SealDowncall(origin, b, s.cfg.Signer)
	}
	if err != nil {
		s.fail("ack", origin, err)
		return
	}
	s.send("ack", origin, addr, b)
	s.cfg.Metrics.Acks.WithLabelValues(ack.GetStatus().String()).Inc()
}

// Challenge implements engine.Challenger: straight to the accused, and through its neighbours.
func (s *Sender) Challenge(c awareness.Challenge) {
	s.cfg.Metrics.Challenges.Inc()
	s.enqueue(s.challenges, func() { s.challenge(c) })
}

func (s *Sender) challenge(c awareness.Challenge) {
	msg := &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
		Nonce: c.Nonce[:], Node: string(c.Node), Half: lofamov1.Half(c.Half), ReplyTo: s.cfg.ReplyTo,
	}}}
	b, err := servicenet.Seal(msg, s.cfg.Signer)
	if err != nil {
		s.fail("challenge", c.Node, err)
		return
	}
	s.send("challenge", c.Node, s.cfg.Nodes[c.Node], b)
	if len(c.Via) == 0 {
		return
	}
	down, err := servicenet.SealDowncall(c.Node, b, s.cfg.Signer)
	if err != nil {
		s.fail("challenge", c.Node, err)
		return
	}
	for _, via := range c.Via {
		s.send("challenge", via, s.cfg.Nodes[via], down)
	}
}

func (s *Sender) send(what string, node fault.NodeID, addr netip.AddrPort, b []byte) {
	if !addr.IsValid() {
		return // no service address: only the torus reaches it
	}
	if err := s.cfg.Socket.Send(addr, b); err != nil {
		s.fail(what, node, err)
	}
}

// fail counts; it logs only for those who debug, since a dead node's address refuses every datagram.
func (s *Sender) fail(what string, node fault.NodeID, err error) {
	s.cfg.Metrics.SendFails.Inc()
	s.cfg.Logger.Debug("send", "what", what, "node", node, "err", err)
}
