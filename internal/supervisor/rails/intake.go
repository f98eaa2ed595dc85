package rails

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Leader takes verified evidence in while this replica leads.
type Leader interface {
	Leading() bool
	Submit(in engine.Input) bool
}

// Forwarder passes evidence on to the replica that leads. It does not block and may drop.
type Forwarder interface {
	Forward(req *lofamov1.ForwardRequest, arrived time.Time)
}

// IntakeConfig of an intake.
type IntakeConfig struct {
	Names     interface{ Known(fault.NodeID) bool }
	Verifier  servicenet.Verifier
	Sender    *Sender
	Leader    Leader
	Forwarder Forwarder
	// Workers verify signatures; 0 stands for 2.
	Workers int
	// Queue bounds the datagrams that wait for a worker; 0 stands for 2,048. When it is full new ones
	// are dropped and counted: they were not acknowledged, so their senders try again.
	Queue   int
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Intake takes datagrams and broadcasts in.
type Intake struct {
	cfg   IntakeConfig
	queue chan packet
}

// packet is an envelope as it came.
type packet struct {
	from    netip.AddrPort // not valid: by gossip
	data    []byte
	arrived time.Time
}

// NewIntake returns an intake; Run makes it work.
func NewIntake(cfg IntakeConfig) *Intake {
	if cfg.Workers == 0 {
		cfg.Workers = 2
	}
	if cfg.Queue == 0 {
		cfg.Queue = 2048
	}
	return &Intake{cfg: cfg, queue: make(chan packet, cfg.Queue)}
}

// Datagram takes a datagram in; b stays the caller's.
func (in *Intake) Datagram(from netip.AddrPort, b []byte) {
	in.enqueue(packet{from: from, data: slices.Clone(b), arrived: time.Now()})
}

// Broadcast takes a gossip broadcast in; b is the intake's from now on.
func (in *Intake) Broadcast(b []byte) { in.enqueue(packet{data: b, arrived: time.Now()}) }

func (in *Intake) enqueue(p packet) {
	select {
	case in.queue <- p:
	default:
		in.cfg.Metrics.Dropped.WithLabelValues("datagrams").Inc()
	}
}

// Run works until the context ends.
func (in *Intake) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range in.cfg.Workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case p := <-in.queue:
					in.cfg.Metrics.Depth.WithLabelValues("datagrams").Set(float64(len(in.queue)))
					in.handle(p)
				}
			}
		})
	}
	wg.Wait()
}

// handle verifies, answers RECEIVED and passes on.
func (in *Intake) handle(p packet) {
	path, from := fault.PathGossip, ""
	if p.from.IsValid() {
		path, from = fault.PathDirect, p.from.String()
	}
	inputs := in.Verify(p.data, path, from)
	if len(inputs) == 0 {
		return
	}
	in.received(inputs)
	if in.cfg.Leader.Leading() {
		for _, input := range inputs {
			input.Arrived, input.Answerer = p.arrived, in.cfg.Sender
			in.cfg.Leader.Submit(input)
		}
		return
	}
	in.cfg.Forwarder.Forward(&lofamov1.ForwardRequest{Envelope: p.data, From: from, Path: uint32(path)}, p.arrived)
}

// received tells the sender that the path works.
func (in *Intake) received(inputs []engine.Input) {
	var ids []fault.ReportID
	for _, input := range inputs {
		if input.Report == nil {
			continue
		}
		ids = append(ids, input.Report.Report.ID)
		if input.Report.Report.Digest {
			in.cfg.Metrics.Digests.Inc()
		} else {
			in.cfg.Metrics.Reports.WithLabelValues(input.Report.Path.String()).Inc()
		}
	}
	for _, ack := range servicenet.NewAcks(lofamov1.Ack_RECEIVED, ids...) {
		in.cfg.Sender.ack(inputs[0].To, ack)
	}
}

// Verify opens an envelope that came by path from an address, and returns what it holds for the
// engine. It counts what it refuses.
func (in *Intake) Verify(b []byte, path fault.Path, from string) []engine.Input {
	a, err := servicenet.Unwrap(b, path, in.cfg.Verifier)
	if err != nil {
		in.refuse(servicenet.RefusalOf(err).String(), from, err)
		return nil
	}
	to := engine.To{Addr: from, Relayed: a.Path == fault.PathTorus}
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_Reports:
		if !in.cfg.Names.Known(a.Reports[0].ID.Origin.Node) {
			in.refuse("unknown-node", from, nil)
			return nil
		}
		inputs := make([]engine.Input, len(a.Reports))
		for i := range a.Reports {
			d := a.Delivery(i)
			inputs[i] = engine.Input{To: to, Report: &d}
		}
		return inputs
	case *lofamov1.Message_Answer:
		ans := body.Answer
		if !in.cfg.Names.Known(fault.NodeID(ans.GetNode())) {
			in.refuse("unknown-node", from, nil)
			return nil
		}
		in.cfg.Metrics.Answers.Inc()
		return []engine.Input{{To: to, Answer: &awareness.Answered{
			Nonce:  [16]byte(ans.GetNonce()), // its length is checked with the signature
			Origin: fault.Origin{Node: fault.NodeID(ans.GetNode()), Half: fault.Half(ans.GetHalf())},
			Epoch:  fault.Epoch(ans.GetEpoch()), Path: a.Path,
		}}}
	}
	in.refuse("unexpected", from, nil)
	return nil
}

// refuse counts; strangers must not fill the log.
func (in *Intake) refuse(class, from string, err error) {
	in.cfg.Metrics.Refused.WithLabelValues(class).Inc()
	in.cfg.Logger.Debug("refused", "class", class, "from", from, "err", err)
}
