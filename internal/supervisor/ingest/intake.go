package ingest

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// Leader accepts verified evidence while this replica leads.
type Leader interface {
	Term() uint64 // 0: it does not lead
	Submit(in engine.Input) bool
}

// Forwarder queues evidence for the leading replica, also while there is none: these reports, or an answer to a
// challenge (nil). It does not block; false means that the message was dropped.
type Forwarder interface {
	Forward(req *lofamov1.ForwardRequest, reports *servicenet.Reports, arrived time.Time) bool
	// Stream returns the unique number of the stream to the leader; 0: there is none.
	Stream() uint64
	// Restate forwards unchanged digests to that stream, if it still exists.
	Restate(stream uint64, list []engine.Restated)
}

// Bulk accepts messages of bulk transfers. It does not block.
type Bulk interface {
	Chunk(from netip.AddrPort, b []byte)
	Announced(a *servicenet.Arrival, from netip.AddrPort)
}

// Answers handles the halves' answers to the leader's orders of one kind, while this replica leads. It does not
// block.
type Answers struct {
	Take func(*lofamov1.Message)
	// Unplaced permits answers from nodes without a place in the torus, such as spares.
	Unplaced bool
}

// Notifier notifies nodes of faults that concern them. Its methods do not block.
type Notifier interface {
	Digest(d notify.Digest)
	Forwarded(d notify.Digest) // it came directly to another replica
	Interest(m *lofamov1.Interest)
}

// Renewals answers halves that ask for new certificates. It does not block.
type Renewals interface {
	Asked(a *servicenet.Arrival, from Place)
}

// Border forwards evidence to the supervisors of other regions. Its methods do not block.
type Border interface {
	// Known reports whether a node belongs to another region and borders on ours.
	Known(id fault.NodeID) bool
	// Witness forwards reports of one of our nodes that has neighbours in other regions.
	Witness(id fault.NodeID, req *lofamov1.ForwardRequest, reports *servicenet.Reports, arrived time.Time)
	// Theirs forwards messages of a node of another region: reports, or an answer (nil). False means that the message
	// was dropped.
	Theirs(id fault.NodeID, req *lofamov1.ForwardRequest, reports *servicenet.Reports, arrived time.Time) bool
}

// IntakeConfig of an intake.
type IntakeConfig struct {
	Names     interface{ Known(fault.NodeID) bool }
	Verifier  servicenet.Verifier
	Sender    *Sender
	Leader    Leader
	Forwarder Forwarder
	Bulk      Bulk
	Notifier  Notifier
	Orders    order.Registry[Answers] // answers of other kinds are dropped
	// Renewals may be nil: this replica renews no certificate.
	Renewals Renewals
	Border   Border // nil: there are no other regions
	// Lost is called when messages of any known sources may have been lost here. It must not block. May be nil.
	Lost func()
	// Workers verify signatures; 0 stands for 2.
	Workers int
	// Queue bounds the datagrams that wait for a worker; 0 stands for 2,048. When it is full, new ones are dropped
	// and counted. They were not acknowledged, so their senders retry.
	Queue   int
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Intake receives datagrams and broadcasts. Messages that claim to answer a pending challenge of this replica have
// their own queue: the intake handles answerWeight of them for each other message. So a verdict does not wait
// behind a flood of reports, and answers do not block reports. The verification work for strangers, known sources
// and proved origins is limited separately (sources).
type Intake struct {
	cfg     IntakeConfig
	queue   chan packet
	answers chan packet

	restater *restater
	copies   copies
	sources  *sources
	begun    time.Time
	lost     atomic.Int64 // last drop of a known source's message, in ns since begun, at least 1; 0: never
}

// packet is a received envelope.
type packet struct {
	from    netip.AddrPort // not valid: by gossip
	socket  uint8          // receiving socket
	data    []byte
	arrived time.Time
}

// NewIntake returns an intake; Run makes it work.
func NewIntake(cfg IntakeConfig) *Intake {
	cfg.Workers = cmp.Or(cfg.Workers, 2)
	cfg.Queue = cmp.Or(cfg.Queue, 2048)
	in := &Intake{begun: time.Now(), cfg: cfg, queue: make(chan packet, cfg.Queue), answers: make(chan packet, answerQueue)}
	in.restater = newRestater(in.restate)
	in.sources = newSources(cfg.Sender.cfg.Nodes.Owner)
	return in
}

// RequestFull implements engine.FullDigestRequester.
func (in *Intake) RequestFull(origins []fault.Origin) { in.restater.RequestFull(origins) }

// restate forwards unchanged digests.
func (in *Intake) restate(to listener, list []engine.Restated) {
	if to.stream != 0 {
		in.cfg.Forwarder.Restate(to.stream, list)
		return
	}
	in.cfg.Leader.Submit(engine.Input{Restated: list, Requester: in, Arrived: list[0].Arrived})
}

// Datagrams returns the handler for a report socket's datagrams. The caller keeps ownership of their bytes.
func (in *Intake) Datagrams(socket uint8) func(from netip.AddrPort, b []byte) {
	return func(from netip.AddrPort, b []byte) {
		if bulk.IsChunk(b) { // sealed: no signature to verify
			in.cfg.Bulk.Chunk(from, b)
			return
		}
		in.enqueue(packet{from: from, socket: socket, data: slices.Clone(b), arrived: time.Now()})
	}
}

// Broadcast accepts a gossip broadcast. The intake takes ownership of b.
func (in *Intake) Broadcast(b []byte) { in.enqueue(packet{data: b, arrived: time.Now()}) }

// handle verifies, forwards, and answers RECEIVED for accepted reports.
func (in *Intake) handle(p packet) {
	path, to, claims := fault.PathGossip, engine.To{}, []byte(nil)
	if p.from.IsValid() {
		path, to, claims = fault.PathDirect, engine.To{Addr: p.from.String(), Socket: p.socket}, p.data
	}
	if now := time.Now(); in.copies.has(claims, now, now.Sub(p.arrived)) {
		in.cfg.Metrics.Duplicates.WithLabelValues(path.String()).Inc()
		return
	}
	a, err := servicenet.Unwrap(p.data, path, in.cfg.Verifier)
	if err != nil {
		if !in.refused(err, to.Addr) && p.from.IsValid() {
			in.cfg.Sender.Again(p.place())
		}
		return
	}
	if own, ok := in.sources.origin(time.Now(), a.Name, senderOf(&a), p.from); !ok {
		in.drop("origins", own) // verdicts do not wait for copies that a stranger sends
		return
	}
	if p.from.IsValid() && a.Session != 0 {
		in.sources.learn(p.arrived, p.from, a.Name, in.sources.fresh(a.Name, a.List))
	}
	if a.Path == fault.PathDirect && in.path(&a, p.place()) {
		return
	}
	if a.Msg.GetBulkAnnounce() != nil {
		in.cfg.Bulk.Announced(&a, p.from)
		return
	}
	if st, ok := servicenet.OrderStatusOf(a.Msg); ok {
		in.answer(p, path, &a, st)
		return
	}
	to.Relayed = a.Path == fault.PathTorus
	input := in.evidence(&a, to)
	if input == nil {
		return
	}
	from := originOf(&a)
	if !in.cfg.Names.Known(from) {
		if in.cfg.Border == nil { // it has left the topology since this message was checked
			in.refuse("unknown-node", to.Addr, nil)
			return
		}
		if in.cfg.Border.Theirs(from, request(p, path, &a, input), input.Reports, p.arrived) {
			in.received(input)
		}
		return
	}
	if a.Path == fault.PathDirect {
		in.heard(&a, p.place())
	}
	if in.cfg.Border != nil && input.Reports != nil {
		in.cfg.Border.Witness(from, request(p, path, &a, input), input.Reports, p.arrived)
	}
	if in.pass(p, path, &a, input) {
		in.Taken(input)
		in.received(input)
	}
}

// answer hands an answer to an order to whoever leads.
func (in *Intake) answer(p packet, path fault.Path, a *servicenet.Arrival, st servicenet.OrderStatus) {
	to := engine.To{Addr: p.from.String()}
	if in.cfg.Leader.Term() != 0 {
		in.takeAnswer(a.Msg, st, to)
	} else if in.mayAnswer(st, to) {
		in.cfg.Forwarder.Forward(request(p, path, a, &engine.Input{To: to}), nil, p.arrived)
	}
}

// takeAnswer passes an answer to the handler of its kind of order.
func (in *Intake) takeAnswer(m *lofamov1.Message, st servicenet.OrderStatus, from engine.To) {
	if kind, ok := in.cfg.Orders.Of(st.Kind); ok && in.mayAnswer(st, from) {
		kind.Take(m)
	}
}

// mayAnswer reports whether a node may answer an order: it has a place, or the kind is for nodes without one too.
func (in *Intake) mayAnswer(st servicenet.OrderStatus, from engine.To) bool {
	kind, _ := in.cfg.Orders.Of(st.Kind)
	return kind.Unplaced || in.known(st.By.Node, from)
}

// Taken implements replica.Verifier: copies of the input need no further verification.
func (in *Intake) Taken(input *engine.Input) {
	if input.Reports != nil {
		in.copies.take(takenKey(input.Reports.List), time.Now())
	}
}

// senderOf returns the name of the half that sent the datagram: the origin, or the relay that has signed the last hop.
func senderOf(a *servicenet.Arrival) string {
	if n := len(a.Hops); n > 0 {
		return fault.Origin{Node: a.Hops[n-1].Node, Half: fault.HalfHost}.String()
	}
	return a.Name
}

// originOf returns the node that sent the message.
func originOf(a *servicenet.Arrival) fault.NodeID {
	if len(a.List) > 0 {
		return a.List[0].ID.Origin.Node
	}
	return fault.NodeID(a.Msg.GetAnswer().GetNode())
}

// request builds the request that forwards a packet to another supervisor.
func request(p packet, path fault.Path, a *servicenet.Arrival, input *engine.Input) *lofamov1.ForwardRequest {
	req := &lofamov1.ForwardRequest{Envelope: p.data, From: input.To.Addr, Socket: uint32(input.To.Socket), Path: uint32(path)}
	if a.Session != 0 {
		req.Name = a.Name // only we have the session
	}
	return req
}

func (p packet) place() Place { return Place{Addr: p.from, Socket: p.socket} }

// path handles messages for this replica alone: path exchanges and a node's interests. It reports whether the
// message was one of these.
func (in *Intake) path(a *servicenet.Arrival, from Place) bool {
	to := toPlace(from)
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_PathRequest:
		if in.known(fault.NodeID(body.PathRequest.GetNode()), to) {
			in.cfg.Sender.PathRequest(body.PathRequest, from)
		}
	case *lofamov1.Message_PathAck:
		if in.known(fault.NodeID(body.PathAck.GetNode()), to) {
			confirms := in.cfg.Sender.PathAck(body.PathAck, from)
			in.sources.learn(time.Now(), from.Addr, a.Name, confirms)
		}
	case *lofamov1.Message_Interest:
		if in.known(fault.NodeID(body.Interest.GetNode()), to) {
			in.cfg.Notifier.Interest(body.Interest)
		}
	case *lofamov1.Message_RenewRequest:
		if in.cfg.Renewals != nil {
			in.cfg.Renewals.Asked(a, from)
		}
	default:
		return false
	}
	return true
}

// heard passes on to the sender a known half's epoch, or the use of its session.
func (in *Intake) heard(a *servicenet.Arrival, from Place) {
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_Reports:
		id := a.List[0].ID
		in.cfg.Sender.Heard(id.Origin, id.Epoch, a.Session, from)
		if d, ok := digestOf(a); ok {
			in.cfg.Notifier.Digest(d)
		}
	case *lofamov1.Message_Answer:
		o := servicenet.OriginOf(body.Answer)
		in.cfg.Sender.Heard(o, fault.Epoch(body.Answer.GetEpoch()), a.Session, from)
	}
}

// digestOf returns the position that a host half's digest acknowledges; false: the message is no such digest.
func digestOf(a *servicenet.Arrival) (notify.Digest, bool) {
	if a.Status == nil || a.Path != fault.PathDirect || a.List[0].ID.Origin.Half != fault.HalfHost {
		return notify.Digest{}, false
	}
	id, st := a.List[0].ID, a.Status
	return notify.Digest{Node: id.Origin.Node, Epoch: id.Epoch, Revision: st.GetViewRevision(), List: st.GetInterest(),
		Denied: st.GetDenied()}, true
}

// pass passes evidence to the leader. False means that it was dropped.
func (in *Intake) pass(p packet, path fault.Path, a *servicenet.Arrival, input *engine.Input) bool {
	to := listener{term: in.cfg.Leader.Term()}
	if to.term == 0 {
		to.stream = in.cfg.Forwarder.Stream()
	}
	if in.restater.restates(to, input.Reports, p.arrived) {
		return true
	}
	if to.term != 0 {
		input.Arrived, input.Answerer = p.arrived, in.cfg.Sender
		return in.cfg.Leader.Submit(*input)
	}
	return in.cfg.Forwarder.Forward(request(p, path, a, input), input.Reports, p.arrived)
}

// received tells the sender that its reports were accepted and that the path works.
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

// vouched is a verifier that trusts another replica's statement of the sender behind a MAC. The checks of
// permitted content and sender still apply, and signatures are verified as usual.
type vouched struct {
	servicenet.Verifier
	name string
}

// VerifyMAC implements servicenet.SessionVerifier.
func (v vouched) VerifyMAC(uint64, []byte, []byte) (role, name string, err error) {
	return servicenet.RoleNode, v.name, nil
}

// Forwarded returns the input from a message that another replica received, or nil. It counts refused messages.
func (in *Intake) Forwarded(req *lofamov1.ForwardRequest) *engine.Input {
	if in.copies.has(req.GetEnvelope(), time.Now(), time.Duration(min(req.GetHeldNs(), math.MaxInt64))) {
		in.cfg.Metrics.Duplicates.WithLabelValues(fault.Path(req.GetPath()).String()).Inc()
		return nil
	}
	verifier := in.cfg.Verifier
	if req.GetName() != "" {
		verifier = vouched{in.cfg.Verifier, req.GetName()}
	}
	a, err := servicenet.Unwrap(req.GetEnvelope(), fault.Path(req.GetPath()), verifier)
	if err != nil {
		in.refused(err, req.GetFrom())
		return nil
	}
	if st, ok := servicenet.OrderStatusOf(a.Msg); ok {
		in.takeAnswer(a.Msg, st, engine.To{Addr: req.GetFrom()})
		return nil
	}
	input := in.evidence(&a, engine.To{
		Addr: req.GetFrom(), Socket: uint8(min(req.GetSocket(), math.MaxUint8)), Relayed: a.Path == fault.PathTorus,
	})
	if d, ok := digestOf(&a); ok && input != nil {
		in.cfg.Notifier.Forwarded(d)
	}
	return input
}

// evidence returns the engine's input from a verified message, or nil for none, which it counts.
func (in *Intake) evidence(a *servicenet.Arrival, to engine.To) *engine.Input {
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_Reports:
		if !in.takes(a.List[0].ID.Origin.Node, to) {
			return nil
		}
		if err := checkStatements(a.List); err != nil {
			in.refuse(servicenet.RefusedField.String(), to.Addr, err)
			return nil
		}
		reports := a.Reports // a copy: a pointer into the arrival would keep its packet
		reports.Words = words(a)
		return &engine.Input{To: to, Reports: &reports}
	case *lofamov1.Message_Answer:
		ans := body.Answer
		nonce := [16]byte(ans.GetNonce()) // its length is checked with the signature
		if in.cfg.Sender.lives.answer(nonce, fault.NodeID(ans.GetNode())) {
			return nil // a spare may answer, and the engine has not asked
		}
		if !in.takes(fault.NodeID(ans.GetNode()), to) {
			return nil
		}
		in.cfg.Metrics.Answers.Inc()
		if took, ok := in.cfg.Sender.asked.roundTrip(time.Now(), nonce); ok {
			in.cfg.Metrics.AnswerTime.Observe(took.Seconds())
		}
		return &engine.Input{To: to, Answer: &awareness.Answered{
			Nonce:  nonce,
			Origin: servicenet.OriginOf(ans),
			Epoch:  fault.Epoch(ans.GetEpoch()), Path: a.Path,
		}}
	}
	in.refuse("unexpected", to.Addr, nil)
	return nil
}

// checkStatements returns an error if a report contains a statement that its signing half may not make.
func checkStatements(reports []fault.Report) error {
	for i := range reports {
		id := reports[i].ID
		for _, o := range reports[i].Observations {
			if err := o.CheckStatement(id.Origin.Node, id.Origin.Half); err != nil {
				return fmt.Errorf("report %s: %w", id, err)
			}
		}
	}
	return nil
}

// takes reports whether a node may give evidence: one of ours, or one of another region that borders on ours.
func (in *Intake) takes(id fault.NodeID, from engine.To) bool {
	if !in.gives(id) {
		in.refuse("unknown-node", from.Addr, nil)
		return false
	}
	return true
}

// gives is takes without a record of the refusal.
func (in *Intake) gives(id fault.NodeID) bool {
	return in.cfg.Border != nil && in.cfg.Border.Known(id) || in.cfg.Names.Known(id)
}

func (in *Intake) known(id fault.NodeID, from engine.To) bool {
	if !in.cfg.Names.Known(id) {
		in.refuse("unknown-node", from.Addr, nil)
		return false
	}
	return true
}

// refused counts a message that could not be opened. It returns false for a damaged message, which is no attack.
func (in *Intake) refused(err error, from string) bool {
	if servicenet.IsDamaged(err) {
		in.cfg.Metrics.Damaged.Inc()
		in.cfg.Logger.Debug("damaged", "from", from, "err", err)
		return false
	}
	in.refuse(servicenet.RefusalOf(err).String(), from, err)
	return true
}

// refuse counts; strangers must not fill the log.
func (in *Intake) refuse(class, from string, err error) {
	in.cfg.Metrics.Refused.WithLabelValues(class).Inc()
	in.cfg.Logger.Debug("refused", "class", class, "from", from, "err", err)
}
