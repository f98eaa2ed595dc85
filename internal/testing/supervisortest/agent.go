package supervisortest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// Agent is both halves of a node behind one socket. A half answers challenges unless it was killed.
type Agent struct {
	ID fault.NodeID

	socket *direct.Socket
	verify *pki.Verifier
	sign   map[fault.Half]*pki.Signer
	// suffers is an additional observation of the host half; nil: none.
	suffers atomic.Pointer[fault.Observation]
	// health goes with the host half's digests; nil: none.
	health       atomic.Pointer[lofamov1.HalfHealth]
	viewRevision atomic.Uint64

	mu            sync.Mutex
	seq           map[fault.Half]fault.Seq
	epoch         map[fault.Half]fault.Epoch
	dead          map[fault.Half]bool
	acks          []Ack
	again         int
	renewals      chan *lofamov1.RenewReply
	updates       []*lofamov1.FaultUpdate
	mask          *lofamov1.MaskOrder          // the newest; nil: none
	configuration *lofamov1.TorusConfiguration // newest part; nil: none
	peers         *lofamov1.PeerStatus         // nil: it has no peers
	torus         string                       // short name of the torus of its configuration, "-" for none
	maps          func(*lofamov1.MapOrder) []*lofamov1.MappedNode

	acts       func(*lofamov1.ActOrder) *lofamov1.ActStatus
	procedures []*lofamov1.ProcedureOrder // received orders
	lingers    bool                       // it reports the end of a procedure only when asked
	heard      chan struct{}              // closed and renewed with every ack
}

// acksKept is the number of newest acks that an agent keeps at least; at most twice as many. A test of hours gets one for each digest.
const acksKept = 1 << 14

// Ack is an acknowledgement as an agent received it.
type Ack struct {
	*lofamov1.Ack
	From    string // the supervisor that signed it
	Addr    string // its source address
	Through fault.NodeID
	At      time.Time
}

// agent creates a node's keys and opens its socket.
func (c *Cluster) agent(t testing.TB, id fault.NodeID) *Agent {
	t.Helper()
	a := &Agent{
		ID: id, sign: make(map[fault.Half]*pki.Signer), seq: make(map[fault.Half]fault.Seq),
		epoch: map[fault.Half]fault.Epoch{fault.HalfHost: 1, fault.HalfDNP: 1}, dead: make(map[fault.Half]bool),
		heard: make(chan struct{}), renewals: make(chan *lofamov1.RenewReply, 16),
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		name := string(id) + "-" + h.String()
		c.issue(t, pki.NodeIdentity(Name, id, h), name)
		s, err := pki.LoadSigner(c.path(name+".pem"), c.path(name+".key"))
		must(t, err)
		a.sign[h] = s
	}
	var err error
	a.verify, err = pki.LoadVerifier(c.path("ca.pem"), Name)
	must(t, err)
	a.socket, err = direct.Listen(freeport.Addr(t).String(), direct.Options{})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.socket.Run(ctx, a.handle)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return a
}

// Addr returns the node's service address.
func (a *Agent) Addr() string { return a.socket.LocalAddr().String() }

// Kill makes halves silent: they do not answer challenges.
func (a *Agent) Kill(halves ...fault.Half) { a.setDead(true, halves) }

// Revive undoes Kill.
func (a *Agent) Revive(halves ...fault.Half) { a.setDead(false, halves) }

func (a *Agent) setDead(dead bool, halves []fault.Half) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range halves {
		a.dead[h] = dead
	}
}

// SetEpoch sets the boot epoch of a half and resets its sequence.
func (a *Agent) SetEpoch(h fault.Half, e fault.Epoch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch[h], a.seq[h] = e, 0
}

// Report returns a report of a half, signed and ready to send.
func (a *Agent) Report(t testing.TB, h fault.Half, digest bool, obs ...fault.Observation) (fault.ReportID, []byte) {
	t.Helper()
	a.mu.Lock()
	a.seq[h]++
	id := fault.ReportID{Origin: fault.Origin{Node: a.ID, Half: h}, Epoch: a.epoch[h], Seq: a.seq[h]}
	a.mu.Unlock()
	for i := range obs {
		if obs[i].Node == "" {
			obs[i].Node = a.ID
		}
	}
	var status *lofamov1.DeliveryStatus
	if digest {
		status = &lofamov1.DeliveryStatus{State: lofamov1.PathState_MIGRATED, Primary: "eth0>s1", ViewRevision: a.viewRevision.Load()}
	}
	b, err := servicenet.SealReports([]fault.Report{{ID: id, Digest: digest, Observations: obs, Uptime: time.Minute}}, status,
		a.sign[h], servicenet.SealOptions{Health: a.healthFor(h, digest)})
	if err != nil {
		t.Errorf("seal report %s: %v", id, err) // not Fatal: agents report from their own goroutines
	}
	return id, b
}

// SetViewRevision makes later digests state that the half knows the map up to a revision.
func (a *Agent) SetViewRevision(revision uint64) { a.viewRevision.Store(revision) }

// SetHealth makes the host half's later digests carry its health.
func (a *Agent) SetHealth(h *lofamov1.HalfHealth) { a.health.Store(h) }

func (a *Agent) healthFor(h fault.Half, digest bool) servicenet.Health {
	if h != fault.HalfHost || !digest {
		return servicenet.Health{}
	}
	return servicenet.Health{Host: a.health.Load()}
}

// Relay wraps another node's envelope, like this node's host half.
func (a *Agent) Relay(t testing.TB, inner []byte, origin fault.Origin, held time.Duration) []byte {
	t.Helper()
	b, err := servicenet.SealRelayed(inner, []fault.Hop{
		{Node: origin.Node, Half: fault.HalfDNP, Held: held}, {Node: a.ID, Half: fault.HalfDNP, Held: held}, {Node: a.ID, Half: fault.HalfHost},
	}, a.sign[fault.HalfHost])
	must(t, err)
	return b
}

// Send sends a datagram, as soon as the socket is not busy.
func (a *Agent) Send(t testing.TB, to string, b []byte) {
	t.Helper()
	err := a.socket.Send(netip.MustParseAddrPort(to), b)
	for end := time.Now().Add(Wait); errors.Is(err, servicenet.ErrBusy) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		err = a.socket.Send(netip.MustParseAddrPort(to), b)
	}
	if err != nil {
		t.Error(err)
	}
}

// Deliver sends an envelope until it is committed, like an outbox: to one address after the other, every 100 ms. It
// returns an empty Ack and fails the test after Wait or a send error. When the test ends it returns an empty Ack:
// agents deliver from goroutines that may outlive the test.
func (a *Agent) Deliver(t testing.TB, id fault.ReportID, b []byte, to ...string) Ack {
	t.Helper()
	deadline := time.Now().Add(Wait)
	for i := 0; time.Now().Before(deadline); i++ {
		err := a.socket.Send(netip.MustParseAddrPort(to[i%len(to)]), b)
		switch {
		case t.Context().Err() != nil:
			return Ack{}
		case errors.Is(err, servicenet.ErrBusy): // counts as lost: a killed replica's port answers with ICMP errors
		case err != nil:
			t.Errorf("deliver %s: %v", id, err)
			return Ack{}
		}
		if ack, ok := a.await(id, lofamov1.Ack_COMMITTED, 100*time.Millisecond); ok {
			return ack
		}
	}
	if t.Context().Err() == nil {
		t.Errorf("%s was not committed within %s", id, Wait)
	}
	return Ack{}
}

// Repeat sends a committed report again until one more COMMITTED answers. A single copy is not enough: a replica under load drops the
// copies of a report that it has accepted recently.
func (a *Agent) Repeat(t testing.TB, id fault.ReportID, b []byte, to string) {
	t.Helper()
	before, next := a.Count(id, lofamov1.Ack_COMMITTED), time.Now()
	Eventually(t, "an answer to a copy of a report", func() bool {
		if now := time.Now(); !now.Before(next) {
			next = now.Add(100 * time.Millisecond)
			a.Send(t, to, b)
		}
		return a.Count(id, lofamov1.Ack_COMMITTED) > before
	})
}

// Await waits for an ack with that status.
func (a *Agent) Await(t testing.TB, id fault.ReportID, status lofamov1.Ack_Status) Ack {
	t.Helper()
	ack, ok := a.await(id, status, Wait)
	if !ok {
		t.Fatalf("no %s for %s within %s", status, id, Wait)
	}
	return ack
}

func (a *Agent) await(id fault.ReportID, status lofamov1.Ack_Status, wait time.Duration) (Ack, bool) {
	timeout := time.After(wait)
	for {
		a.mu.Lock()
		heard := a.heard
		for _, ack := range a.acks {
			if ack.GetStatus() == status && has(ack, id) {
				a.mu.Unlock()
				return ack, true
			}
		}
		a.mu.Unlock()
		select {
		case <-heard:
		case <-timeout:
			return Ack{}, false
		}
	}
}

// Count counts the acks with that status for a report.
func (a *Agent) Count(id fault.ReportID, status lofamov1.Ack_Status) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, ack := range a.acks {
		if ack.GetStatus() == status && has(ack, id) {
			n++
		}
	}
	return n
}

// FaultUpdates returns the parts of the fault map that supervisors sent to the node, in order of arrival.
func (a *Agent) FaultUpdates() []*lofamov1.FaultUpdate {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.updates)
}

// Mask returns the newest order for the channel mask; nil: none.
func (a *Agent) Mask() *lofamov1.MaskOrder {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mask
}

// LoseMask makes the node report that it has lost its mask.
func (a *Agent) LoseMask(t testing.TB, to string) {
	a.mu.Lock()
	a.mask = nil
	a.mu.Unlock()
	a.Say(t, fault.HalfDNP, to, &lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: &lofamov1.MaskStatus{
		Node: string(a.ID), Half: lofamov1.Half_HALF_DNP, Epoch: 2, Ordered: 0x3f, Own: 0x3f, InForce: 0x3f, Lost: true,
	}}})
}

// Configuration returns the newest part of a torus configuration that this node received for broadcast; nil: none.
func (a *Agent) Configuration() *lofamov1.TorusConfiguration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.configuration
}

// takeConfiguration takes a configuration of one part, and confirms it unless the DNP half is dead.
func (a *Agent) takeConfiguration(from netip.AddrPort, c *lofamov1.TorusConfiguration) {
	a.mu.Lock()
	dead := a.dead[fault.HalfDNP]
	if !dead && c.GetNumber() > a.configuration.GetNumber() {
		a.configuration = c
	}
	st := &lofamov1.ConfigurationStatus{Node: string(a.ID), Epoch: 2, Number: a.configuration.GetNumber()}
	a.mu.Unlock()
	if dead {
		return
	}
	if b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_ConfigurationStatus{ConfigurationStatus: st}},
		a.sign[fault.HalfDNP]); err == nil {
		_ = a.socket.Send(from, b)
	}
}

// takeMask takes an order like a DNP half, and answers it unless that half is dead.
func (a *Agent) takeMask(from netip.AddrPort, o *lofamov1.MaskOrder) {
	a.mu.Lock()
	dead := a.dead[fault.HalfDNP]
	if !dead && o.GetNumber() > a.mask.GetNumber() {
		a.mask = o
	}
	st := &lofamov1.MaskStatus{
		Node: string(a.ID), Half: lofamov1.Half_HALF_DNP, Epoch: 2, Number: a.mask.GetNumber(), Ordered: a.mask.GetMask(), Own: 0x3f,
		InForce: a.mask.GetMask(),
	}
	a.mu.Unlock()
	if dead {
		return
	}
	if b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: st}}, a.sign[fault.HalfDNP]); err == nil {
		_ = a.socket.Send(from, b)
	}
}

// Procedures returns the received orders of procedures.
func (a *Agent) Procedures() []*lofamov1.ProcedureOrder {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.procedures)
}

// Linger makes the node report the end of a procedure only when asked.
func (a *Agent) Linger() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lingers = true
}

// takeProcedure begins a procedure on both halves and ends it at once, unless the node lingers; for a repeated order
// it repeats its status. Other nodes do not learn about the procedure: they report the same status when asked.
func (a *Agent) takeProcedure(from netip.AddrPort, o *lofamov1.ProcedureOrder) {
	a.mu.Lock()
	a.procedures = append(a.procedures, o)
	dead, lingers := a.dead[fault.HalfDNP], a.lingers
	a.mu.Unlock()
	say := func(h fault.Half, edit func(*lofamov1.ProcedureStatus)) {
		st := &lofamov1.ProcedureStatus{Number: o.GetNumber(), Node: string(a.ID), Half: lofamov1.Half(h), Epoch: 2}
		edit(st)
		if b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: st}}, a.sign[h]); err == nil {
			_ = a.socket.Send(from, b)
		}
	}
	say(fault.HalfHost, func(*lofamov1.ProcedureStatus) {})
	if dead {
		return
	}
	if !o.GetAsk() {
		say(fault.HalfDNP, func(st *lofamov1.ProcedureStatus) {
			st.Wave, st.State, st.Round = 1, lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, 1
		})
		if lingers {
			return
		}
	}
	say(fault.HalfDNP, func(st *lofamov1.ProcedureStatus) {
		st.Wave, st.State, st.Round, st.Clear = 1, lofamov1.ProcedureState_PROCEDURE_NORMAL, 1, true
		st.Steps = []*lofamov1.ProcedureStep{{State: lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, TookUs: 1000}}
	})
}

// AnswerMapping makes the DNP half answer mapping orders with the result of found, in one message. nil: it does not answer.
func (a *Agent) AnswerMapping(found func(*lofamov1.MapOrder) []*lofamov1.MappedNode) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.maps = found
}

func (a *Agent) answerMapping(from netip.AddrPort, o *lofamov1.MapOrder) {
	a.mu.Lock()
	found := a.maps
	a.mu.Unlock()
	if found == nil {
		return
	}
	f := &lofamov1.MapFindings{Number: o.GetNumber(), Node: string(a.ID), Epoch: 1, Parts: 1, Nodes: found(o)}
	if b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_MapFindings{MapFindings: f}}, a.sign[fault.HalfDNP]); err == nil {
		_ = a.socket.Send(from, b)
	}
}

// Acts makes the host half answer orders to act with the result of made; nil: it does not answer, like an earlier
// version.
func (a *Agent) Acts(made func(*lofamov1.ActOrder) *lofamov1.ActStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.acts = made
}

func (a *Agent) act(from netip.AddrPort, o *lofamov1.ActOrder) {
	a.mu.Lock()
	made, dead := a.acts, a.dead[fault.HalfHost]
	a.mu.Unlock()
	if made == nil || dead {
		return
	}
	st := made(o)
	st.Node, st.Half, st.Epoch, st.Response, st.Step, st.Attempt = string(a.ID), lofamov1.Half_HALF_HOST, 1, o.GetResponse(), o.GetStep(),
		o.GetAttempt()
	if b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_ActStatus{ActStatus: st}}, a.sign[fault.HalfHost]); err == nil {
		_ = a.socket.Send(from, b)
	}
}

// Say sends a message of a half, signed.
func (a *Agent) Say(t testing.TB, h fault.Half, to string, m *lofamov1.Message) {
	t.Helper()
	b, err := servicenet.Seal(m, a.sign[h])
	if err != nil {
		t.Errorf("seal a message of %s: %v", a.ID, err) // not Fatal: agents speak from their own goroutines
		return
	}
	a.Send(t, to, b)
}

// Renewals returns the answers to requests for certificates, as they arrive.
func (a *Agent) Renewals() <-chan *lofamov1.RenewReply { return a.renewals }

// Again counts how often a supervisor requested a damaged message again.
func (a *Agent) Again() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.again
}

func has(ack Ack, id fault.ReportID) bool {
	return slices.Contains(servicenet.AckedIDs(ack.Ack), id)
}

// handle takes acks and answers challenges. It handles a downcall's inner envelope as if it had arrived at its
// recipient through the torus.
func (a *Agent) handle(from netip.AddrPort, b []byte) {
	o, err := servicenet.Open(b, a.verify)
	if err != nil || o.Role != servicenet.RoleSupervisor {
		return
	}
	through := a.ID
	if o.Msg.GetDowncall() != nil {
		_, inner, err := servicenet.InnerOf(o)
		if err != nil {
			return
		}
		if o, err = servicenet.Open(inner, a.verify); err != nil {
			return
		}
	}
	if acks := o.Msg.GetAcks(); len(acks) > 0 {
		a.mu.Lock()
		for _, ack := range acks {
			a.acks = append(a.acks, Ack{Ack: ack, From: o.Name, Addr: from.String(), Through: through, At: time.Now()})
		}
		if n := len(a.acks); n > 2*acksKept {
			a.acks = slices.Clone(a.acks[n-acksKept:])
		}
		close(a.heard)
		a.heard = make(chan struct{})
		a.mu.Unlock()
	}
	if t := o.Msg.GetFaultUpdate(); t != nil {
		a.mu.Lock()
		a.updates = append(a.updates, t)
		a.mu.Unlock()
	}
	if r := o.Msg.GetRenewReply(); r != nil {
		select {
		case a.renewals <- r:
		default:
		}
	}
	if o.Msg.GetAgain() != nil {
		a.mu.Lock()
		a.again++
		a.mu.Unlock()
	}
	a.obey(from, o)
	if c := o.Msg.GetTorusConfiguration(); c != nil {
		a.takeConfiguration(from, c)
	}
	if c := o.Msg.GetChallenge(); c != nil && c.GetNode() == string(a.ID) {
		a.answer(from, c)
	}
}

// obey takes the orders to this node.
func (a *Agent) obey(from netip.AddrPort, o servicenet.Opened) {
	if m := o.Msg.GetMaskOrder(); m != nil && m.GetNode() == string(a.ID) {
		a.takeMask(from, m)
	}
	if p := o.Msg.GetProcedureOrder(); p != nil && p.GetNode() == string(a.ID) {
		a.takeProcedure(from, p)
	}
	if p := o.Msg.GetPeerOrder(); p != nil && p.GetNode() == string(a.ID) {
		a.takePeers(from, p)
	}
	if m := o.Msg.GetMapOrder(); m != nil && m.GetNode() == string(a.ID) {
		a.answerMapping(from, m)
	}
	if m := o.Msg.GetActOrder(); m != nil && m.GetNode() == string(a.ID) {
		a.act(from, m)
	}
}

func (a *Agent) answer(to netip.AddrPort, c *lofamov1.Challenge) {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		a.mu.Lock()
		dead, epoch := a.dead[h], a.epoch[h]
		a.mu.Unlock()
		if dead || c.GetHalf() != 0 && fault.Half(c.GetHalf()) != h {
			continue
		}
		b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
			Nonce: c.GetNonce(), Node: string(a.ID), Half: lofamov1.Half(h), Epoch: uint64(epoch),
		}}}, a.sign[h])
		if err == nil {
			_ = a.socket.Send(to, b)
		}
	}
}
