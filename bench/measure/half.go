package measure

import (
	"context"
	"crypto/ecdh"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// HalfConfig of a Half.
type HalfConfig struct {
	Origin fault.Origin
	Epoch  fault.Epoch
	Outbox servicenet.OutboxConfig
	// Listen and Supervisors are by service interface: its own address, and where it reaches each replica.
	Listen      []string
	Supervisors []map[string]netip.AddrPort
	Signer      servicenet.Signer
	Verifier    servicenet.Verifier
	// Sealed gets every datagram with reports, just before it goes to the socket. Heard gets every verified message
	// of a supervisor after the outbox. Both are called with the Half locked, and must not block. Either may be nil.
	Sealed func(at time.Time, s *servicenet.Send)
	Heard  func(h *Heard)
	// Added gets the numbers of a report's parts before any part is sent, with the Half locked. It may be nil.
	Added func(first, last fault.Seq)
	// Keep stores the state, before anything of the same step is sent; nil: no state is stored.
	Keep func(e servicenet.SenderEffects, at servicenet.OutboxSnapshot)
	// SelfTest is the interval of the half's self-tests; with 0 there are none, while its timer still rings; nil: it
	// has no such timer.
	SelfTest *time.Duration
}

// Heard is a message of a supervisor.
type Heard struct {
	Arrived, Done time.Time // from the socket; after the outbox's step
	Path          servicenet.PathID
	Acks          []*lofamov1.Ack
}

// Half is a half of a node with scripted reports: the outbox, the codec and the direct rail of the agent, combined as
// in the agent, with neither sensors nor torus nor spool.
type Half struct {
	cfg   HalfConfig
	socks []*direct.Socket
	rails []*direct.Rail
	table *direct.Sessions
	opens servicenet.Verifier

	mu    sync.Mutex
	box   *servicenet.Sender
	asked map[uint64]*ecdh.PrivateKey // of path requests, by their ids
	timer *time.Timer
	tests *selfTest // nil: see HalfConfig
	armed time.Time // when the timer rings; zero: it does not
	notes []Note
	err   error
}

// Note is a message of an outbox, and its time.
type Note struct {
	At   time.Time
	Text string
}

// NewHalf opens the sockets.
func NewHalf(cfg HalfConfig) (*Half, error) {
	box, err := servicenet.NewSender(cfg.Origin, cfg.Epoch, cfg.Outbox)
	if err != nil {
		return nil, err
	}
	h := &Half{cfg: cfg, box: box, table: direct.NewSessions(), asked: map[uint64]*ecdh.PrivateKey{}, timer: time.NewTimer(time.Hour)}
	h.opens = direct.WithSessions(cfg.Verifier, h.table)
	for k, addr := range cfg.Listen {
		s, err := direct.Listen(addr, direct.Options{OnError: func(to netip.AddrPort, err error) { h.failed(uint8(k), to, err) }})
		if err != nil {
			return nil, errors.Join(err, h.close())
		}
		h.socks, h.rails = append(h.socks, s), append(h.rails, direct.NewRail(s, cfg.Supervisors[k]))
	}
	if cfg.SelfTest != nil {
		if h.tests, err = newSelfTest(h, *cfg.SelfTest); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

func (h *Half) close() error {
	var errs []error
	for _, s := range h.socks {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Run works until ctx ends. It returns errors of sealing, which would spoil the figures.
func (h *Half) Run(ctx context.Context) error {
	var ids []string
	for id := range h.cfg.Supervisors[0] {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	h.step(servicenet.Supervisors{Targets: ids})
	g, ctx := errgroup.WithContext(ctx)
	for k, s := range h.socks {
		g.Go(func() error {
			return s.Run(ctx, func(from netip.AddrPort, b []byte) { h.receive(uint8(k), from, slices.Clone(b)) })
		})
	}
	g.Go(func() error { h.ring(ctx); return nil })
	if h.tests != nil {
		g.Go(func() error { h.tests.run(ctx); return nil })
	}
	err := errors.Join(g.Wait(), h.tests.close())
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(err, h.err)
}

// Socket returns that of a service interface, for fault injection and counters.
func (h *Half) Socket(k int) *direct.Socket { return h.socks[k] }

// Add logs a report and sends the datagrams that are due.
func (h *Half) Add(r fault.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	id := h.box.Add(now, r)
	if h.cfg.Added != nil {
		h.cfg.Added(id.Seq, h.box.Snapshot().Seq)
	}
	h.apply(now)
}

// Stats returns the outbox's counters.
func (h *Half) Stats() servicenet.OutboxStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.box.Stats()
}

// Status returns how the reports fare.
func (h *Half) Status() *lofamov1.DeliveryStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.box.Status(time.Now())
}

// Notes returns the outbox' notes so far.
func (h *Half) Notes() []Note {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.notes)
}

func (h *Half) step(ev servicenet.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.box.Step(now, ev)
	h.apply(now)
}

// apply carries out the outbox' effects. It runs locked.
func (h *Half) apply(now time.Time) {
	out := h.box.Take()
	for _, n := range out.SenderNotes {
		h.notes = append(h.notes, Note{now, n.Text})
	}
	if h.cfg.Keep != nil {
		h.cfg.Keep(out.SenderEffects, h.box.Snapshot())
	}
	for i := range out.Send {
		h.send(&out.Send[i])
	}
	for i := range out.Paths {
		h.sendPath(&out.Paths[i])
	}
	if wake := h.box.Wake(); !wake.IsZero() && (h.armed.IsZero() || wake.Before(h.armed)) {
		h.armed = wake
		h.timer.Reset(wake.Sub(now))
	}
}

func (h *Half) send(s *servicenet.Send) {
	h.tests.use(time.Now())
	how := servicenet.SealOptions{Checksum: s.Checksum}
	if s.Session {
		how.Session = h.table.Newest(s.Target)
	}
	b, err := servicenet.SealReports(s.Reports, s.Status, h.cfg.Signer, how)
	if err != nil {
		h.err = errors.Join(h.err, err)
		return
	}
	if h.cfg.Sealed != nil {
		h.cfg.Sealed(time.Now(), s)
	}
	_ = h.rails[s.Interface].Send(s.Target, b) // the outbox repeats lost datagrams
}

func (h *Half) sendPath(m *servicenet.PathMessage) {
	msg := &lofamov1.Message{}
	switch {
	case m.Request != nil:
		key := h.asked[m.Request.GetId()]
		if key == nil {
			var err error
			if key, err = newExchangeKey(); err != nil {
				h.err = errors.Join(h.err, err)
				return
			}
			h.asked[m.Request.GetId()] = key
		}
		m.Request.Key = key.PublicKey().Bytes()
		msg.Body = &lofamov1.Message_PathRequest{PathRequest: m.Request}
	case m.Ack != nil:
		msg.Body = &lofamov1.Message_PathAck{PathAck: m.Ack}
	}
	b, err := servicenet.Seal(msg, h.cfg.Signer)
	if err != nil {
		h.err = errors.Join(h.err, err)
		return
	}
	_ = h.rails[m.Path.Interface].Send(m.Path.Supervisor, b) // asked again on a timer
}

func (h *Half) receive(k uint8, from netip.AddrPort, b []byte) {
	arrived := time.Now()
	if h.tests.takes(from, b) {
		return
	}
	o, err := servicenet.Open(b, h.opens)
	if err != nil {
		return // not from a supervisor, or damaged: sent again
	}
	if c := o.Msg.GetChallenge(); c != nil {
		h.answer(k, from, c)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := o.Msg.GetPathReply(); r != nil {
		if err := h.agree(o.Name, r); err != nil {
			h.err = errors.Join(h.err, err)
			return
		}
	}
	now := time.Now()
	h.box.Heard(now, o, fault.PathDirect, k)
	h.apply(now)
	if h.cfg.Heard != nil {
		h.cfg.Heard(&Heard{Arrived: arrived, Done: time.Now(), Path: servicenet.PathID{Interface: k, Supervisor: o.Name}, Acks: o.Msg.GetAcks()})
	}
}

// answer says that this half lives.
func (h *Half) answer(k uint8, to netip.AddrPort, c *lofamov1.Challenge) {
	half := lofamov1.Half(h.cfg.Origin.Half)
	if c.GetNode() != string(h.cfg.Origin.Node) || c.GetHalf() != 0 && c.GetHalf() != half {
		return
	}
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
		Nonce: c.GetNonce(), Node: c.GetNode(), Half: half, Epoch: uint64(h.cfg.Epoch),
	}}}, h.cfg.Signer)
	if err == nil {
		_ = h.socks[k].Send(to, b)
	}
}

// agree makes the session of a reply.
func (h *Half) agree(supervisor string, r *lofamov1.PathReply) error {
	private := h.asked[r.GetId()]
	if private == nil {
		return nil
	}
	secret, err := servicenet.PathExchange{
		Half: h.cfg.Origin.String(), Epoch: r.GetEpoch(), ID: r.GetId(), Supervisor: supervisor, Session: r.GetSession(),
	}.Secret(private, r.GetKey())
	if err != nil {
		return err
	}
	if !h.table.Put(supervisor, servicenet.RoleSupervisor, servicenet.NewSession(r.GetSession(), secret)) {
		return fmt.Errorf("session %#x with %s: its name is in use", r.GetSession(), supervisor)
	}
	return nil
}

// failed passes on the kernel's error against a path.
func (h *Half) failed(k uint8, to netip.AddrPort, err error) {
	for id, at := range h.cfg.Supervisors[k] {
		if at == to {
			h.step(servicenet.PathFailed{Path: servicenet.PathID{Interface: k, Supervisor: id}, Why: err.Error()})
		}
	}
}

// ring is the timer's goroutine.
func (h *Half) ring(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.timer.C:
			h.mu.Lock()
			now := time.Now()
			h.armed = time.Time{}
			h.box.Tick(now)
			h.apply(now)
			h.mu.Unlock()
		}
	}
}
