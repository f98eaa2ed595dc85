package ingest

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestEstablishedSessionUsesMACs: REQ, REP, ACK; from then on digests and acks travel under MACs, with the negotiated checksum.
func TestEstablishedSessionUsesMACs(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	session := r.establish(t, h, 1, eth1, 1)
	rep := h.open(t, r.wire.sent()[0])
	if rep.Session != 0 || rep.Msg.GetPathReply().GetChecksum() != lofamov1.Checksum_CHECKSUM_XXHASH64 ||
		rep.Msg.GetPathReply().GetLeader() != "s9" {
		t.Errorf("reply %v", rep.Msg)
	}
	if n := value(r.metrics.Sessions); n != 1 {
		t.Errorf("%v sessions", n)
	}
	r.get(eth1, 1, h.reports(t, 5, 1, true, session))
	r.get(eth1, 1, h.reports(t, 5, 2, false, servicenet.SealOptions{}))
	sent := r.wire.sent()[1:]
	if len(sent) != 2 || len(r.leader.inputs()) != 2 {
		t.Fatalf("%d answers, %d inputs", len(sent), len(r.leader.inputs()))
	}
	for _, d := range sent {
		env := &lofamov1.Envelope{}
		if err := proto.Unmarshal(d.data, env); err != nil {
			t.Fatal(err)
		}
		if o := h.open(t, d); o.Session == 0 || env.GetChecksumAlgorithm() != lofamov1.Checksum_CHECKSUM_XXHASH64 {
			t.Errorf("session %#x, checksum %s: want those of the path", o.Session, env.GetChecksumAlgorithm())
		}
	}
	// Only digests may use a MAC.
	if _, err := servicenet.SealReports(r.leader.inputs()[1].Reports.List, nil, h.signer, session); err == nil {
		t.Error("a report was sealed with a MAC")
	}
	r.get(eth1, 1, underMAC(t, h.reports(t, 5, 1, false, servicenet.SealOptions{})))
	if r.refused("session") != 1 {
		t.Error("an unknown session was not refused")
	}
	for outcome, want := range map[pathOutcome]float64{pathAnswered: 1, pathConfirmed: 1, pathRepeated: 0} {
		if n := value(r.metrics.PathRequests.WithLabelValues(outcome.String())); n != want {
			t.Errorf("%v %s, want %v", n, outcome, want)
		}
	}
}

// TestSupervisorRestartLosesSessions: sessions are lost; messages under them are refused and counted, and the signed retry
// works.
func TestSupervisorRestartLosesSessions(t *testing.T) {
	a := newAuthority(t)
	before, h := a.replica(t, "s1", nil), a.half(t, host0)
	session := before.establish(t, h, 1, eth0, 0)
	r := a.replica(t, "s1", nil)
	r.get(eth0, 0, h.reports(t, 5, 1, true, session))
	if r.refused("session") != 1 || len(r.wire.sent()) != 0 || len(r.leader.inputs()) != 0 {
		t.Errorf("refused %v times, %d answers", r.refused("session"), len(r.wire.sent()))
	}
	r.get(eth0, 0, h.reports(t, 5, 1, true, servicenet.SealOptions{}))
	if sent := r.wire.sent(); len(sent) != 1 || h.open(t, sent[0]).Session != 0 || len(r.leader.inputs()) != 1 {
		t.Errorf("the signed retry had %d answers", len(sent))
	}
	// The half requests the path again, under the next id.
	r.establish(t, h, 2, eth0, 0)
	r.get(eth0, 0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	if sent := r.wire.sent(); h.open(t, sent[len(sent)-1]).Session == 0 {
		t.Error("the new session is not used")
	}
}

// TestHalfWithoutSessionGetsSignedAnswers: a half that has lost its session gets signed answers, whether its epoch or a new request
// reveals the loss.
func TestHalfWithoutSessionGetsSignedAnswers(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	session := r.establish(t, h, 1, eth0, 0)
	last := func() servicenet.Opened {
		sent := r.wire.sent()
		return h.open(t, sent[len(sent)-1])
	}
	kept := h.reports(t, 5, 1, false, servicenet.SealOptions{})
	r.get(eth0, 0, kept)
	if last().Session == 0 {
		t.Fatal("the session is not used")
	}
	r.get(eth0, 0, kept)
	if last().Session != 0 {
		t.Error("what was asked for again is answered under the session again")
	}
	r.get(eth0, 0, h.reports(t, 5, 1, true, session))
	if last().Session == 0 {
		t.Error("the half has shown that it has the session")
	}
	r.get(eth0, 0, h.reports(t, 6, 1, true, servicenet.SealOptions{}))
	if last().Session != 0 {
		t.Error("a half of a higher epoch is answered under the old session")
	}
	// A late message from before does not revive the session.
	r.get(eth0, 0, h.reports(t, 5, 1, true, session))
	if last().Session != 0 {
		t.Error("the old session is used again")
	}
}

// TestReplyIsRepeated until the half acknowledges it.
func TestReplyIsRepeated(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.run(t, false)
	r.get(eth0, 0, h.request(t, 5, 1))
	sent := r.wire.await(t, 1+pathRepeats)
	first := h.open(t, sent[0]).Msg.GetPathReply()
	for _, d := range sent {
		if rep := h.open(t, d).Msg.GetPathReply(); !proto.Equal(rep, first) || d.addr != eth0 {
			t.Errorf("reply %v to %s", rep, d.addr)
		}
	}
	r.get(eth0, 0, h.request(t, 4, 9))
	if n := value(r.metrics.PathRequests.WithLabelValues(pathOld.String())); n != 1 {
		t.Errorf("%v old requests", n)
	}
}

// TestChallengeOnAllPaths: to all service interfaces of the node, each by its socket, to where its halves
// have paths besides, and through the neighbours; always signed.
func TestChallengeOnAllPaths(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.establish(t, h, 1, eth1, 1) // known already
	elsewhere := netip.MustParseAddrPort("10.9.0.1:7000")
	r.establish(t, h, 2, elsewhere, 0)
	before := len(r.wire.sent())
	r.sender.Answer(engine.To{Addr: eth1.String()}, committed(4)) // is carried on the first
	r.sender.Challenge(awareness.Challenge{Node: "n0", Half: 1, Nonce: [16]byte{1}, Via: []fault.NodeID{"n1", "unknown"}})
	r.run(t, false)
	sent := r.wire.await(t, before+4)[before:]
	if acks := h.open(t, sent[0]).Msg.GetAcks(); len(acks) != 1 || acks[0].GetSeqs()[0] != 4 {
		t.Errorf("the challenge carries %v", acks)
	}
	want := []sentTo{{socket: 0, addr: eth0}, {socket: 1, addr: eth1}, {socket: 0, addr: elsewhere}, {socket: 0, addr: n1}}
	for i, d := range sent {
		if d.socket != want[i].socket || d.addr != want[i].addr {
			t.Errorf("challenge %d went to %s by %d, want %s by %d", i, d.addr, d.socket, want[i].addr, want[i].socket)
		}
		o := h.open(t, d)
		if i == 3 {
			_, inner, err := servicenet.InnerOf(o)
			if err != nil {
				t.Fatal(err)
			}
			o = h.open(t, sentTo{data: inner})
		}
		reply := []string{"10.0.0.100:7001", "10.1.0.100:7001"}[d.socket]
		if c := o.Msg.GetChallenge(); c.GetNode() != "n0" || c.GetReplyTo() != reply || o.Session != 0 {
			t.Errorf("challenge %d is %v", i, o.Msg)
		}
	}
}

// TestUnsentMessagesUseNextPath: unsent messages leave by the next path that the half establishes.
func TestUnsentMessagesUseNextPath(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.run(t, false)
	r.wire.fail(errors.New("network is unreachable"))
	r.sender.Answer(engine.To{Addr: eth0.String()},
		&lofamov1.Ack{Status: lofamov1.Ack_COMMITTED, Node: "n0", Half: 1, Epoch: 5, Seqs: []uint64{3}})
	for deadline := time.Now().Add(wait); value(r.metrics.SendFails) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing was sent")
		}
		time.Sleep(time.Millisecond)
	}
	r.wire.fail(nil)
	r.get(eth1, 1, h.request(t, 5, 1))
	h.agree(t, h.open(t, r.wire.await(t, 1)[0]).Msg.GetPathReply())
	r.get(eth1, 1, h.ack(t, 5, 1))
	// The ack leaves on the reply or, if it missed that, on the reply's repetition or by the path.
	var acks []*lofamov1.Ack
	until(t, "the ack that could not be sent", func() bool {
		for _, d := range r.wire.sent() {
			acks = append(acks, h.open(t, d).Msg.GetAcks()...)
		}
		return len(acks) > 0
	})
	if len(acks) != 1 || acks[0].GetSeqs()[0] != 3 || acks[0].GetStatus() != lofamov1.Ack_COMMITTED {
		t.Errorf("acks %v", acks)
	}
}

// TestEndedSessionsLeaveTable: an ended session leaves the table once no message under it can be in flight.
// Sessions that halves end over days must not displace sessions in use.
func TestEndedSessionsLeaveTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		r, h := a.replica(t, "s1", nil), a.half(t, host0)
		x := r.sender.cfg.Paths
		old := r.establish(t, h, 1, eth0, 0)
		r.establish(t, h, 2, eth0, 0)
		r.get(eth0, 0, h.reports(t, 5, 1, true, old)) // overtaken
		if len(r.leader.inputs()) != 1 || x.table.Len() != 2 {
			t.Errorf("%d inputs, %d sessions", len(r.leader.inputs()), x.table.Len())
		}
		time.Sleep(lateTime)
		now := r.establish(t, h, 3, eth1, 1)
		r.get(eth0, 0, h.reports(t, 5, 1, true, old))
		r.get(eth1, 1, h.reports(t, 5, 1, true, now))
		taken := len(r.leader.inputs()) + len(r.intake.restater.pending) // an unchanged digest
		if n := r.refused("session"); taken != 2 || x.table.Len() != 2 || n != 1 {
			t.Errorf("%d inputs, %d sessions, %v refused", taken, x.table.Len(), n)
		}
	})
}

// TestUnansweredRequestsEndNoSessionInUse: a half keeps the session that it uses, however many requests it sends by an interface at
// which no reply arrives.
func TestUnansweredRequestsEndNoSessionInUse(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	session := r.establish(t, h, 1, eth0, 0)
	r.get(eth0, 0, h.reports(t, 5, 1, true, session))
	if got := len(r.leader.inputs()); got != 1 {
		t.Fatalf("%d digests were taken under the session, want 1", got)
	}
	for id := uint64(2); id < 4*maxPaths; id++ {
		r.get(eth1, 1, h.request(t, 5, id))
		r.get(eth0, 0, h.reports(t, 5, 1, true, session))
		if n := r.refused(servicenet.RefusedSession.String()); n > 0 {
			t.Fatalf("after request %d by eth1 a digest under the session in use by eth0 was refused", id)
		}
	}
}

// TestRefusedRequestEndsNoSession: a request whose key is not good costs a half none of its sessions, even if the half has as many as it
// may have.
func TestRefusedRequestEndsNoSession(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	at := func(id uint64) netip.AddrPort { return netip.AddrPortFrom(eth0.Addr(), eth0.Port()+uint16(id)) }
	oldest := r.establish(t, h, 1, at(1), 0)
	for id := uint64(2); id <= maxPaths; id++ {
		r.establish(t, h, id, at(id), 0)
	}
	use := func(after string) {
		t.Helper()
		r.get(at(1), 0, h.reports(t, 5, 1, true, oldest))
		if n := r.refused(servicenet.RefusedSession.String()); n > 0 {
			t.Fatalf("after %s a digest under the oldest session was refused", after)
		}
	}
	r.get(at(1), 0, h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_PathRequest{PathRequest: &lofamov1.PathRequest{
		Node: string(h.origin.Node), Half: lofamov1.Half(h.origin.Half), Epoch: 5, Id: maxPaths + 1, Key: make([]byte, 32),
	}}}))
	if n := value(r.metrics.PathRequests.WithLabelValues(pathRefused.String())); n != 1 {
		t.Fatalf("%v requests were refused: want that with the bad key", n)
	}
	use("the refused request")
	r.establish(t, h, maxPaths+2, at(maxPaths+1), 0)
	use("the next request")
}
