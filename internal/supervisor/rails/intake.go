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
	input, ok := in.Verify(p.data, path, from)
	if !ok {
		return
	}
	input.Arrived = p.arrived
	if input.Report != nil {
		in.received(input)
	}
	if in.cfg.Leader.Leading() {
		input.Answerer = in.cfg.Sender
		in.cfg.Leader.Submit(input)
		return
	}
	in.cfg.Forwarder.Forward(&lofamov1.ForwardRequest{Envelope: p.data, From: from, Path: uint32(path)}, p.arrived)
}

// received tells the sender that the path works.
func (in *Intake) received(input engine.Input) {
	rep := &input.Report.Report
	if rep.Digest {
		in.cfg.Metrics.Digests.Inc()
	} else {
		in.cfg.Metrics.Reports.WithLabelValues(input.Report.Path.String()).Inc()
	}
	in.cfg.Sender.ack(input.To, &lofamov1.Ack{
		Status: lofamov1.Ack_RECEIVED, Ids: []*lofamov1.ReportID{servicenet.EncodeReportID(rep.ID)},
	})
}

// Verify opens an envelope that came by path from an address. It counts what it refuses.
func (in *Intake) Verify(b []byte, path fault.Path, from string) (engine.Input, bool) {
	delivery, msg, err := servicenet.Unwrap(b, path, in.cfg.Verifier)
	if err != nil {
		in.refuse(servicenet.RefusalOf(err).String(), from, err)
		return engine.Input{}, false
	}
	input := engine.Input{To: engine.To{Addr: from, Relayed: delivery.Path == fault.PathTorus}}
	switch body := msg.GetBody().(type) {
	case *lofamov1.Message_Report:
		if !in.cfg.Names.Known(delivery.Report.ID.Origin.Node) {
			in.refuse("unknown-node", from, nil)
			return engine.Input{}, false
		}
		input.Report = &delivery
	case *lofamov1.Message_Answer:
		a := body.Answer
		if !in.cfg.Names.Known(fault.NodeID(a.GetNode())) {
			in.refuse("unknown-node", from, nil)
			return engine.Input{}, false
		}
		in.cfg.Metrics.Answers.Inc()
		input.Answer = &awareness.Answered{
			Nonce:  [16]byte(a.GetNonce()), // its length is checked with the signature
			Origin: fault.Origin{Node: fault.NodeID(a.GetNode()), Half: fault.Half(a.GetHalf())},
			Epoch:  fault.Epoch(a.GetEpoch()), Path: delivery.Path,
		}
	default:
		in.refuse("unexpected", from, nil)
		return engine.Input{}, false
	}
	return input, true
}

// refuse counts; strangers must not fill the log.
func (in *Intake) refuse(class, from string, err error) {
	in.cfg.Metrics.Refused.WithLabelValues(class).Inc()
	in.cfg.Logger.Debug("refused", "class", class, "from", from, "err", err)
}
