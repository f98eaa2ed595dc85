package rails

import (
	"context"
	"log/slog"
	"math"
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

// Forwarder passes evidence on to the replica that leads. It does not block; false means that it was
// dropped.
type Forwarder interface {
	Forward(req *lofamov1.ForwardRequest, arrived time.Time) bool
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

// Intake takes datagrams and broadcasts in. What says that it is an answer to a challenge waits in a
// queue of its own, which goes first: the verdict on a node does not wait for its turn behind a flood of
// reports.
type Intake struct {
	cfg     IntakeConfig
	queue   chan packet
	answers chan packet
}

// packet is an envelope as it came.
type packet struct {
	from    netip.AddrPort // not valid: by gossip
	socket  uint8          // at which it came
	data    []byte
	arrived time.Time
}

// answerQueue bounds the answers that wait for a worker. One challenge has two, on each rail.
const answerQueue = 1024

// NewIntake returns an intake; Run makes it work.
func NewIntake(cfg IntakeConfig) *Intake {
	if cfg.Workers == 0 {
		cfg.Workers = 2
	}
	if cfg.Queue == 0 {
		cfg.Queue = 2048
	}
	return &Intake{cfg: cfg, queue: make(chan packet, cfg.Queue), answers: make(chan packet, answerQueue)}
}

// Datagrams returns what takes the datagrams of a report socket in; they stay the caller's.
func (in *Intake) Datagrams(socket uint8) func(from netip.AddrPort, b []byte) {
	return func(from netip.AddrPort, b []byte) {
		in.enqueue(packet{from: from, socket: socket, data: slices.Clone(b), arrived: time.Now()})
	}
}

// Broadcast takes a gossip broadcast in; b is the intake's from now on.
func (in *Intake) Broadcast(b []byte) { in.enqueue(packet{data: b, arrived: time.Now()}) }

func (in *Intake) enqueue(p packet) {
	queue, name := in.queue, "datagrams"
	if claimsAnswer(p.data) {
		queue, name = in.answers, "answers"
	}
	select {
	case queue <- p:
	default:
		in.cfg.Metrics.Dropped.WithLabelValues(name).Inc()
	}
}

// Run works until the context ends.
func (in *Intake) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for range in.cfg.Workers {
		wg.Go(func() {
			for {
				select {
				case p := <-in.answers:
					in.handle(p)
					continue
				default:
				}
				select {
				case <-ctx.Done():
					return
				case p := <-in.answers:
					in.handle(p)
				case p := <-in.queue:
					in.cfg.Metrics.Depth.WithLabelValues("datagrams").Set(float64(len(in.queue)))
					in.handle(p)
				}
			}
		})
	}
	wg.Wait()
}

// handle verifies, passes on, and answers RECEIVED for what was taken.
func (in *Intake) handle(p packet) {
	path, to := fault.PathGossip, engine.To{}
	if p.from.IsValid() {
		path, to = fault.PathDirect, engine.To{Addr: p.from.String(), Socket: p.socket}
	}
	a, err := servicenet.Unwrap(p.data, path, in.cfg.Verifier)
	if err != nil {
		in.refuse(servicenet.RefusalOf(err).String(), to.Addr, err)
		return
	}
	to.Relayed = a.Path == fault.PathTorus
	input := in.evidence(&a, to)
	if input == nil || !in.pass(p, path, input) {
		return
	}
	in.received(input)
}

// pass hands evidence to whoever leads. False means that it was dropped.
func (in *Intake) pass(p packet, path fault.Path, input *engine.Input) bool {
	if in.cfg.Leader.Leading() {
		input.Arrived, input.Answerer = p.arrived, in.cfg.Sender
		return in.cfg.Leader.Submit(*input)
	}
	return in.cfg.Forwarder.Forward(&lofamov1.ForwardRequest{
		Envelope: p.data, From: input.To.Addr, Socket: uint32(input.To.Socket), Path: uint32(path),
	}, p.arrived)
}

// received tells the sender of reports that the path works, and that they were taken.
func (in *Intake) received(input *engine.Input) {
	if input.Reports == nil {
		return
	}
	list := input.Reports.List
	in.cfg.Metrics.PerDatagram.Observe(float64(len(list)))
	ids := make([]fault.ReportID, len(list))
	for i := range list {
		ids[i] = list[i].ID
		if list[i].Digest {
			in.cfg.Metrics.Digests.Inc()
		} else {
			in.cfg.Metrics.Reports.WithLabelValues(input.Reports.Path.String()).Inc()
		}
	}
	in.cfg.Sender.Received(input.To, ids)
}

// Forwarded takes in what another replica received, or returns nil. It counts what it refuses.
func (in *Intake) Forwarded(req *lofamov1.ForwardRequest) *engine.Input {
	a, err := servicenet.Unwrap(req.GetEnvelope(), fault.Path(req.GetPath()), in.cfg.Verifier)
	if err != nil {
		in.refuse(servicenet.RefusalOf(err).String(), req.GetFrom(), err)
		return nil
	}
	return in.evidence(&a, engine.To{
		Addr: req.GetFrom(), Socket: uint8(min(req.GetSocket(), math.MaxUint8)), Relayed: a.Path == fault.PathTorus,
	})
}

// evidence is what a verified message holds for the engine; nil: nothing, which was counted.
func (in *Intake) evidence(a *servicenet.Arrival, to engine.To) *engine.Input {
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_Reports:
		if !in.known(a.Reports[0].ID.Origin.Node, to) {
			return nil
		}
		return &engine.Input{To: to, Reports: &engine.Reports{List: a.Reports, Path: a.Path, Hops: a.Hops, Status: a.Status}}
	case *lofamov1.Message_Answer:
		ans := body.Answer
		if !in.known(fault.NodeID(ans.GetNode()), to) {
			return nil
		}
		in.cfg.Metrics.Answers.Inc()
		return &engine.Input{To: to, Answer: &awareness.Answered{
			Nonce:  [16]byte(ans.GetNonce()), // its length is checked with the signature
			Origin: fault.Origin{Node: fault.NodeID(ans.GetNode()), Half: fault.Half(ans.GetHalf())},
			Epoch:  fault.Epoch(ans.GetEpoch()), Path: a.Path,
		}}
	}
	in.refuse("unexpected", to.Addr, nil)
	return nil
}

func (in *Intake) known(id fault.NodeID, from engine.To) bool {
	if !in.cfg.Names.Known(id) {
		in.refuse("unknown-node", from.Addr, nil)
		return false
	}
	return true
}

// refuse counts; strangers must not fill the log.
func (in *Intake) refuse(class, from string, err error) {
	in.cfg.Metrics.Refused.WithLabelValues(class).Inc()
	in.cfg.Logger.Debug("refused", "class", class, "from", from, "err", err)
}
