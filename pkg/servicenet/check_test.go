package servicenet

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// messageOf returns a maker of one kind of message, changed in one place.
func messageOf[B any](body func(*lofamov1.Message) B, sample func() *lofamov1.Message) func(func(B)) *lofamov1.Message {
	return func(change func(B)) *lofamov1.Message {
		m := sample()
		change(body(m))
		return m
	}
}

func saysBounds(text string) bool {
	return strings.Contains(text, ": missing") || strings.Contains(text, ": given ") && strings.Contains(text, ": want ")
}

// Every bound of a message has a refusal, and the message without the change passes.
func TestEveryMessageBoundHasRefusal(t *testing.T) {
	nonce := make([]byte, NonceSize)
	report := func(f func(*lofamov1.Report)) *lofamov1.Message {
		m := EncodeReport(sampleReport())
		f(m)
		return reportsMessage(m)
	}
	obs := func(f func(*lofamov1.Observation)) *lofamov1.Message {
		return report(func(r *lofamov1.Report) { f(r.Observations[0]) })
	}
	ack := func(f func(*lofamov1.Ack)) *lofamov1.Message {
		m := NewAcks(lofamov1.Ack_STALE_EPOCH, sampleReport().ID)[0]
		m.Leader, m.HighestEpoch = "s1", 9
		f(m)
		return &lofamov1.Message{Acks: []*lofamov1.Ack{m}}
	}
	challenge := func(f func(*lofamov1.Challenge)) *lofamov1.Message {
		m := &lofamov1.Challenge{Nonce: nonce, Node: "n0", Half: 0, ReplyTo: "127.0.0.1:7"}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: m}}
	}
	answer := func(f func(*lofamov1.Answer)) *lofamov1.Message {
		m := &lofamov1.Answer{Nonce: nonce, Node: "n0", Half: 1, Epoch: 1}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: m}}
	}
	relayed := func(f func(*lofamov1.Relayed)) *lofamov1.Message {
		m := &lofamov1.Relayed{Inner: &lofamov1.Envelope{}, Hops: encodeHops([]fault.Hop{{Node: "n0", Half: fault.HalfHost, Held: 1}})}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Relayed{Relayed: m}}
	}
	downcall := func(f func(*lofamov1.Downcall)) *lofamov1.Message {
		m := &lofamov1.Downcall{Inner: &lofamov1.Envelope{}, Node: "n0"}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Downcall{Downcall: m}}
	}
	request := messageOf(func(m *lofamov1.Message) *lofamov1.PathRequest { return m.GetPathRequest() }, pathRequest)
	reply := messageOf(func(m *lofamov1.Message) *lofamov1.PathReply { return m.GetPathReply() }, pathReply)
	pathAck := messageOf(func(m *lofamov1.Message) *lofamov1.PathAck { return m.GetPathAck() }, pathAck)
	bulkRequest := messageOf(func(m *lofamov1.Message) *lofamov1.BulkRequest { return m.GetBulkRequest() }, bulkRequest)
	announce := messageOf(func(m *lofamov1.Message) *lofamov1.BulkAnnounce { return m.GetBulkAnnounce() }, bulkAnnounce)
	pull := messageOf(func(m *lofamov1.Message) *lofamov1.BulkPull { return m.GetBulkPull() }, bulkPull)
	order := messageOf(func(m *lofamov1.Message) *lofamov1.DiagnosisOrder { return m.GetDiagnosisOrder() }, diagnosisOrder)
	findings := messageOf(func(m *lofamov1.Message) *lofamov1.DiagnosisFindings { return m.GetDiagnosisFindings() }, func() *lofamov1.Message {
		m := diagnosisFindings()
		m.GetDiagnosisFindings().Half = lofamov1.Half_HALF_DNP
		return m
	})
	status := messageOf(func(m *lofamov1.Message) *lofamov1.DeliveryStatus { return m.GetReports().GetStatus() }, statusMessage)
	health := messageOf(func(m *lofamov1.Message) *lofamov1.HalfHealth { return m.GetReports().GetDnp() }, healthMessage)
	long := strings.Repeat("x", fault.MaxDetail+1)
	tests := []struct {
		want string // in the error; "" passes
		msg  *lofamov1.Message
	}{
		{"", report(func(*lofamov1.Report) {})},
		{"id.node", report(func(r *lofamov1.Report) { r.Id = nil })},
		{"id.node", report(func(r *lofamov1.Report) { r.Id.Node = "n/0" })},
		{"id.node", report(func(r *lofamov1.Report) { r.Id.Node = strings.Repeat("n", MaxNodeID+1) })},
		{"id.half", report(func(r *lofamov1.Report) { r.Id.Half = 0 })},
		{"id.half", report(func(r *lofamov1.Report) { r.Id.Half = 257 })},
		{"id.epoch", report(func(r *lofamov1.Report) { r.Id.Epoch = 0 })},
		{"id.seq", report(func(r *lofamov1.Report) { r.Id.Seq = 0 })},
		{"report.uptime_ns", report(func(r *lofamov1.Report) { r.UptimeNs = uint64(MaxAge) + 1 })},
		{"report.observations", report(func(r *lofamov1.Report) {
			for len(r.Observations) <= MaxObservations {
				r.Observations = append(r.Observations, r.Observations[0])
			}
		})},
		{"observation.node", obs(func(o *lofamov1.Observation) { o.Node = "a b" })},
		{"observation.component", obs(func(o *lofamov1.Observation) { o.Component = 0 })},
		{"observation.component", obs(func(o *lofamov1.Observation) { o.Component = uint32(fault.NumComponents) })},
		{"observation.component", obs(func(o *lofamov1.Observation) { o.Component = 256 + 1 })},
		{"observation.state", obs(func(o *lofamov1.Observation) { o.State = 0 })},
		{"observation.state", obs(func(o *lofamov1.Observation) { o.State = 256 + 1 })},
		{"observation.state", obs(func(o *lofamov1.Observation) { o.State = -1 })},
		{"observation.kind", obs(func(o *lofamov1.Observation) { o.Kind = 0 })},
		{"observation.kind", obs(func(o *lofamov1.Observation) { o.Kind = uint32(fault.KindAbsent) + 1 })},
		{"observation.age_ns", obs(func(o *lofamov1.Observation) { o.AgeNs = 1 << 63 })},
		{"observation.detail", obs(func(o *lofamov1.Observation) { o.Detail = strings.Repeat("x", fault.MaxDetail+1) })},
		{"observation.detail", obs(func(o *lofamov1.Observation) { o.Detail = "\x1b[2J" })},
		{"observation.detail", obs(func(o *lofamov1.Observation) { o.Detail = "failed \u202eoga h3" })},
		{"", ack(func(*lofamov1.Ack) {})},
		{"ack.status", ack(func(a *lofamov1.Ack) { a.Status = 0 })},
		{"ack.status", ack(func(a *lofamov1.Ack) { a.Status = 4 })},
		{"ack.seqs", ack(func(a *lofamov1.Ack) { a.Seqs = nil })},
		{"ack.seqs", ack(func(a *lofamov1.Ack) {
			for len(a.Seqs) <= MaxAckSeqs {
				a.Seqs = append(a.Seqs, 1)
			}
		})},
		{"ack.seqs", ack(func(a *lofamov1.Ack) { a.Seqs[0] = 0 })},
		{"ack.node", ack(func(a *lofamov1.Ack) { a.Node = "" })},
		{"ack.half", ack(func(a *lofamov1.Ack) { a.Half = 0 })},
		{"ack.epoch", ack(func(a *lofamov1.Ack) { a.Epoch = 0 })},
		{"message.acks", &lofamov1.Message{Acks: make([]*lofamov1.Ack, MaxAcks+1)}},
		{"reports.reports", reportsMessage()},
		{"reports[1].id", reportsMessage(EncodeReport(sampleReport()), EncodeReport(sampleReport()))},
		{"ack.leader", ack(func(a *lofamov1.Ack) { a.Leader = "S/1" })},
		{"ack.highest_epoch", ack(func(a *lofamov1.Ack) { a.HighestEpoch = 0 })},
		{"ack.highest_epoch", ack(func(a *lofamov1.Ack) { a.HighestEpoch = 1 << 63 })},
		{"", challenge(func(*lofamov1.Challenge) {})},
		{"challenge.nonce", challenge(func(c *lofamov1.Challenge) { c.Nonce = nonce[1:] })},
		{"challenge.node", challenge(func(c *lofamov1.Challenge) { c.Node = "" })},
		{"challenge.half", challenge(func(c *lofamov1.Challenge) { c.Half = 3 })},
		{"challenge.reply_to", challenge(func(c *lofamov1.Challenge) { c.ReplyTo = "localhost:7" })},
		{"", answer(func(*lofamov1.Answer) {})},
		{"answer.nonce", answer(func(a *lofamov1.Answer) { a.Nonce = nil })},
		{"answer.node", answer(func(a *lofamov1.Answer) { a.Node = "" })},
		{"answer.half", answer(func(a *lofamov1.Answer) { a.Half = 0 })},
		{"answer.epoch", answer(func(a *lofamov1.Answer) { a.Epoch = 0 })},
		{"", relayed(func(*lofamov1.Relayed) {})},
		{"relayed.inner", relayed(func(r *lofamov1.Relayed) { r.Inner = nil })},
		{"relayed.hops", relayed(func(r *lofamov1.Relayed) { r.Hops = nil })},
		{"relayed.hops", relayed(func(r *lofamov1.Relayed) {
			for len(r.Hops) <= MaxHops {
				r.Hops = append(r.Hops, r.Hops[0])
			}
		})},
		{"hop.node", relayed(func(r *lofamov1.Relayed) {
			r.Hops = []*lofamov1.Hop{r.Hops[0], {Half: lofamov1.Half_HALF_DNP}, r.Hops[0]}
		})},
		{"hop.half", relayed(func(r *lofamov1.Relayed) { r.Hops[0].Half = 9 })},
		{"hop.held_ns", relayed(func(r *lofamov1.Relayed) { r.Hops[0].HeldNs = 1 << 62 })},
		{"", downcall(func(*lofamov1.Downcall) {})},
		{"downcall.inner", downcall(func(d *lofamov1.Downcall) { d.Inner = nil })},
		{"downcall.node", downcall(func(d *lofamov1.Downcall) { d.Node = "" })},
		{"downcall.inner", downcall(func(d *lofamov1.Downcall) { d.Inner.Session = 1 })},
		{"relayed.inner", relayed(func(r *lofamov1.Relayed) { r.Inner.Session = 1 })},
		{"relayed.inner", relayed(func(r *lofamov1.Relayed) { r.Inner.Mac = make([]byte, MACSize) })},
		{"", request(func(*lofamov1.PathRequest) {})},
		{"", request(func(r *lofamov1.PathRequest) { r.Checksums = []lofamov1.Checksum{99} })}, // of a later version
		{"path_request.node", request(func(r *lofamov1.PathRequest) { r.Node = "" })},
		{"path_request.half", request(func(r *lofamov1.PathRequest) { r.Half = 0 })},
		{"path_request.epoch", request(func(r *lofamov1.PathRequest) { r.Epoch = 0 })},
		{"path_request.epoch", request(func(r *lofamov1.PathRequest) { r.Epoch = uint64(MaxEpoch) + 1 })},
		{"path_request.id", request(func(r *lofamov1.PathRequest) { r.Id = 0 })},
		{"path_request.checksums", request(func(r *lofamov1.PathRequest) { r.Checksums = make([]lofamov1.Checksum, MaxChecksums+1) })},
		{"path_request.key", request(func(r *lofamov1.PathRequest) { r.Key = r.Key[1:] })},
		{"", reply(func(*lofamov1.PathReply) {})},
		{"", reply(func(r *lofamov1.PathReply) { r.Leader = "" })},
		{"path_reply.node", reply(func(r *lofamov1.PathReply) { r.Node = "n/0" })},
		{"path_reply.half", reply(func(r *lofamov1.PathReply) { r.Half = 3 })},
		{"path_reply.epoch", reply(func(r *lofamov1.PathReply) { r.Epoch = 0 })},
		{"path_reply.id", reply(func(r *lofamov1.PathReply) { r.Id = 0 })},
		{"path_reply.checksum", reply(func(r *lofamov1.PathReply) { r.Checksum = 7 })},
		{"path_reply.checksum", reply(func(r *lofamov1.PathReply) { r.Checksum = -1 })},
		{"path_reply.key", reply(func(r *lofamov1.PathReply) { r.Key = append(r.Key, 0) })},
		{"path_reply.session", reply(func(r *lofamov1.PathReply) { r.Session = 0 })},
		{"path_reply.leader", reply(func(r *lofamov1.PathReply) { r.Leader = "S 1" })},
		{"", pathAck(func(*lofamov1.PathAck) {})},
		{"path_ack.node", pathAck(func(a *lofamov1.PathAck) { a.Node = "" })},
		{"path_ack.half", pathAck(func(a *lofamov1.PathAck) { a.Half = 0 })},
		{"path_ack.epoch", pathAck(func(a *lofamov1.PathAck) { a.Epoch = 0 })},
		{"path_ack.id", pathAck(func(a *lofamov1.PathAck) { a.Id = 0 })},
		{"", again()},
		{"", order(func(*lofamov1.DiagnosisOrder) {})},
		{"diagnosis_order.number.term", order(func(o *lofamov1.DiagnosisOrder) { o.Number = nil })},
		{"diagnosis_order.number.count", order(func(o *lofamov1.DiagnosisOrder) { o.Number.Count = 0 })},
		{"diagnosis_order.node", order(func(o *lofamov1.DiagnosisOrder) { o.Node = "" })},
		{"diagnosis_order.links", order(func(o *lofamov1.DiagnosisOrder) { o.Links = 0 })},
		{"diagnosis_order.links", order(func(o *lofamov1.DiagnosisOrder) { o.Links = 64 })},
		{"diagnosis_order.known", order(func(o *lofamov1.DiagnosisOrder) { o.Known = 64 })},
		{"diagnosis_order.rounds", order(func(o *lofamov1.DiagnosisOrder) { o.Rounds = 0 })},
		{"diagnosis_order.rounds", order(func(o *lofamov1.DiagnosisOrder) { o.Rounds = 11 })},
		{"diagnosis_order.reply_to", order(func(o *lofamov1.DiagnosisOrder) { o.ReplyTo = "s0:7" })},
		{"", findings(func(*lofamov1.DiagnosisFindings) {})},
		{"", findings(func(f *lofamov1.DiagnosisFindings) { f.Link, f.Error = nil, "there is no such link" })},
		{"", findings(func(f *lofamov1.DiagnosisFindings) { f.Link, f.Half = nil, lofamov1.Half_HALF_HOST })},
		{"diagnosis_findings.number.term", findings(func(f *lofamov1.DiagnosisFindings) { f.Number.Term = 0 })},
		{"diagnosis_findings.node", findings(func(f *lofamov1.DiagnosisFindings) { f.Node = "n/0" })},
		{"diagnosis_findings.half", findings(func(f *lofamov1.DiagnosisFindings) { f.Half = 0 })},
		{"diagnosis_findings.epoch", findings(func(f *lofamov1.DiagnosisFindings) { f.Epoch = 0 })},
		{"diagnosis_findings.epoch", findings(func(f *lofamov1.DiagnosisFindings) { f.Epoch = uint64(MaxEpoch) + 1 })},
		{"diagnosis_findings.dnp", findings(func(f *lofamov1.DiagnosisFindings) { f.Half, f.Dnp = lofamov1.Half_HALF_HOST, 0 })},
		{"diagnosis_findings.links", findings(func(f *lofamov1.DiagnosisFindings) { f.Links = 64 })},
		{"diagnosis_findings.link", findings(func(f *lofamov1.DiagnosisFindings) { f.Link = nil })},
		{"diagnosis_findings.link.direction", findings(func(f *lofamov1.DiagnosisFindings) { f.Link.Direction = 7 })},
		{"diagnosis_findings.link.direction", findings(func(f *lofamov1.DiagnosisFindings) { f.Links = 31 })},
		{"diagnosis_findings.error", findings(func(f *lofamov1.DiagnosisFindings) { f.Error = long })},
		{"diagnosis_findings.link.dnp.answered", findings(func(f *lofamov1.DiagnosisFindings) { f.Link.Dnp.Answered = 361 })},
		{"diagnosis_findings.link.host.altered", findings(func(f *lofamov1.DiagnosisFindings) { f.Link.Host.Altered = 360 })},
		{"diagnosis_findings.link.through.late", findings(func(f *lofamov1.DiagnosisFindings) { f.Link.Through.Late = 360 })},
		{"diagnosis_findings.own_host", findings(func(f *lofamov1.DiagnosisFindings) { f.OwnHost.MaxUs = 60_000_001 })},
		{"diagnosis_findings.own_host", findings(func(f *lofamov1.DiagnosisFindings) { f.OwnHost.MinUs = 2_500_001 })},
		{"", bulkRequest(func(*lofamov1.BulkRequest) {})},
		{"", bulkRequest(func(r *lofamov1.BulkRequest) { r.Via = "n1-0-0" })},
		{"bulk_request.transfer", bulkRequest(func(r *lofamov1.BulkRequest) { r.Transfer = nil })},
		{"bulk_request.node", bulkRequest(func(r *lofamov1.BulkRequest) { r.Node = "" })},
		{"bulk_request.half", bulkRequest(func(r *lofamov1.BulkRequest) { r.Half = 0 })},
		{"bulk_request.object", bulkRequest(func(r *lofamov1.BulkRequest) { r.Object = "" })},
		{"bulk_request.object", bulkRequest(func(r *lofamov1.BulkRequest) { r.Object = "../etc" })},
		{"bulk_request.max_size", bulkRequest(func(r *lofamov1.BulkRequest) { r.MaxSize = 0 })},
		{"bulk_request.max_size", bulkRequest(func(r *lofamov1.BulkRequest) { r.MaxSize = MaxBulk + 1 })},
		{"bulk_request.key", bulkRequest(func(r *lofamov1.BulkRequest) { r.Key = nil })},
		{"bulk_request.reply_to", bulkRequest(func(r *lofamov1.BulkRequest) { r.ReplyTo = "s0:7" })},
		{"bulk_request.via", bulkRequest(func(r *lofamov1.BulkRequest) { r.Via = "n/" })},
		{"", announce(func(*lofamov1.BulkAnnounce) {})},
		{"", announce(func(a *lofamov1.BulkAnnounce) {
			a.Name, a.Size, a.ChunkSize, a.Key, a.Error = "", 0, 0, nil, "unknown transfer"
		})},
		{"bulk_announce.transfer", announce(func(a *lofamov1.BulkAnnounce) { a.Transfer = a.Transfer[1:] })},
		{"bulk_announce.node", announce(func(a *lofamov1.BulkAnnounce) { a.Node = "" })},
		{"bulk_announce.half", announce(func(a *lofamov1.BulkAnnounce) { a.Half = 0 })},
		{"bulk_announce.name", announce(func(a *lofamov1.BulkAnnounce) { a.Name = "../../etc/passwd" })},
		{"bulk_announce.name", announce(func(a *lofamov1.BulkAnnounce) { a.Name = ".." })},
		{"bulk_announce.name", announce(func(a *lofamov1.BulkAnnounce) { a.Name = "a\x00b" })},
		{"bulk_announce.name", announce(func(a *lofamov1.BulkAnnounce) { a.Name = long })},
		{"bulk_announce.size", announce(func(a *lofamov1.BulkAnnounce) { a.Size = MaxBulk + 1 })},
		{"bulk_announce.chunk_size", announce(func(a *lofamov1.BulkAnnounce) { a.ChunkSize = 0 })},
		{"bulk_announce.chunk_size", announce(func(a *lofamov1.BulkAnnounce) { a.ChunkSize = MaxDatagram + 1 })},
		{"bulk_announce.key", announce(func(a *lofamov1.BulkAnnounce) { a.Key = nil })},
		{"bulk_announce.checksum_algorithm", announce(func(a *lofamov1.BulkAnnounce) { a.ChecksumAlgorithm = 7 })},
		{"bulk_announce.error", announce(func(a *lofamov1.BulkAnnounce) { a.Error = long })},
		{"bulk_announce.error", announce(func(a *lofamov1.BulkAnnounce) { a.Error = "\x1b[2J" })},
		{"", pull(func(*lofamov1.BulkPull) {})},
		{"", pull(func(p *lofamov1.BulkPull) { p.Ranges, p.Done = nil, true })},
		{"bulk_pull.transfer", pull(func(p *lofamov1.BulkPull) { p.Transfer = nil })},
		{"bulk_pull.node", pull(func(p *lofamov1.BulkPull) { p.Node = "" })},
		{"bulk_pull.half", pull(func(p *lofamov1.BulkPull) { p.Half = 0 })},
		{"bulk_pull.ranges", pull(func(p *lofamov1.BulkPull) { p.Ranges[0].Count = 0 })},
		{"bulk_pull.ranges", pull(func(p *lofamov1.BulkPull) { p.Ranges[0].First = 1<<32 - 1 })},
		{"bulk_pull.ranges", pull(func(p *lofamov1.BulkPull) {
			for len(p.Ranges) <= MaxChunkRanges {
				p.Ranges = append(p.Ranges, p.Ranges[0])
			}
		})},
		{"bulk_pull.reply_to", pull(func(p *lofamov1.BulkPull) { p.ReplyTo = "" })},
		{"bulk_pull.via", pull(func(p *lofamov1.BulkPull) { p.Via = "n/" })},
		{"", status(func(*lofamov1.DeliveryStatus) {})},
		{"status.state", status(func(s *lofamov1.DeliveryStatus) { s.State = 5 })},
		{"status.state", status(func(s *lofamov1.DeliveryStatus) { s.State = -1 })},
		{"status.primary", status(func(s *lofamov1.DeliveryStatus) { s.Primary = long })},
		{"status.primary", status(func(s *lofamov1.DeliveryStatus) { s.Primary = "eth0\n" })},
		{"status.alternate", status(func(s *lofamov1.DeliveryStatus) { s.Alternate = long })},
		{"status.spool", status(func(s *lofamov1.DeliveryStatus) { s.Spool = "\u009b31m" })},
		{"status.spool", status(func(s *lofamov1.DeliveryStatus) { s.Spool = long })},
		{"status.oldest_ns", status(func(s *lofamov1.DeliveryStatus) { s.OldestNs = 1 << 63 })},
		{"status.isolated_ns", status(func(s *lofamov1.DeliveryStatus) { s.IsolatedNs = 1 << 63 })},
		{"status.rails", status(func(s *lofamov1.DeliveryStatus) {
			for len(s.Rails) <= MaxRails {
				s.Rails = append(s.Rails, s.Rails[0])
			}
		})},
		{"rail.name", status(func(s *lofamov1.DeliveryStatus) { s.Rails[0].Name = long })},
		{"rail.name", status(func(s *lofamov1.DeliveryStatus) { s.Rails[0].Name = "\x07" })},
		{"rail.rtt_ns", status(func(s *lofamov1.DeliveryStatus) { s.Rails[0].RttNs = uint64(MaxAge) + 1 })},
		{"", health(func(*lofamov1.HalfHealth) {})},
		{"", health(func(h *lofamov1.HalfHealth) { h.Recovery = nil })},
		{"dnp.age_ns", health(func(h *lofamov1.HalfHealth) { h.AgeNs = 1 << 63 })},
		{"dnp.recovery.state", health(func(h *lofamov1.HalfHealth) { h.Recovery.State = 6 })},
		{"dnp.recovery.state", health(func(h *lofamov1.HalfHealth) { h.Recovery.State = -1 })},
		{"dnp.recovery.resumption", health(func(h *lofamov1.HalfHealth) { h.Recovery.Resumption = 3 })},
		{"dnp.recovery.cause", health(func(h *lofamov1.HalfHealth) { h.Recovery.Cause = long })},
		{"dnp.recovery.cold", health(func(h *lofamov1.HalfHealth) { h.Recovery.Cold = "\x1b[2J" })},
		{"dnp.recovery.age_ns", health(func(h *lofamov1.HalfHealth) { h.Recovery.AgeNs = uint64(MaxAge) + 1 })},
		{"dnp.tests", health(func(h *lofamov1.HalfHealth) {
			for len(h.Tests) <= MaxSelfTests {
				h.Tests = append(h.Tests, h.Tests[0])
			}
		})},
		{"dnp.tests[1].number", health(func(h *lofamov1.HalfHealth) { h.Tests[1].Number = 0 })},
		{"dnp.tests[0].state", health(func(h *lofamov1.HalfHealth) { h.Tests[0].State = 5 })},
		{"dnp.recovery.reason", health(func(h *lofamov1.HalfHealth) { h.Recovery.Reason = long })},
		{"dnp.tests.why", health(func(h *lofamov1.HalfHealth) { h.Tests[0].Why = long })},
		{"dnp.tests.module", health(func(h *lofamov1.HalfHealth) { h.Tests[0].Module = long })},
		{"message.body", &lofamov1.Message{}},
	}
	for _, tt := range tests {
		_, err := checkMessage(tt.msg)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%v: %v", tt.msg, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || RefusalOf(err) == 0):
			t.Errorf("want a refusal naming %s, got %v", tt.want, err)
		case tt.want != "" && !saysBounds(err.Error()):
			t.Errorf("%v: want it to say what was given and what is allowed", err)
		}
		if _, sealErr := Seal(tt.msg, newSigner(RoleNode, "x/host")); (sealErr == nil) != (tt.want == "") {
			t.Errorf("seal: %v, want refusal of %q", sealErr, tt.want)
		}
	}
}

// TestNamesAreIDs: the wire format accepts every node id that the configuration and the topology accept. Otherwise a
// node's halves would refuse to start after `config check` has called the file good.
func TestNamesAreIDs(t *testing.T) {
	for c := range 256 {
		if name := "n" + string([]byte{byte(c)}) + "0"; fault.IsName(name) != ValidID(name) {
			t.Errorf("%q: a name: %t, an id on the wire: %t", name, fault.IsName(name), ValidID(name))
		}
	}
	if longest := strings.Repeat("n", 63); !fault.IsName(longest) || !ValidID(longest) {
		t.Error("the longest name is no id on the wire")
	}
	r := fault.Report{ID: fault.ReportID{Origin: fault.Origin{Node: "GPU_7.rack-A", Half: fault.HalfHost}, Epoch: 1, Seq: 1}}
	got, err := parsed(EncodeReport(r))
	if err != nil || got.ID != r.ID {
		t.Errorf("%v, %v", got.ID, err)
	}
}

// Findings of one link always fit a relayed message: a half cannot split them.
func TestFindingsFitRelayed(t *testing.T) {
	m := diagnosisFindings()
	f := m.GetDiagnosisFindings()
	f.Node, f.Half, f.Epoch, f.Number = strings.Repeat("n",
		MaxNodeID), lofamov1.Half_HALF_DNP, uint64(MaxEpoch), &lofamov1.OrderNumber{Term: 1 << 62, Count: 1 << 40}
	for _, test := range []*lofamov1.DiagnosisTest{f.GetOwnHost(), f.GetLink().GetDnp(), f.GetLink().GetHost(), f.GetLink().GetThrough()} {
		test.MinUs, test.MedianUs, test.MaxUs = maxTripUs, maxTripUs, maxTripUs
	}
	if _, err := checkMessage(m); err != nil {
		t.Fatal(err)
	}
	if n := proto.Size(m); n > MaxReportSize+8 { // a report has a frame of 8 bytes more within a message
		t.Errorf("findings of %d bytes: want at most %d", n, MaxReportSize+8)
	}
}
