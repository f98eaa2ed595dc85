package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// requestKind is the purpose of a REQ.
type requestKind uint8

const (
	requestSession   requestKind = iota + 1 // a session on the primary, which is in use already
	requestAlternate                        // to load an alternate
	requestAny                              // to re-establish: the first REP gives the primary
)

// inquiry is the one REQ under way (seed 004, Figure 8). Repetitions keep its id; an answer to an earlier id is
// ignored.
type inquiry struct {
	kind  requestKind // 0: none is under way
	id    uint64
	path  *path // nil: every path
	sent  time.Time
	due   time.Time // of the next REQ
	wait  time.Duration
	tries int
}

// answeredRequest is the last successful exchange: the outbox repeats its ACK when the REP comes again.
type answeredRequest struct {
	id   uint64
	path PathID
}

// request begins an exchange with an id of its own; poseRequest sends.
func (o *Outbox) request(now time.Time, kind requestKind, p *path) {
	s := &o.paths
	s.lastID++
	wait := o.cfg.AckTimeout
	if p != nil {
		wait = o.pathTimeout(p)
	}
	s.exchange = inquiry{kind: kind, id: s.lastID, path: p, due: now, wait: wait}
}

// poseRequest sends the REQ that is due, or gives up one that was never answered.
func (o *Outbox) poseRequest(now time.Time, out *Output) {
	s := &o.paths
	x := &s.exchange
	if x.kind == 0 || now.Before(x.due) {
		return
	}
	if x.tries >= rearmTries && x.kind != requestAny {
		o.requestUnanswered(now, out)
		if x.kind == 0 || now.Before(x.due) {
			return
		}
	}
	if !o.ask(x, out) {
		x.due, x.wait = now.Add(x.wait), min(2*x.wait, o.cfg.MaxBackoff)
		return
	}
	x.tries++
	x.sent, x.due = now, now.Add(x.wait)
	x.wait = min(2*x.wait, o.cfg.MaxBackoff)
	if o.silence.on {
		x.due = now.Add(silentWait(o.origin, o.silence.round, o.cfg.SilentBackoff))
	}
}

// ask sends the REQ as far as the budget goes, and reports whether any was sent. Without any budget a
// re-establishment asks one path at first, and all ask one path each MaxBackoff: digests and reports go on meanwhile,
// and their answers count as much.
func (o *Outbox) ask(x *inquiry, out *Output) bool {
	all, free := o.paths.all, x.wait >= o.cfg.MaxBackoff
	switch {
	case x.path != nil && (free || o.silence.on || o.budget.spend(requestCost)):
		o.sendRequest(x.path, out)
	case x.path != nil:
		return false
	case o.silence.on || o.budget.spend(min(len(all)*requestCost, maxRoundCost)):
		for _, p := range all {
			o.sendRequest(p, out)
		}
	case x.tries == 0 || free:
		o.sendRequest(all[(x.id+uint64(x.tries))%uint64(len(all))], out)
	default:
		return false
	}
	return true
}

func (o *Outbox) sendRequest(p *path, out *Output) {
	x := &o.paths.exchange
	p.tried = true
	out.Paths = append(out.Paths, PathMessage{Path: p.id, Request: &lofamov1.PathRequest{
		Node: string(o.origin.Node), Half: lofamov1.Half(o.origin.Half), Epoch: uint64(o.epoch),
		Id: x.id, Alternate: x.kind == requestAlternate, Checksums: o.cfg.Checksums,
	}})
}

// requestUnanswered gives an alternate up for the next one, and a session for a while.
func (o *Outbox) requestUnanswered(now time.Time, out *Output) {
	s := &o.paths
	x := s.exchange
	s.exchange = inquiry{}
	if x.kind == requestAlternate {
		x.path.fail(now)
		o.rearm(now, "the alternate does not answer", out)
		return
	}
	if t := o.target(x.path.id.Supervisor); t != nil {
		t.sessionRest = min(max(2*t.sessionRest, restFor), maxRest)
		t.sessionAt = now.Add(t.sessionRest)
	}
	o.advancePaths(now, out)
}

// replied handles a verified REP. One that answers no REQ under way changes nothing: it is late or a duplicate. Only
// a repetition of the last good one triggers the ACK again, which may have been lost.
func (o *Outbox) replied(now time.Time, ev Replied, out *Output) {
	s := &o.paths
	r, x := ev.Reply, s.exchange
	p := s.find(PathID{ev.Interface, ev.Supervisor})
	if p == nil || r.GetNode() != string(o.origin.Node) || r.GetHalf() != lofamov1.Half(o.origin.Half) || r.GetEpoch() != uint64(o.epoch) {
		return
	}
	if x.kind == 0 || r.GetId() != x.id || x.path != nil && x.path != p {
		if r.GetId() == s.answered.id && p.id == s.answered.path {
			o.sendAck(p, r.GetId(), out)
		}
		return
	}
	o.sendAck(p, x.id, out)
	s.answered = answeredRequest{x.id, p.id}
	p.proven = x.id
	sum := r.GetChecksum()
	p.checksum = &sum
	if x.tries == 1 {
		p.rtt.sample(now.Sub(x.sent))
	}
	p.succeed(x.sent)
	if t := o.target(ev.Supervisor); t != nil {
		t.session, t.sessionRest, t.sessionAt = true, 0, now.Add(restFor)
	}
	o.setLeader(r.GetLeader())
	o.noteAnswer(now)
	o.directAnswered(now, p)
	switch x.kind {
	case requestSession:
		s.exchange = inquiry{}
	case requestAlternate:
		o.becomeArmed(out)
	case requestAny:
		o.establish(now, p, "re-established", out)
	}
}

func (o *Outbox) sendAck(p *path, id uint64, out *Output) {
	out.Paths = append(out.Paths, PathMessage{Path: p.id, Ack: &lofamov1.PathAck{
		Node: string(o.origin.Node), Half: lofamov1.Half(o.origin.Half), Epoch: uint64(o.epoch), Id: id,
	}})
}
