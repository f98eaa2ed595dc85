package servicenet

import (
	"bytes"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// One message of every kind, valid.

func ackMessage() *lofamov1.Message {
	return &lofamov1.Message{Acks: NewAcks(lofamov1.Ack_RECEIVED, sampleReport().ID)}
}

func reportsMessage(rs ...*lofamov1.Report) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: &lofamov1.Reports{Reports: rs}}}
}

func sampleDigest() fault.Report {
	r := sampleReport()
	r.Digest = true
	return r
}

func sampleStatus() *lofamov1.DeliveryStatus {
	return &lofamov1.DeliveryStatus{
		State: lofamov1.PathState_ARMED, Primary: "eth0>s0", Alternate: "eth1>s1", Logged: 3, Unanswered: 1,
		OldestNs: uint64(time.Second), Migrations: 2, Retries: 5, Shortened: 1, IsolatedNs: 1, Spool: "disk full",
		Rails: []*lofamov1.RailStatus{{Name: "direct/eth0", Sent: 9, Answered: 8, RttNs: uint64(time.Millisecond)}},
	}
}

func statusMessage() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: EncodeReports([]fault.Report{sampleDigest()}, sampleStatus())}}
}

func sampleHealth() Health {
	return Health{
		Host: &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{
				State: lofamov1.RecoveryState_RUNNING, Restarts: 7, InWindow: 1, Budget: 5, WindowMs: 60_000, Cause: "killed by signal 9",
				AgeNs:  uint64(90 * time.Second),
				GoneUs: 1200, StartedUs: 20_000, ServingUs: 43_000, ProvenUs: 90_000, Resumption: lofamov1.Resumption_RESUMED,
			},
			Tests: []*lofamov1.SelfTest{
				{Number: 8, State: lofamov1.TestState_PASSED, AgeMs: 800, LatencyUs: 240, LearnedUs: 260, Tests: 912, Lost: 1},
				{Number: 10, State: lofamov1.TestState_FAILING, AgeMs: 300, LatencyUs: 90, LearnedUs: 80, Tests: 12, Altered: 3, Doubled: 1, Late: 2},
			},
		},
		DNP: &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 1, Cause: "hung for 62 ms",
				Resumption: lofamov1.Resumption_COLD, Cold: "another kernel boot", UntilMs: 400},
			Tests: []*lofamov1.SelfTest{{Number: 1, State: lofamov1.TestState_UNTESTED},
				{Number: 7, State: lofamov1.TestState_IDLE, AgeMs: 12_000, Tests: 3}},
			AgeNs: uint64(time.Second), Cut: true,
		},
	}
}

func healthMessage() *lofamov1.Message {
	m := statusMessage()
	m.GetReports().Host, m.GetReports().Dnp = sampleHealth().Host, sampleHealth().DNP
	return m
}

func challengeMessage() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
		Nonce: make([]byte, NonceSize), Node: "n0-0-1", ReplyTo: "127.0.0.1:9"}}}
}

func answerMessage() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: &lofamov1.Answer{
		Nonce: make([]byte, NonceSize), Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Epoch: 1}}}
}

func relayedMessage(inner *lofamov1.Envelope, hops []fault.Hop) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Relayed{Relayed: &lofamov1.Relayed{Inner: inner, Hops: encodeHops(hops)}}}
}

func downcallMessage(inner *lofamov1.Envelope) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Downcall{Downcall: &lofamov1.Downcall{Node: "n0", Inner: inner}}}
}

func pathRequest() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_PathRequest{PathRequest: &lofamov1.PathRequest{
		Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Epoch: 3, Id: 1, Alternate: true, Key: make([]byte, KeySize),
		Checksums: []lofamov1.Checksum{lofamov1.Checksum_CHECKSUM_XXHASH64, lofamov1.Checksum_CHECKSUM_CRC32C}}}}
}

func pathReply() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{
		Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Epoch: 3, Id: 1, Key: make([]byte, KeySize), Session: 77, Leader: "s1"}}}
}

func pathAck() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_PathAck{PathAck: &lofamov1.PathAck{
		Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Epoch: 3, Id: 1}}}
}

func eureka() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Eureka{Eureka: &lofamov1.JobEureka{
		Node: "n0-0-1", Epoch: 3, Number: 9, Uid: 1000, Job: "train-4711", Topic: "found", Body: []byte("42"), Priority: 1}}}
}

func again() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}
}

func bulkRequest() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_BulkRequest{BulkRequest: &lofamov1.BulkRequest{
		Transfer: make([]byte, TransferSize), Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Object: "bundle", MaxSize: MaxBulk,
		Key: make([]byte, KeySize), ReplyTo: "127.0.0.1:9"}}}
}

func bulkAnnounce() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_BulkAnnounce{BulkAnnounce: &lofamov1.BulkAnnounce{
		Transfer: make([]byte, TransferSize), Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Name: "n0-0-1_host.tar.gz", Size: MaxBulk,
		ChunkSize: 1024, Key: make([]byte, KeySize), ChecksumAlgorithm: lofamov1.Checksum_CHECKSUM_XXHASH64, Checksum: 1, Complete: true}}}
}

func bulkPull() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_BulkPull{BulkPull: &lofamov1.BulkPull{
		Transfer: make([]byte, TransferSize), Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, ReplyTo: "127.0.0.1:9",
		Ranges: []*lofamov1.ChunkRange{{First: 0, Count: 8}, {First: 65535, Count: 1}}}}}
}

func diagnosisOrder() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{
		Number: &lofamov1.OrderNumber{Term: 7, Count: 2}, Node: "n0-0-1", Links: 63, Rounds: 1, ReplyTo: "127.0.0.1:9", Known: 5}}}
}

func diagnosisFindings() *lofamov1.Message {
	test := func() *lofamov1.DiagnosisTest {
		return &lofamov1.DiagnosisTest{Sent: 360, Answered: 359, Altered: 300, Late: 301, MinUs: 400_000, MedianUs: 2_500_000, MaxUs: 3_000_000}
	}
	return &lofamov1.Message{Body: &lofamov1.Message_DiagnosisFindings{DiagnosisFindings: &lofamov1.DiagnosisFindings{
		Number: &lofamov1.OrderNumber{Term: 7, Count: 2}, Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Epoch: 3,
		Dnp: lofamov1.State_NORMAL, Links: 63,
		OwnHost: test(), Link: &lofamov1.LinkFinding{Direction: 6, Dnp: test(), Host: test(), Through: test(), Heard: 100_000,
			Missed: 100_000, Damaged: 100_000}}}}
}

func plainOrder() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Order{Order: &lofamov1.Order{
		Kind: "fan-curve", Node: "n0-0-1", Number: 7, Life: 3, Content: []byte("quiet")}}}
}

func plainOrderStatus() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_OrderStatus{OrderStatus: &lofamov1.OrderStatus{
		Kind: "fan-curve", Node: "n0-0-1", Half: lofamov1.Half_HALF_HOST, Epoch: 3, Number: 7, Sum: 1 << 60}}}
}

// said is a message, its sender, and whether a MAC suffices.
type said struct {
	name   string
	msg    *lofamov1.Message
	signer fakeSigner
	mac    bool
}

// everything is every kind of message.
func everything(t testing.TB) []said {
	report := envelopeOf(t, sealedReport(t))
	return []said{
		{"reports", reportsMessage(EncodeReport(sampleReport())), nodeSigner, false},
		{"digests", statusMessage(), nodeSigner, true},
		{"a digest and a report", &lofamov1.Message{Body: &lofamov1.Message_Reports{
			Reports: EncodeReports([]fault.Report{sampleDigest(), sampleReport()}, nil)}}, nodeSigner, false},
		{"answer", answerMessage(), nodeSigner, false},
		{"relayed", relayedMessage(report, relayHops), relaySigner, false},
		{"path request", pathRequest(), nodeSigner, false},
		{"path ack", pathAck(), nodeSigner, false},
		{"bulk announce", bulkAnnounce(), nodeSigner, false},
		{"diagnosis findings", diagnosisFindings(), nodeSigner, false},
		{"diagnosis order", diagnosisOrder(), supSigner, false},
		{"eureka", eureka(), nodeSigner, false},
		{"acks", ackMessage(), supSigner, true},
		{"acks without a quorum", &lofamov1.Message{Acks: ackMessage().GetAcks(), NoQuorumMs: 2500}, supSigner, true},
		{"challenge", challengeMessage(), supSigner, true},
		{"again", again(), supSigner, true},
		{"downcall", downcallMessage(envelopeOf(t, seal(t, challengeMessage(), supSigner))), supSigner, true},
		{"path reply", pathReply(), supSigner, false},
		{"bulk request", bulkRequest(), supSigner, false},
		{"bulk pull", bulkPull(), supSigner, false},
		{"configuration", &lofamov1.Message{Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: torusConfiguration()}},
			supSigner, false},
		{"order", plainOrder(), supSigner, false},
		{"order status", plainOrderStatus(), nodeSigner, false},
	}
}

// fakeSessions is a verifier that has sessions as well.
type fakeSessions struct {
	fakeVerifier
	keys map[uint64]fakeSession
}

type fakeSession struct {
	key        *SessionKey
	role, name string
}

func testKey(id uint64) *SessionKey {
	return NewSession(id, [32]byte(bytes.Repeat([]byte{byte(id)}, 32)))
}

// newSessions has session 1 with the node and session 2 with the supervisor.
func newSessions() fakeSessions {
	return fakeSessions{keys: map[uint64]fakeSession{
		1: {testKey(1), RoleNode, "n0-0-1/host"},
		2: {testKey(2), RoleSupervisor, "s0"},
	}}
}

func (f fakeSessions) VerifyMAC(id uint64, payload, mac []byte) (role, name string, err error) {
	s, ok := f.keys[id]
	switch {
	case !ok:
		return "", "", ErrUnknownSession
	case !s.key.Verify(payload, mac):
		return "", "", errBadMAC
	}
	return s.role, s.name, nil
}
