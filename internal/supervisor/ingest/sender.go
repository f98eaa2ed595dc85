// Package ingest connects a supervisor with the agents. The sender sends acks and challenges. The intake verifies
// messages from the direct rail and from gossip, forwards them to the leader, and immediately answers RECEIVED for
// accepted reports.
//
// It checks signatures and permissions, and never judges health.
package ingest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

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

// Port is one report address of this supervisor.
type Port struct {
	Socket  Socket
	ReplyTo string // the address at which agents reach it, for challenges
}

// Addresses maps nodes to their service interfaces, by number, and addresses to their owners.
type Addresses interface {
	Services(id fault.NodeID) []netip.AddrPort
	Owner(addr netip.AddrPort) (fault.NodeID, bool)
}

// SenderConfig of a sender.
type SenderConfig struct {
	Ports []Port // by number, at least one
	// Nodes returns the service addresses of the nodes. The k-th is reached from the k-th port, or from the last one
	// if there are fewer.
	Nodes  Addresses
	Paths  *Exchanges
	Leader func() string // as far as known
	// NoQuorum returns the time this replica has been without a quorum. 0: it has one; negative: it has had none
	// since it started. It does not block.
	NoQuorum func() time.Duration
	// Refused gets each challenge that the node's kernel refused at every address to which it went straight. It must
	// not block. May be nil.
	Refused func(awareness.Refused)
	Signer  servicenet.Signer
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// challengeQueue bounds the challenges that wait to be signed and sent; beyond it they are dropped and
// counted: the machine asks again.
const challengeQueue = 4096

// Sender signs and sends the supervisors' messages to agents. RECEIVED leaves at once, from the replica that
// received the reports. COMMITTED and STALE_EPOCH wait briefly for a message that can carry them. Challenges go
// first, because the time for their answer is already running.
type Sender struct {
	cfg        SenderConfig
	challenges chan question
	behind     atomic.Int64  // queueing delay of the latest challenge, in ns; 0 when none waits
	woken      chan struct{} // room for one
	limit      *againLimit
	again      sealedAgain

	asked asked
	lives lives

	denials sealedParts

	mu   sync.Mutex
	acks *ackTable
}

// question is a challenge that waits, and since when.
type question struct {
	awareness.Challenge
	since time.Time
}

// NewSender returns a sender; Run makes it work.
func NewSender(cfg SenderConfig) *Sender {
	s := &Sender{
		cfg: cfg, challenges: make(chan question, challengeQueue), woken: make(chan struct{}, 1), acks: newAckTable(),
		limit: newAgainLimit(),
	}
	return s
}

// Run sends queued messages until the context ends.
func (s *Sender) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case q := <-s.challenges:
			s.put(q)
			continue
		default:
		}
		if s.flushOne(timer) {
			continue
		}
		select {
		case <-ctx.Done():
		case q := <-s.challenges:
			s.put(q)
		case <-s.woken:
		case <-timer.C:
		}
	}
}

// flushOne repeats the due replies, and sends the due acks of one destination. It returns false if there are none,
// after setting the timer to the next due time.
func (s *Sender) flushOne(timer *time.Timer) bool {
	now := time.Now()
	replies, repeat := s.cfg.Paths.tick(now)
	s.answerPaths(replies)
	s.mu.Lock()
	h, lost := s.acks.due(now)
	wake, depth := s.acks.wake(), len(s.acks.halves)
	s.mu.Unlock()
	s.cfg.Metrics.Depth.WithLabelValues("acks").Set(float64(depth))
	s.dropped(lost)
	if h != nil {
		s.say("ack", h.origin, h.to, s.cfg.Paths.seal(h.origin), nil, h.acks)
		return true
	}
	if wake.IsZero() || !repeat.IsZero() && repeat.Before(wake) {
		wake = repeat
	}
	if wake.IsZero() {
		timer.Stop()
	} else {
		timer.Reset(max(0, time.Until(wake)))
	}
	return false
}

func (s *Sender) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

func (s *Sender) dropped(acks int) {
	if acks > 0 {
		s.cfg.Metrics.Dropped.WithLabelValues("acks").Add(float64(acks))
	}
}

// Answer implements engine.Answerer; the ack is the sender's from now on.
func (s *Sender) Answer(to engine.To, ack *lofamov1.Ack) {
	origin := servicenet.OriginOf(ack)
	s.mu.Lock()
	idle := len(s.acks.waiting) == 0 // so Run sleeps until the next deadline or wake-up
	ok := s.acks.hold(time.Now(), s.dest(origin, to), to, ack)
	s.mu.Unlock()
	if !ok {
		s.dropped(1)
	}
	if idle {
		s.wake()
	}
}

// Received acknowledges reports, all of one origin, to their sender at once.
func (s *Sender) Received(to engine.To, ids []fault.ReportID) {
	s.say("ack", ids[0].Origin, to, s.cfg.Paths.reply(ids[0]), nil, servicenet.NewAcks(lofamov1.Ack_RECEIVED, ids...))
}

// PathRequest processes the REQ of a known half.
func (s *Sender) PathRequest(m *lofamov1.PathRequest, from Place) {
	s.answerPaths(s.cfg.Paths.request(time.Now(), m, from))
	s.wake() // for the repetition
}

// PathAck processes the ACK of a known half. It reports whether the ACK establishes a path; a replay does not.
func (s *Sender) PathAck(m *lofamov1.PathAck, from Place) bool {
	out := s.cfg.Paths.ack(m, from)
	s.established(servicenet.OriginOf(m), out)
	return out.Outcome == pathConfirmed
}

// Heard records a verified message that came directly from a known half: signed in an epoch, or under a session's
// MAC.
func (s *Sender) Heard(o fault.Origin, epoch fault.Epoch, session uint64, from Place) {
	s.established(o, s.cfg.Paths.heard(o, epoch, session, from))
}

// Notify sends the host half of a node its updates, under its session if there is one. Lost updates are sent again.
func (s *Sender) Notify(node fault.NodeID, update *lofamov1.FaultUpdate) {
	o := fault.Origin{Node: node, Half: fault.HalfHost}
	s.say("told", o, engine.To{}, s.cfg.Paths.seal(o), &lofamov1.Message{Body: &lofamov1.Message_FaultUpdate{FaultUpdate: update}}, nil)
}

// Deny sends a signed part of the list of revoked certificates to a node's host half. The caller repeats lost parts.
func (s *Sender) Deny(node fault.NodeID, part *lofamov1.DenyPart) {
	at, ok, err := s.place(fault.Origin{Node: node, Half: fault.HalfHost}, engine.To{})
	if ok && err == nil {
		var b []byte
		if b, err = s.denials.seal(part, s.cfg.Signer); err == nil {
			s.send("deny part", node, at, b)
		}
	}
	if err != nil {
		s.fail("deny part", node, err)
	}
}

// sealedParts keeps the sealed parts of the newest list of revoked certificates, so that a part is signed once and not for each node.
type sealedParts struct {
	mu   sync.Mutex
	cert []byte // of the signatures
	of   map[*lofamov1.DenyPart][]byte
}

// seal returns a part sealed under the signer's certificate in use.
func (p *sealedParts) seal(part *lofamov1.DenyPart, signer servicenet.Signer) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cert := signer.Cert()
	if b := p.of[part]; b != nil && bytes.Equal(cert, p.cert) {
		return b, nil
	}
	if p.of == nil || len(p.of) >= servicenet.MaxDenyParts || !bytes.Equal(cert, p.cert) {
		p.cert, p.of = cert, make(map[*lofamov1.DenyPart][]byte)
	}
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_DenyPart{DenyPart: part}}, signer)
	if err == nil {
		p.of[part] = b
	}
	return b, err
}

// Renewed answers a half's request for a new certificate, at the request's source address. The half repeats a
// request if the answer is lost.
func (s *Sender) Renewed(reply *lofamov1.RenewReply, at Place) {
	s.deliver("renewal", servicenet.OriginOf(reply), engine.To{}, at, servicenet.SealOptions{},
		&lofamov1.Message{Body: &lofamov1.Message_RenewReply{RenewReply: reply}})
}

// answerPaths sends replies, always signed: the half does not have the session yet.
func (s *Sender) answerPaths(out pathOutput) {
	for _, send := range out.Sends {
		reply := proto.CloneOf(send.Reply)
		reply.Leader = s.cfg.Leader()
		o := servicenet.OriginOf(reply)
		s.say("path reply", o, toPlace(send.To), servicenet.SealOptions{},
			&lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: reply}}, nil)
	}
}

func toPlace(p Place) engine.To { return engine.To{Addr: p.Addr.String(), Socket: p.Socket} }

// established sends the messages that wait for the half by a newly established path.
func (s *Sender) established(o fault.Origin, out pathOutput) {
	if out.Established {
		s.say("ack", o, toPlace(out.Place), s.cfg.Paths.seal(o), nil, nil)
	}
}

// Challenge implements engine.Challenger: straight to the accused by all its interfaces, and through its
// neighbours.
func (s *Sender) Challenge(c awareness.Challenge) bool {
	s.cfg.Metrics.Challenges.Inc()
	s.asked.note(time.Now(), c.Nonce)
	select {
	case s.challenges <- question{c, time.Now()}:
		return true
	default:
		s.cfg.Metrics.Dropped.WithLabelValues("send").Inc()
		return false
	}
}

// put sends a challenge that has waited.
func (s *Sender) put(q question) {
	if len(s.challenges) == 0 {
		s.behind.Store(0)
	} else {
		s.behind.Store(int64(time.Since(q.since)))
	}
	s.challenge(q.Challenge)
}

// Behind implements engine.Challenger.
func (s *Sender) Behind() time.Duration { return time.Duration(s.behind.Load()) }

// challenge sends one challenge. It is always signed: a half that has just restarted has no session, and must not
// be declared dead for that reason.
func (s *Sender) challenge(c awareness.Challenge) {
	body := func(socket uint8) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
			Nonce: c.Nonce[:], Node: string(c.Node), Half: lofamov1.Half(c.Half), ReplyTo: s.cfg.Ports[socket].ReplyTo,
			Term: c.Term, IssuedNs: c.Issued,
		}}}
	}
	sealed := make([][]byte, len(s.cfg.Ports)) // by socket
	seal := func(socket uint8) []byte {
		if sealed[socket] == nil {
			var err error
			if sealed[socket], err = servicenet.Seal(body(socket), s.cfg.Signer); err != nil {
				s.fail("challenge", c.Node, err)
			}
		}
		return sealed[socket]
	}
	host, places := fault.Origin{Node: c.Node, Half: fault.HalfHost}, s.places(c.Node)
	if c.Again {
		s.asked.straight(c.Node, c.Nonce, places)
	}
	for i, at := range places {
		if i == 0 && !c.Again && c.Half != fault.HalfDNP && s.waits(s.dest(host, toPlace(at))) {
			s.say("challenge", host, toPlace(at), servicenet.SealOptions{}, body(at.Socket), nil)
			continue
		}
		if b := seal(at.Socket); b != nil {
			s.send("challenge", c.Node, at, b)
		}
	}
	if len(c.Via) == 0 || seal(0) == nil {
		return
	}
	down, err := servicenet.SealDowncall(c.Node, seal(0), s.cfg.Signer)
	if err != nil {
		s.fail("challenge", c.Node, err)
		return
	}
	for _, via := range c.Via {
		if list := s.configured(via); len(list) > 0 {
			s.send("challenge", via, list[0], down)
		}
	}
}

// waits reports whether there are waiting acks that a challenge can carry.
func (s *Sender) waits(d dest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acks.halves[d] != nil
}

// configured are a node's service interfaces as the configuration has them.
func (s *Sender) configured(id fault.NodeID) []Place {
	var out []Place
	for k, addr := range s.cfg.Nodes.Services(id) {
		out = append(out, Place{Addr: addr, Socket: s.socket(k)})
	}
	return out
}

// ChallengeAddress sends a datagram to an address that may become the service address of this number of a node.
func (s *Sender) ChallengeAddress(number int, to netip.AddrPort, b []byte) {
	s.send("address challenge", "", Place{Addr: to, Socket: s.socket(number)}, b)
}

// socket returns the number of the socket that reaches the service addresses of a number.
func (s *Sender) socket(number int) uint8 { return uint8(min(number, len(s.cfg.Ports)-1)) }

// places are all at which a node may be reached: as configured, and where its halves have established
// paths.
func (s *Sender) places(id fault.NodeID) []Place {
	out := s.configured(id)
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		for _, p := range s.cfg.Paths.places(fault.Origin{Node: id, Half: half}) {
			if !slices.ContainsFunc(out, func(q Place) bool { return q.Addr == p.Addr }) {
				out = append(out, p)
			}
		}
	}
	return out
}

// place returns the destination for a half: the source of its message or, for gossip, the half's newest path or
// its node's first service interface. False means that only the torus reaches it.
func (s *Sender) place(origin fault.Origin, to engine.To) (Place, bool, error) {
	if to.Addr == "" {
		list := append(s.cfg.Paths.places(origin), s.configured(origin.Node)...)
		if len(list) == 0 {
			return Place{}, false, nil
		}
		return list[0], true, nil
	}
	addr, err := netip.ParseAddrPort(to.Addr)
	if err == nil && int(to.Socket) >= len(s.cfg.Ports) {
		err = fmt.Errorf("report address: given number %d: want 0 to %d", to.Socket, len(s.cfg.Ports)-1)
	}
	return Place{Addr: addr, Socket: to.Socket}, err == nil, err
}

// dest returns the key of a half's waiting acks for a destination. Only a configured address is known to be the
// half's: a replayed datagram may come from anywhere, and so may a replay of a whole exchange that established a
// path.
func (s *Sender) dest(origin fault.Origin, to engine.To) dest {
	if !to.Relayed && (to.Addr == "" || s.owns(origin.Node, to.Addr)) {
		return dest{origin: origin}
	}
	return dest{origin, to}
}

// owns reports whether an address is one of a node's service interfaces.
func (s *Sender) owns(node fault.NodeID, text string) bool {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return false
	}
	owner, ok := s.cfg.Nodes.Owner(addr)
	return ok && owner == node
}

// Sizes of a message's framing in bytes: an envelope's tags and lengths with its signature and checksum, and a
// downcall's with the node's name.
const (
	envelopeSize = 64 + 40
	downcallSize = servicenet.MaxNodeID + 12
)

// room returns the number of bytes of acks that fit beside a body.
func (s *Sender) room(to engine.To, body *lofamov1.Message) int {
	around := len(s.cfg.Signer.Cert()) + envelopeSize
	if to.Relayed {
		around += around + downcallSize
	}
	return servicenet.MaxDatagram - around - proto.Size(body)
}

// say sends a body (nil: none) and acks to a half, together with its waiting acks. It splits them into as many
// messages as needed and seals them with the given options. Messages through the torus are signed.
func (s *Sender) say(what string, origin fault.Origin, to engine.To, o servicenet.SealOptions, body *lofamov1.Message,
	acks []*lofamov1.Ack) {
	s.mu.Lock()
	acks = append(slices.Clip(acks), s.acks.take(s.dest(origin, to))...)
	s.mu.Unlock()
	leader, noQuorum := s.cfg.Leader(), inMilliseconds(s.cfg.NoQuorum())
	for _, a := range acks {
		a.Leader = leader
	}
	if to.Relayed {
		o = servicenet.SealOptions{}
	}
	at, ok, err := s.place(origin, to)
	if err != nil {
		s.fail(what, origin.Node, err)
	}
	if !ok {
		s.dropped(len(acks))
		return
	}
	for body != nil || len(acks) > 0 {
		msg := body
		if msg == nil {
			msg = &lofamov1.Message{}
		}
		msg.NoQuorumMs = noQuorum
		msg.Acks, acks = pack(acks, s.room(to, msg))
		if !s.deliver(what, origin, to, at, o, msg) {
			s.keep(origin, to, append(msg.GetAcks(), acks...))
			return
		}
		body = nil
	}
}

// inMilliseconds rounds up, so that no time at all is 0 alone; negative is -1.
func inMilliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return min((d + time.Millisecond - 1).Milliseconds(), servicenet.MaxAge.Milliseconds())
}

// keep stores unsent acks until the half is heard again, except RECEIVED, which only makes sense on a working
// path.
func (s *Sender) keep(origin fault.Origin, to engine.To, acks []*lofamov1.Ack) {
	acks = slices.DeleteFunc(acks, func(a *lofamov1.Ack) bool { return a.GetStatus() == lofamov1.Ack_RECEIVED })
	if len(acks) == 0 {
		return
	}
	s.mu.Lock()
	kept := s.acks.keep(time.Now(), s.dest(origin, to), to, acks)
	s.mu.Unlock()
	if !kept {
		s.dropped(len(acks))
	}
}

// deliver seals and sends one message.
func (s *Sender) deliver(what string, origin fault.Origin, to engine.To, at Place, o servicenet.SealOptions,
	msg *lofamov1.Message) bool {
	b, err := servicenet.SealWith(msg, s.cfg.Signer, o)
	if err == nil && to.Relayed {
		b, err = servicenet.SealDowncall(origin.Node, b, s.cfg.Signer)
	}
	if err != nil {
		s.fail(what, origin.Node, err)
		return false
	}
	if !s.send(what, origin.Node, at, b) {
		return false
	}
	s.cfg.Metrics.AcksCarried.Observe(float64(len(msg.GetAcks())))
	for _, a := range msg.GetAcks() {
		s.cfg.Metrics.Acks.WithLabelValues(a.GetStatus().String()).Inc()
	}
	return true
}

func (s *Sender) send(what string, node fault.NodeID, at Place, b []byte) bool {
	if err := s.cfg.Ports[at.Socket].Socket.Send(at.Addr, b); err != nil {
		s.fail(what, node, err)
		return false
	}
	return true
}

// fail counts a failed send. It logs at debug level only, since a dead node's address refuses every datagram.
func (s *Sender) fail(what string, node fault.NodeID, err error) {
	s.cfg.Metrics.SendFails.Inc()
	s.cfg.Logger.Debug("send", "what", what, "node", node, "err", err)
}
