package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxBacklog is the maximum number of datagrams that wait at a follower for a leader: new digests replace the oldest
// ones, and further reports are neither accepted nor acknowledged.
const maxBacklog = 512

// maxHeld is the maximum believed waiting time of a datagram at a follower.
const maxHeld = time.Minute

// replica is one supervisor: a process, a member of the store, and its view of the leader.
//
//	follower ──elected──► leads (a term) ──lease lost, commit refused──► follower
type replica struct {
	process

	index  int
	id     string
	key    sealer
	future bool           // of a later version: its messages have content that is unknown here
	unseen map[*node]bool // nodes that it is cut off from

	session *session               // of the election; nil: none
	term    *term                  // while it leads
	answers *answering             // nil: faults are not answered
	leader  string                 // the leader, according to its member
	backlog []input                // waiting for a leader
	applied uint64                 // revisions that its member has
	copied  copied                 // their content
	said    map[fault.Origin]given // to the leader
}

// session is a lease in the election.
type session struct {
	rev   uint64
	heard time.Time // when the store last renewed it
}

func newReplica(w *World, i int) *replica {
	id := "sup-" + strconv.Itoa(i)
	r := &replica{index: i, id: id, key: sealer{[]byte(servicenet.RoleSupervisor + "|" + id)}, unseen: make(map[*node]bool),
		said: make(map[fault.Origin]given), copied: make(copied)}
	r.w, r.name, r.wall, r.maxTicks = w, id, w.between(-maxWall, maxWall), maxSupervisorTicks
	if w.cfg.Synchronous {
		r.wall = w.between(-time.Second/2, time.Second/2)
	}
	return r
}

func supervisorIDs(n int) []string {
	var out []string
	for i := range n {
		out = append(out, "sup-"+strconv.Itoa(i))
	}
	return out
}

// start starts a dead supervisor; its store member still has its data.
func (r *replica) start() {
	if r.running {
		return
	}
	r.become(r.tick, false)
	r.session, r.term, r.leader, r.backlog, r.answers = nil, nil, "", nil, nil
	if r.w.responses != nil {
		var err error
		if r.answers, err = newAnswering(r.w.responses, r); err != nil {
			r.w.violate("%s cannot answer faults: %v", r.id, err)
			return
		}
	}
	r.again(r.w.between(0, keepAliveEvery), keepAliveEvery, r.keepAlive)
	r.again(r.w.between(0, deadlineEvery), deadlineEvery, r.checkLease)
	r.deliver(r.w.between(0, campaignRetry), r.campaign)
	r.w.store.look()
}

// kill ends the process. In half of the cases the machine survives and its kernel refuses connections, so another replica may end its term.
func (r *replica) kill() {
	s := r.session
	r.crash()
	if s != nil && r.w.chance(0.5) {
		r.gone(s.rev, r.w.now.Add(dialsFor))
	}
}

// crash ends the process and its machine: the term lasts until its lease expires.
func (r *replica) crash() {
	r.process.kill()
	r.session, r.term = nil, nil
	r.w.store.look()
}

// gone lets another replica end the term of a killed one, once the store serves it.
func (r *replica) gone(rev uint64, until time.Time) {
	r.w.after(r.w.between(0, 2*dialPeriod)+r.w.between(serviceDelayMin, serviceDelayMax), func() {
		st := r.w.store
		c := st.leader()
		switch {
		case c == nil || c.rev != rev || !r.w.now.Before(until):
		case slices.ContainsFunc(r.w.replicas, func(o *replica) bool {
			return o != r && o.up() && o.leader == r.id && st.group[o.index] == st.group[r.index] && st.serves(o)
		}):
			st.resign(rev)
		default:
			r.gone(rev, until)
		}
	})
}

func (r *replica) stop() {
	r.process.stop()
	r.w.store.look()
}

func (r *replica) resume() {
	r.process.resume()
	r.w.store.look()
}

func (r *replica) tick() {
	if r.term != nil {
		r.term.step(r.clock(), awareness.Tick{})
	}
}

// campaign joins the election.
func (r *replica) campaign() {
	if r.session != nil {
		return
	}
	if !r.w.store.serves(r) {
		r.deliver(campaignRetry, r.campaign)
		return
	}
	r.session = &session{rev: r.w.store.campaign(r), heard: r.w.now}
	r.follow()
}

// keepAlive asks the store to renew the lease.
func (r *replica) keepAlive() {
	s := r.session
	if s == nil {
		return
	}
	r.w.after(r.w.between(serviceDelayMin, serviceDelayMax), func() {
		if !r.w.store.serves(r) {
			return
		}
		ok := r.w.store.keepAlive(s.rev)
		r.deliver(r.w.between(serviceDelayMin, serviceDelayMax), func() {
			switch {
			case r.session != s:
			case ok:
				s.heard = r.w.now
			default:
				r.loseLease()
			}
		})
	})
}

// checkLease gives up a lease that was not renewed for its whole duration.
func (r *replica) checkLease() {
	if r.session != nil && r.w.now.Sub(r.session.heard) > leaseTTL {
		r.loseLease()
	}
}

// loseLease ends leadership, or the candidacy, and with it all volatile state.
func (r *replica) loseLease() {
	rev := r.session.rev
	r.session, r.term = nil, nil
	if r.answers != nil {
		r.answers.lose()
	}
	r.sleepUntil(time.Time{})
	if r.w.store.serves(r) {
		r.w.store.resign(rev)
	}
	r.deliver(campaignRetry, r.campaign)
}

// follow reads the state of its own store member: the log as far as that has it, and the election.
func (r *replica) follow() {
	s := r.w.store
	if !r.up() || s.raft == nil || !s.connected(r, s.raft) {
		return
	}
	r.apply()
	leader := ""
	if c := s.leader(); c != nil {
		leader = c.replica.id
		if c.replica == r && r.session != nil && r.session.rev == c.rev && r.term == nil {
			rev := c.rev
			r.deliver(r.w.between(commitDelayMin, commitDelayMax), func() { r.lead(rev) })
		}
	}
	if leader != r.leader {
		r.leader = leader
		clear(r.said)
		r.deliver(0, r.flush)
	}
}

// lead begins a term with the present map of the store.
func (r *replica) lead(rev uint64) {
	if r.session == nil || r.session.rev != rev || r.term != nil {
		return
	}
	if !r.w.store.serves(r) || !r.w.store.stands(rev) {
		r.deliver(campaignRetry, func() { r.lead(rev) })
		return
	}
	t, err := newTerm(r, rev)
	if err != nil {
		r.w.violate("%s cannot begin its term: %v", r.id, err)
		return
	}
	r.term = t
	r.w.leaderBegins()
	r.w.forgetRestarts(r)
	clear(r.said)
	if r.answers != nil {
		r.apply()
		r.answers.lead(t)
	}
	t.step(r.clock(), awareness.Tick{})
}

// input is verified evidence: reports with the way to answer them, or an answer to a challenge.
type input struct {
	reports []fault.Report
	path    fault.Path
	hops    []fault.Hop
	answer  *awareness.Answered
	health  servicenet.Health
	known   bool // a digest of which only the repetition is reported

	to      ackTo
	arrived time.Time // at the receiving supervisor
	held    time.Duration
}

// ackTo is the destination of acks: the supervisor that received the datagram, the node and interface that sent it, and
// whether that node relayed it.
type ackTo struct {
	by      *replica
	from    *node
	iface   uint8
	relayed bool
}

func (in *input) digests() bool {
	return in.answer == nil && !slices.ContainsFunc(in.reports, func(rep fault.Report) bool { return !rep.Digest })
}

// receive takes a datagram that came from a node's host half by one of its interfaces.
func (r *replica) receive(from *node, k uint8, b []byte, damaged bool) {
	if !from.isPlaced() {
		return
	}
	a, err := servicenet.Unwrap(b, fault.PathDirect, verifier{})
	if servicenet.IsDamaged(err) {
		r.send(from, k, r.seal(&lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}))
	}
	if err != nil && !damaged {
		r.w.violate("%s refuses a message by %s: %v", r.id, from.id(), err)
	}
	if err != nil {
		return
	}
	if damaged {
		r.w.violate("%s takes a damaged message by %s", r.id, from.id())
	}
	in := input{path: a.Path, hops: a.Hops, arrived: r.w.now}
	switch body := a.Msg.GetBody().(type) {
	case *lofamov1.Message_PathRequest:
		r.reply(from, k, body.PathRequest)
		return
	case *lofamov1.Message_Answer:
		in.answer = &awareness.Answered{
			Nonce: [16]byte(body.Answer.GetNonce()), Origin: servicenet.OriginOf(body.Answer),
			Epoch: fault.Epoch(body.Answer.GetEpoch()), Path: a.Path,
		}
	default:
		if in.reports, in.health = a.List, a.Health; len(in.reports) == 0 {
			return
		}
		origin := in.reports[0].ID.Origin.Node
		in.to = ackTo{r, from, k, a.Path == fault.PathTorus && from.id() != origin}
	}
	if r.pass(in) && in.answer == nil {
		r.received(in)
	}
}

// reply answers the request for a path. Sessions are not simulated.
func (r *replica) reply(from *node, k uint8, req *lofamov1.PathRequest) {
	r.send(from, k, r.seal(&lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{
		Node: req.GetNode(), Half: req.GetHalf(), Epoch: req.GetEpoch(), Id: req.GetId(),
		Checksum: lofamov1.Checksum_CHECKSUM_CRC32C, Key: make([]byte, servicenet.KeySize), Session: 1, Leader: r.leader,
	}}}))
}

// pass passes evidence to the leader. It returns false if the evidence was dropped.
func (r *replica) pass(in input) bool {
	in.known = r.restates(&in)
	if r.term != nil {
		r.term.take(in)
		return true
	}
	if len(r.backlog) >= maxBacklog {
		if !in.digests() {
			return false
		}
		i := slices.IndexFunc(r.backlog, func(in input) bool { return in.digests() })
		if i < 0 {
			return true
		}
		r.backlog = slices.Delete(r.backlog, i, i+1)
	}
	r.backlog = append(r.backlog, in)
	r.flush()
	return true
}

// flush forwards the backlog if another replica leads. Messages in transit are lost if the leader dies or no longer
// leads: their sender retries.
func (r *replica) flush() {
	i := slices.IndexFunc(r.w.replicas, func(o *replica) bool { return o.id == r.leader })
	if r.term != nil {
		i = r.index
	}
	if i < 0 || i == r.index && r.term == nil {
		return
	}
	to := r.w.replicas[i]
	if !r.w.store.connected(r, to) {
		r.deliver(50*time.Millisecond, r.flush) // the stream is tried again
		return
	}
	waiting := r.backlog
	r.backlog = nil
	for _, in := range waiting {
		if in.held = r.w.now.Sub(in.arrived); in.held > maxHeld {
			continue
		}
		sent := r.w.now
		to.deliver(r.w.between(serviceDelayMin, serviceDelayMax), func() {
			if to.term != nil {
				in.arrived = sent
				to.term.take(in)
			}
		})
	}
}

// received tells the sender that the path works, and which of its reports were accepted.
func (r *replica) received(in input) {
	ids := make([]fault.ReportID, len(in.reports))
	for i := range in.reports {
		ids[i] = in.reports[i].ID
	}
	r.ack(in.to, lofamov1.Ack_RECEIVED, 0, ids...)
}

// ack acknowledges reports on their own path. All ids are of one origin.
func (r *replica) ack(to ackTo, status lofamov1.Ack_Status, highest fault.Epoch, ids ...fault.ReportID) {
	acks := servicenet.NewAcks(status, ids...)
	for _, a := range acks {
		a.Leader, a.HighestEpoch = r.leader, uint64(highest)
	}
	for len(acks) > 0 {
		n := min(len(acks), servicenet.MaxAcks)
		b := r.seal(&lofamov1.Message{Acks: acks[:n]})
		acks = acks[n:]
		if to.relayed {
			b = r.downcall(ids[0].Origin.Node, b)
		}
		r.send(to.from, to.iface, b)
	}
}

// sees reports whether a node's service network and this supervisor reach each other.
func (r *replica) sees(n *node) bool { return !r.w.supervisorCut && !r.unseen[n] }

func (r *replica) send(to *node, k uint8, b []byte) {
	if r.sees(to) {
		to.fromService(r, k, b)
	}
}

func (r *replica) seal(m *lofamov1.Message) []byte {
	seal := servicenet.Seal
	if r.future {
		seal = func(m *lofamov1.Message, s servicenet.Signer) ([]byte, error) { return sealLater(m, r.key) }
	}
	b, err := seal(m, r.key)
	if err != nil {
		panic("sim: the supervisor cannot seal: " + err.Error())
	}
	return b
}

func (r *replica) downcall(to fault.NodeID, inner []byte) []byte {
	b, err := servicenet.SealDowncall(to, inner, r.key)
	if err != nil {
		panic("sim: the supervisor cannot seal a downcall: " + err.Error())
	}
	return b
}

// challengeAll sends a challenge from this leader and from all replicas that forward to it, each from its own
// addresses. These also ask through the neighbours whose digests they forward.
func (r *replica) challengeAll(c awareness.Challenge) {
	r.challenge(c)
	if c.Again {
		return
	}
	for _, f := range r.w.replicas {
		if f != r && f.up() && r.w.store.connected(f, r) {
			via := slices.DeleteFunc(slices.Clone(c.Via), func(id fault.NodeID) bool {
				return r.w.now.Sub(r.term.ways[way{f, id}]) > r.w.window()
			})
			f.deliver(r.w.between(serviceDelayMin, serviceDelayMax), func() {
				f.challenge(awareness.Challenge{Node: c.Node, Half: c.Half, Nonce: c.Nonce, Via: via})
			})
		}
	}
}

// challenge asks a node for a sign of life: directly by all its interfaces, and through its neighbours.
func (r *replica) challenge(c awareness.Challenge) {
	b := r.seal(&lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
		Nonce: c.Nonce[:], Node: string(c.Node), Half: lofamov1.Half(c.Half), ReplyTo: r.addr().String(),
	}}})
	toAll := func(n *node, b []byte) {
		for k := range n.service.cut {
			r.send(n, uint8(k), b)
		}
	}
	toAll(r.w.find(c.Node), b)
	for _, via := range c.Via {
		toAll(r.w.find(via), r.downcall(c.Node, b))
	}
}

// addr is where answers to challenges go: the port is the supervisor.
func (r *replica) addr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(r.index+1))
}

// target finds a supervisor by its id or its address.
func (w *World) target(id string, addr netip.AddrPort) *replica {
	for _, r := range w.replicas {
		if addr.IsValid() && addr == r.addr() || !addr.IsValid() && r.id == id {
			return r
		}
	}
	panic(fmt.Sprintf("sim: no supervisor %q, %s", id, addr))
}

// leading returns the working leader according to the store; nil: none.
func (w *World) leading() *replica {
	c := w.store.leader()
	if c == nil || c.life != c.replica.life || !c.replica.up() || c.replica.term == nil || c.replica.term.rev != c.rev {
		return nil
	}
	return c.replica
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}
