package ingest

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/notify"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func answer(t testing.TB, h *half) []byte {
	t.Helper()
	return h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
		Nonce: bytes.Repeat([]byte{7}, 16), Node: string(h.origin.Node), Half: lofamov1.Half(h.origin.Half), Epoch: 5,
	}}})
}

// TestOneInputAndOneAnswerForBatch: a batch of reports becomes one input, and its answer leaves from the
// receiving socket.
func TestOneInputAndOneAnswerForBatch(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.get(eth1, 1, h.reports(t, 5, 20, false, servicenet.SealOptions{}))
	got, sent := r.leader.inputs(), r.wire.sent()
	if len(got) != 1 || len(got[0].Reports.List) != 20 || got[0].To != (engine.To{Addr: eth1.String(), Socket: 1}) {
		t.Fatalf("inputs %+v", got)
	}
	if len(sent) != 1 || sent[0].addr != eth1 || sent[0].socket != 1 {
		t.Fatalf("sent %v", sent)
	}
	acks := h.open(t, sent[0]).Msg.GetAcks()
	if len(acks) != 1 || acks[0].GetStatus() != lofamov1.Ack_RECEIVED || len(acks[0].GetSeqs()) != 20 || acks[0].GetLeader() != "s9" {
		t.Errorf("acks %v", acks)
	}
}

// TestReceivedOnlyForWhatWasTaken: a full queue is felt by the senders.
func TestReceivedOnlyForWhatWasTaken(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.leader.room = 1
	r.get(eth0, 0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	r.get(eth0, 0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	if sent := r.wire.sent(); len(sent) != 1 || !slices.Equal(h.open(t, sent[0]).Msg.GetAcks()[0].GetSeqs(), []uint64{1}) {
		t.Errorf("%d answers to one report that was taken and one that was not", len(sent))
	}
}

// TestDigestsCarryPositionInUpdates: digests that come directly from a host half carry its position in the map's updates, also to
// the leader to which a follower forwards them. The half may also send its interests.
func TestDigestsCarryPositionInUpdates(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	b, err := servicenet.SealReports([]fault.Report{{ID: fault.ReportID{Origin: host0, Epoch: 5, Seq: 1}, Digest: true, Uptime: time.Second}},
		&lofamov1.DeliveryStatus{ViewRevision: 17, Interest: 2}, a.signer(t, pki.NodeIdentity("test", "n0", fault.HalfHost)),
		servicenet.SealOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.get(eth0, 0, b)
	list := &lofamov1.Interest{Node: "n0", Epoch: 5, Serial: 2, Parts: 1, Nodes: []string{"n7"}}
	r.get(eth0, 0, h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_Interest{Interest: list}}))
	leader := a.replica(t, "s2", nil)
	leader.intake.Forwarded(&lofamov1.ForwardRequest{Envelope: b, From: eth0.String(), Path: uint32(fault.PathDirect)})
	want := []notify.Digest{{Node: "n0", Epoch: 5, Revision: 17, List: 2}}
	if !slices.Equal(r.tells.digests, want) || !slices.Equal(leader.tells.forwarded, want) {
		t.Errorf("%+v, to the leader %+v", r.tells.digests, leader.tells.forwarded)
	}
	if len(r.tells.interests) != 1 || !proto.Equal(r.tells.interests[0], list) {
		t.Errorf("%v", r.tells.interests)
	}
}

func TestEachBadDatagramIsCounted(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	h := a.half(t, host0)
	good := h.reports(t, 5, 1, false, servicenet.SealOptions{})
	for _, tc := range []struct {
		class string
		data  []byte
	}{
		{"too-long", append(slices.Clone(good), make([]byte, servicenet.MaxDatagram)...)},
		{"signature", other.half(t, host0).reports(t, 5, 1, false, servicenet.SealOptions{})},
		{"unknown-node", a.half(t, fault.Origin{Node: "n7", Half: fault.HalfHost}).reports(t, 5, 1, false, servicenet.SealOptions{})},
		{"unknown-node", a.half(t, fault.Origin{Node: "n7", Half: fault.HalfHost}).request(t, 5, 1)},
		{"unknown-node", a.half(t, fault.Origin{Node: "n7", Half: fault.HalfHost}).ack(t, 5, 1)},
		{"unknown-node", answer(t, a.half(t, fault.Origin{Node: "n7", Half: fault.HalfHost}))},
	} {
		r := a.replica(t, "s1", nil)
		r.get(eth0, 0, tc.data)
		if n := r.refused(tc.class); n != 1 {
			t.Errorf("%s: refused %v times", tc.class, n)
		}
		if n := len(r.wire.sent()) + len(r.leader.inputs()); n != 0 {
			t.Errorf("%s: %d answers and inputs", tc.class, n)
		}
		if n := value(r.metrics.Damaged); n != 0 {
			t.Errorf("%s: counted as damage", tc.class)
		}
	}
	// There is no path to establish by gossip.
	r := a.replica(t, "s1", nil)
	r.intake.handle(packet{data: h.request(t, 5, 1), arrived: time.Now()})
	if r.refused("unexpected") != 1 || len(r.wire.sent()) != 0 {
		t.Error("a path was requested by gossip")
	}
}

// TestDamageIsAskedForAgain: at the source, within limits, and never as a forgery.
func TestDamageIsAskedForAgain(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	b := h.reports(t, 5, 1, false, servicenet.SealOptions{})
	flipped := slices.Clone(b)
	flipped[len(b)/2] ^= 4
	r.get(eth1, 1, flipped)
	sent := r.wire.sent()
	if len(sent) != 1 || sent[0].addr != eth1 || sent[0].socket != 1 || h.open(t, sent[0]).Msg.GetAgain() == nil {
		t.Fatalf("sent %v", sent)
	}
	begun := time.Now()
	for range 50 {
		r.get(eth1, 1, flipped)
	}
	most := 25 + int(10*time.Since(begun).Seconds()) // TestRequestsToResendAreLimited has the exact numbers
	if n := len(r.wire.sent()); n < 2 || n > most {
		t.Errorf("%d answers to 51 packets of one source", n)
	}
	r.intake.handle(packet{data: flipped, arrived: time.Now()}) // by gossip there is no sender to ask
	if n := value(r.metrics.Damaged); n != 52 {
		t.Errorf("%v damaged packets were counted, want 52", n)
	}
	for class := servicenet.Refusal(1); int(class) < servicenet.NumRefusals; class++ {
		if n := r.refused(class.String()); n != 0 {
			t.Errorf("damage counts as %s", class)
		}
	}
	// An intact resend is accepted.
	r.get(eth1, 1, b)
	if len(r.leader.inputs()) != 1 {
		t.Error("not taken")
	}
}

func TestRequestsToResendAreLimited(t *testing.T) {
	l, now := newAgainLimit(), time.Unix(0, 0)
	from := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)
	}
	allowed := 0
	for i := range 5000 {
		if l.allow(now, from(i)) {
			allowed++
		}
	}
	if allowed != againBurst || l.recent.Len() != againSources || len(l.sources) != againSources {
		t.Errorf("%d answers at once to many sources, %d of them remembered", allowed, len(l.sources))
	}
	// One source cannot use up the shared limit.
	now = now.Add(time.Second)
	allowed = 0
	for range 100 {
		if l.allow(now, from(1)) {
			allowed++
		}
	}
	if allowed != againSourceBurst || !l.allow(now, from(2)) {
		t.Errorf("%d answers at once to one source", allowed)
	}
}

// TestAnswersGoFirst: the queue is full of reports, and the answer to a challenge is handled first.
func TestAnswersGoFirst(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", func(c *IntakeConfig) { c.Queue, c.Workers = 64, 1 }), a.half(t, host0)
	r.sender.Challenge(awareness.Challenge{Node: "n0", Nonce: [16]byte(bytes.Repeat([]byte{7}, 16))})
	in := r.intake.Datagrams(0)
	for range 100 {
		in(eth0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	}
	in(eth0, answer(t, h))
	if n := value(r.metrics.Dropped.WithLabelValues("datagrams")); n != 36 {
		t.Errorf("%v reports were dropped at the full queue, want 36", n)
	}
	r.run(t, true)
	until(t, "an input", func() bool { return len(r.leader.inputs()) > 0 })
	if got := r.leader.inputs(); got[0].Answer == nil {
		t.Errorf("first came %+v", got[0])
	}
}

// TestUnaskedAnswersWaitTheirTurn sends many unrequested answers: the answer queue stays empty, and a report is
// handled in its turn.
func TestUnaskedAnswersWaitTheirTurn(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	in := r.intake.Datagrams(0)
	in(eth0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	forged := answer(t, h)
	for range 5000 {
		in(eth0, forged)
	}
	if n := len(r.intake.answers); n != 0 {
		t.Errorf("%d answers to no challenge of ours wait in the queue that goes first", n)
	}
	r.sender.Challenge(awareness.Challenge{Node: "n0", Nonce: [16]byte(bytes.Repeat([]byte{7}, 16))})
	for range 5000 {
		in(eth0, forged)
	}
	if n := len(r.intake.answers); n != answersMost {
		t.Errorf("%d copies of an answer wait in the queue that goes first, want %d", n, answersMost)
	}
}

// TestRoundTripIsOfFirstAnswer repeats a challenge and answers it twice: the time is that from the first copy to the
// first answer, also when the challenges of the previous period were discarded in between.
func TestRoundTripIsOfFirstAnswer(t *testing.T) {
	a, nonce, at := asked{}, [16]byte{1}, time.Unix(1000, 0)
	a.note(at, nonce)
	a.note(at.Add(askedTime), nonce)
	if took, ok := a.roundTrip(at.Add(askedTime+time.Second), nonce); !ok || took != askedTime+time.Second {
		t.Errorf("round trip %s, %t: want %s", took, ok, askedTime+time.Second)
	}
	if took, ok := a.roundTrip(at.Add(askedTime+2*time.Second), nonce); ok {
		t.Errorf("a second answer took %s: want none", took)
	}
	if _, ok := a.roundTrip(at, [16]byte{2}); ok {
		t.Error("an answer to no challenge has a round trip")
	}
}

// TestAnswersDoNotKeepReportsWaiting serves both queues by weight: among many answers reports have their turn.
func TestAnswersDoNotKeepReportsWaiting(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", func(c *IntakeConfig) { c.Workers = 1 }), a.half(t, host0)
	in := r.intake.Datagrams(0)
	r.sender.Challenge(awareness.Challenge{Node: "n0", Nonce: [16]byte(bytes.Repeat([]byte{7}, 16))})
	for range answersMost {
		in(eth0, answer(t, h))
	}
	in(eth0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	r.run(t, true)
	isReport := func(i engine.Input) bool { return i.Reports != nil }
	until(t, "the report", func() bool { return slices.ContainsFunc(r.leader.inputs(), isReport) })
	if first := slices.IndexFunc(r.leader.inputs(), isReport); first > answerWeight {
		t.Errorf("a report came after %d answers, want at most %d", first, answerWeight)
	}
}

// TestStrangersCannotUseUpQueue sends far more from an unknown address than a supervisor verifies for all
// strangers. The queue keeps room for a node's reports, and no verdict waits for the dropped messages.
func TestStrangersCannotUseUpQueue(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	in, stranger := r.intake.Datagrams(0), netip.MustParseAddrPort("192.0.2.1:9")
	now := time.Now()
	for range 20_000 { // at the same time: over seconds of a busy machine more may wait
		r.intake.enqueue(packet{from: stranger, data: []byte("a stranger"), arrived: now})
	}
	if waiting := len(r.intake.queue); waiting > strangerBurst+1 {
		t.Errorf("%d datagrams of a stranger wait, want at most %d", waiting, strangerBurst+1)
	}
	if b := r.intake.Behind(); b != 0 {
		t.Errorf("verdicts wait %s for what strangers lost", b)
	}
	in(eth0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	r.run(t, true)
	until(t, "the node's report", func() bool {
		return slices.ContainsFunc(r.leader.inputs(), func(i engine.Input) bool { return i.Reports != nil })
	})
}

// TestVerdictsWaitWhileNodesLoseDatagrams fills the queue from a node's address: the machine learns that the
// intake is behind.
func TestVerdictsWaitWhileNodesLoseDatagrams(t *testing.T) {
	a := newAuthority(t)
	synctest.Test(t, func(t *testing.T) { // on a real clock, a loss could stop counting before the checks
		lost := 0
		r := a.replica(t, "s1", func(c *IntakeConfig) { c.Queue, c.Lost = 4, func() { lost++ } })
		in := r.intake.Datagrams(0)
		for range 4 {
			in(eth0, []byte("x"))
		}
		if lost != 0 {
			t.Errorf("%d losses with nothing dropped", lost)
		}
		if b, why := r.intake.Behind(), r.intake.Holding(); b != 0 || why != "" {
			t.Errorf("behind by %s with nothing dropped: %q", b, why)
		}
		in(eth0, []byte("x"))
		in(eth0, []byte("x"))
		if b := r.intake.Behind(); b == 0 {
			t.Error("the intake dropped a node's datagram, and Behind returns 0")
		}
		if lost != 2 {
			t.Errorf("%d losses noted, want those of two datagrams", lost)
		}
		if why := r.intake.Holding(); !strings.Contains(why, "drops messages") || !strings.Contains(why, "one digest period") {
			t.Errorf("the map says %q: want the drops and the longest wait", why)
		}
		if n := value(r.metrics.Holds); n != 1 {
			t.Errorf("%v times verdicts began to wait: want 1 for two drops in a row", n)
		}
	})
}

// TestOriginsHaveBudgets: the verification work for one origin is bounded, and leaves room for others.
func TestOriginsHaveBudgets(t *testing.T) {
	s, now := newSources(addresses{"n0": {eth0, eth1}, "n1": {n1}}.Owner), time.Unix(1000, 0)
	takes := func(origin string, from netip.AddrPort) bool {
		_, ok := s.origin(now, origin, origin, from)
		return ok
	}
	taken := 0
	for range 10 * originBurst {
		if takes("n0/host", eth0) {
			taken++
		}
	}
	if taken != originBurst || !takes("n1/host", n1) {
		t.Errorf("of one origin %d messages were taken at once, want %d", taken, originBurst)
	}
	if now = now.Add(time.Second); !takes("n0/host", eth0) {
		t.Error("nothing is taken of an origin a second later")
	}
}

// TestCopiesFromElsewhereUseUpNoBudget: whoever sends copies of a half's messages from any other address, or by gossip, does not keep
// the half's own messages from being taken, nor those that a relay passes on.
func TestCopiesFromElsewhereUseUpNoBudget(t *testing.T) {
	learned, stranger := netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("192.0.2.2:9")
	s, now := newSources(addresses{"n0": {eth0, eth1}, "n1": {n1}}.Owner), time.Unix(1000, 0)
	s.learn(now, learned, "n0/host", true)
	for _, from := range []netip.AddrPort{stranger, n1, eth1, {}} {
		for range 2 * originBurst {
			s.origin(now, "n0/host", "n0/host", from)
		}
		if own, ok := s.origin(now, "n0/host", "n0/host", from); ok || own != (from == eth1 || !from.IsValid()) {
			t.Errorf("copies from %s: taken %t, own %t", from, ok, own)
		}
	}
	for _, way := range []struct {
		sender string
		from   netip.AddrPort
	}{{"n0/host", eth0}, {"n0/host", learned}, {"n1/host", n1}} {
		if own, ok := s.origin(now, "n0/host", way.sender, way.from); !own || !ok {
			t.Errorf("a message from %s at %s: taken %t, own %t", way.sender, way.from, ok, own)
		}
	}
}

// TestReplaysKeepNoReportOut: copies of a recorded datagram from forged known addresses do not keep the reports of the half out that has
// signed it.
func TestReplaysKeepNoReportOut(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	recorded := h.reports(t, 5, 1, false, servicenet.SealOptions{})
	replay := func(count int) {
		for i := range count {
			from := []netip.AddrPort{n1, eth1}[i%2]
			if _, ok := r.intake.sources.admit(time.Now(), from); ok {
				r.intake.handle(packet{from: from, data: recorded, arrived: time.Now()})
			}
		}
	}
	replay(2 * originBurst)
	for range 20 {
		replay(50)
		report := h.reports(t, 5, 1, false, servicenet.SealOptions{})
		taken := len(r.leader.inputs())
		r.intake.handle(packet{from: eth0, data: report, arrived: time.Now()})
		if len(r.leader.inputs()) != taken+1 {
			t.Fatalf("a report was not taken; dropped for the half's budget: %v", value(r.metrics.Dropped.WithLabelValues("origins")))
		}
	}
}

// TestSourcesAreLearned: an address with a proved session of a half counts as known until it has been silent for
// long.
func TestSourcesAreLearned(t *testing.T) {
	s, now, at := newSources(addresses{}.Owner), time.Unix(1000, 0), netip.MustParseAddrPort("192.0.2.1:9")
	if known, _ := s.admit(now, at); known {
		t.Error("a stranger is known")
	}
	version := s.listVersion()
	changes := func() bool {
		before := version
		version = s.listVersion()
		return version != before
	}
	s.learn(now, at, "n0/host", true)
	if known, ok := s.admit(now.Add(learnedTime), at); !known || !ok || len(s.list()) != 1 || !changes() {
		t.Error("the address was not learned")
	}
	if s.learn(now, at, "n0/host", true); changes() {
		t.Error("another use of a known address has changed the list")
	}
	s.learn(now.Add(3*learnedTime), netip.MustParseAddrPort("192.0.2.2:9"), "n0/host", true)
	if !changes() {
		t.Error("the list has changed under its old version")
	}
	if known, _ := s.admit(now.Add(3*learnedTime), at); known {
		t.Error("the address is known for ever")
	}
}

// TestDigestUnderMACNeedsNoWorker: the reader of the socket handles it. It queues the digest behind other messages, and
// always queues a signed one.
func TestDigestUnderMACNeedsNoWorker(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	in, session := r.intake.Datagrams(0), r.establish(t, h, 1, eth0, 0)
	in(eth0, h.reports(t, 5, 1, true, session))
	if got := len(r.leader.inputs()); got != 1 {
		t.Fatalf("without a worker the leader has %d digests, want 1", got)
	}
	in(eth0, h.reports(t, 5, 1, true, servicenet.SealOptions{}))
	in(eth0, h.reports(t, 5, 1, true, session))
	if got, waiting := len(r.leader.inputs()), len(r.intake.queue); got != 1 || waiting != 2 {
		t.Errorf("the leader has %d digests and %d wait, want 1 and 2", got, waiting)
	}
}

// TestLearnedAddressesAreBounded: neither a node that uses many ports nor a replay of its datagrams adds many
// known sources.
func TestLearnedAddressesAreBounded(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.run(t, false)
	at := func(port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(port))
	}
	how := r.establish(t, h, 1, at(1), 0)
	if got := r.intake.Sources(); !slices.Equal(got, []netip.AddrPort{at(1)}) {
		t.Fatalf("after a handshake the learned addresses are %v", got)
	}
	b := h.reports(t, 5, 1, true, how)
	for port := 1; port < 100; port++ {
		r.get(at(port), 0, b)
		r.get(at(port), 0, h.ack(t, 5, 1))
	}
	if got := r.intake.Sources(); len(got) != 1 {
		t.Errorf("replays made %d addresses known, want 1", len(got))
	}
	r.get(at(500), 0, h.reports(t, 5, 1, true, how)) // the node's address has changed
	if got := r.intake.Sources(); len(got) != 2 || !slices.Contains(got, at(500)) {
		t.Errorf("after a digest from a new address the learned ones are %v", got)
	}
	for port := range 100 {
		r.get(at(1000+port), 0, h.reports(t, 5, 1, true, how))
		r.get(at(500), 0, h.reports(t, 5, 1, true, how))
	}
	if got := r.intake.Sources(); len(got) != learnedMost || !slices.Contains(got, at(500)) {
		t.Errorf("one node made %d addresses known, want %d, with that in use: %v", len(got), learnedMost, got)
	}
}

func TestClaimedOriginIsRead(t *testing.T) {
	a := newAuthority(t)
	h, relay := a.half(t, dnp0), a.half(t, host1)
	wrap := func(b []byte) []byte {
		out, err := servicenet.SealRelayed(b, []fault.Hop{{Node: "n0", Half: fault.HalfDNP}, {Node: "n1", Half: fault.HalfHost}}, relay.signer)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	rep, ans := h.reports(t, 5, 3, false, servicenet.SealOptions{}), answer(t, h)
	for _, tc := range []struct {
		what string
		data []byte
		want bool
	}{{"report", rep, false}, {"answer", ans, true}, {"relayed report", wrap(rep), false}, {"relayed answer", wrap(ans), true},
		{"nothing", nil, false}, {"cut", ans[:5], false}} {
		if got := len(claimedNonce(tc.data)) == servicenet.NonceSize; got != tc.want {
			t.Errorf("%s: %t", tc.what, got)
		}
	}
}

func FuzzClaims(f *testing.F) {
	f.Add([]byte{0x0a, 2, 0x22, 0})
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(_ *testing.T, b []byte) { claimedNonce(b) })
}

// TestLeaderTrustsFollowersMACCheck: the leader trusts a follower's verification of MACs, for the kinds of messages that a MAC
// may protect.
func TestLeaderTrustsFollowersMACCheck(t *testing.T) {
	a := newAuthority(t)
	follower, leader, h := a.replica(t, "s1", nil), a.replica(t, "s2", nil), a.half(t, host0)
	follower.leader.leading = false
	session := follower.establish(t, h, 1, eth1, 1)
	follower.get(eth1, 1, h.reports(t, 5, 1, true, session))
	follower.get(eth0, 0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	if n := len(follower.forward.got); n != 2 {
		t.Fatalf("%d were forwarded", n)
	}
	under, signed := follower.forward.got[0], follower.forward.got[1]
	if under.GetName() != "n0/host" || under.GetSocket() != 1 || signed.GetName() != "" || signed.GetSocket() != 0 {
		t.Errorf("forwarded %v and %v", under, signed)
	}
	for _, req := range follower.forward.got {
		if in := leader.intake.Forwarded(req); in == nil || in.Reports == nil || in.To.Addr != req.GetFrom() ||
			in.To.Socket != uint8(req.GetSocket()) {
			t.Errorf("forwarded %v: %+v", req, in)
		}
	}
	forged := h.reports(t, 5, 1, false, servicenet.SealOptions{})
	for _, tc := range []struct {
		class string
		req   *lofamov1.ForwardRequest
	}{
		{"session", &lofamov1.ForwardRequest{Envelope: under.GetEnvelope(), Path: 1}},
		{"origin", &lofamov1.ForwardRequest{Envelope: under.GetEnvelope(), Path: 1, Name: "n1/host"}},
		{"role", &lofamov1.ForwardRequest{Envelope: underMAC(t, forged), Path: 1, Name: "n0/host"}},
		{"signature", &lofamov1.ForwardRequest{Envelope: newAuthority(t).half(t, host0).reports(t, 5, 1, false, servicenet.SealOptions{}),
			Path: 1, Name: "n0/host"}},
		{"unexpected", &lofamov1.ForwardRequest{Envelope: h.request(t, 5, 9), Path: 1}},
	} {
		before := leader.refused(tc.class)
		if in := leader.intake.Forwarded(tc.req); in != nil || leader.refused(tc.class) != before+1 {
			t.Errorf("%s: taken as %+v, or not counted", tc.class, in)
		}
	}
}

func TestRelayedIsAnsweredThroughRelay(t *testing.T) {
	a := newAuthority(t)
	r, h, relay := a.replica(t, "s1", nil), a.half(t, dnp0), a.half(t, host1)
	b, err := servicenet.SealRelayed(h.reports(t, 5, 1, false, servicenet.SealOptions{}),
		[]fault.Hop{{Node: "n0", Half: fault.HalfDNP, Held: time.Millisecond}, {Node: "n1", Half: fault.HalfHost}}, relay.signer)
	if err != nil {
		t.Fatal(err)
	}
	r.get(n1, 0, b)
	got, sent := r.leader.inputs(), r.wire.sent()
	if len(got) != 1 || !got[0].To.Relayed || got[0].Reports.Path != fault.PathTorus || len(got[0].Reports.Hops) != 2 || len(sent) != 1 ||
		sent[0].addr != n1 {
		t.Fatalf("inputs %+v, sent %v", got, sent)
	}
	node, inner, err := servicenet.InnerOf(relay.open(t, sent[0]))
	if err != nil || node != "n0" {
		t.Fatal(node, err)
	}
	if o := h.open(t, sentTo{data: inner}); o.Session != 0 || len(o.Msg.GetAcks()) != 1 {
		t.Errorf("acks %v", o.Msg.GetAcks())
	}
}

// TestAnswerToChallenge: the answer counts as evidence and needs no ack.
func TestAnswerToChallenge(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.get(eth0, 0, answer(t, h))
	want := awareness.Answered{Nonce: [16]byte(bytes.Repeat([]byte{7}, 16)), Origin: host0, Epoch: 5, Path: fault.PathDirect}
	if got := r.leader.inputs(); len(got) != 1 || got[0].Answer == nil || *got[0].Answer != want || len(r.wire.sent()) != 0 {
		t.Errorf("inputs %+v", got)
	}
}

// underMAC replaces a signature by a MAC that cannot be verified.
func underMAC(t testing.TB, b []byte) []byte {
	t.Helper()
	env := &lofamov1.Envelope{}
	if err := proto.Unmarshal(b, env); err != nil {
		t.Fatal(err)
	}
	out, err := proto.Marshal(&lofamov1.Envelope{Payload: env.GetPayload(), Session: 1, Mac: make([]byte, servicenet.MACSize),
		Checksum: math.MaxUint64, // as of one without
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// leaving is a topology that a node leaves after the first question.
type leaving struct{ asked map[fault.NodeID]bool }

func (l leaving) Known(id fault.NodeID) bool {
	was := l.asked[id]
	l.asked[id] = true
	return !was
}

// TestNodeLeavesWhileItsReportIsChecked: the report is refused.
func TestNodeLeavesWhileItsReportIsChecked(t *testing.T) {
	a := newAuthority(t)
	r := a.replica(t, "s1", func(c *IntakeConfig) { c.Names = leaving{make(map[fault.NodeID]bool)} })
	r.get(eth0, 0, a.half(t, host0).reports(t, 5, 1, false, servicenet.SealOptions{}))
	if n := len(r.wire.sent()) + len(r.leader.inputs()); n != 0 || r.refused("unknown-node") != 1 {
		t.Errorf("%d answers and inputs, refused %v times: want 0 and 1", n, r.refused("unknown-node"))
	}
}

// TestNodesThatHaveLeftAreForgotten: their paths, sessions, digests and budgets take no memory.
func TestNodesThatHaveLeftAreForgotten(t *testing.T) {
	a := newAuthority(t)
	names := map[fault.NodeID]bool{"n0": true, "n1": true}
	r := a.replica(t, "s1", func(c *IntakeConfig) { c.Names = nodeSet(names) })
	r.run(t, false)
	h := a.half(t, host0)
	o := r.establish(t, h, 1, eth0, 0)
	r.get(eth0, 0, h.reports(t, 5, 2, true, o))
	x := r.sender.cfg.Paths
	if len(x.machine.halves) != 1 || len(x.keys) != 1 {
		t.Fatalf("%d halves and %d keys after an exchange", len(x.machine.halves), len(x.keys))
	}
	src := r.intake.sources
	if r.intake.Keep(); len(x.machine.halves) != 1 || len(x.keys) != 1 || len(src.newest) != 1 || len(src.origins) != 1 {
		t.Error("a node that stays is forgotten")
	}
	delete(names, "n0")
	r.intake.Keep()
	if len(x.machine.halves)+len(x.keys)+len(r.intake.restater.halves) != 0 {
		t.Errorf("%d halves, %d keys and %d digests stay", len(x.machine.halves), len(x.keys), len(r.intake.restater.halves))
	}
	if len(src.newest)+len(src.origins) != 0 {
		t.Errorf("the numbers of %d digests and %d budgets stay", len(src.newest), len(src.origins))
	}
}

type nodeSet map[fault.NodeID]bool

func (s nodeSet) Known(id fault.NodeID) bool { return s[id] }
