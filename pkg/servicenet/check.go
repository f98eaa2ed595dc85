package servicenet

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of messages. A receiver refuses a message outside them, before it keeps any part.
const (
	MaxDatagram     = 1400 // bytes of a marshalled envelope
	MaxCertificate  = 530  // bytes of DER of a half's certificate with the longest names
	MaxObservations = 64   // in one report
	MaxHops         = 16   // of one relayed message
	MaxNodeID       = 64   // bytes of [A-Za-z0-9._-]
	MaxAckSeqs      = 64   // report numbers in one ack
	MaxAcks         = 8    // acks in one message
	MaxReports      = 64   // in one message
	MaxRails        = 10   // in one delivery status: 8 interfaces, gossip, torus
	MaxChecksums    = 16   // offered in one path request
	MaxChunkRanges  = 32   // in one bulk pull
	MaxBulk         = 64 << 20
	NonceSize       = 16 // bytes
	TransferSize    = 16 // bytes of the name of a bulk transfer
	KeySize         = 32 // bytes of an X25519 public key, and of the secret of two
	// MaxAge bounds ages and holding times. The sum of one age and MaxHops of them still fits a
	// time.Duration.
	MaxAge = 10 * 365 * 24 * time.Hour
)

// checkMessage checks the fields of a message, from any signer, and returns its reports.
func checkMessage(msg *lofamov1.Message) ([]fault.Report, error) {
	if n := len(msg.GetAcks()); n > MaxAcks {
		return nil, refuse(RefusedField, "message.acks: given %d: want at most %d", n, MaxAcks)
	}
	for _, a := range msg.GetAcks() {
		if err := checkAck(a); err != nil {
			return nil, err
		}
	}
	if ms := msg.GetNoQuorumMs(); ms < -1 || ms > MaxAge.Milliseconds() {
		return nil, refuse(RefusedField, "message.no_quorum_ms: given %d: want -1 to %d", ms, MaxAge.Milliseconds())
	}
	if b, ok := msg.GetBody().(*lofamov1.Message_Reports); ok {
		if err := firstError(checkStatus(b.Reports.GetStatus()), checkHealth(healthOf(b.Reports))); err != nil {
			return nil, err
		}
		return decodeReports(b.Reports)
	}
	return nil, checkBody(msg)
}

// leaveOutLater removes observations, readings, components of fault updates, and path states with numbers that this version does not know.
// Their sender is of a later version, and the rest of its message counts. Without the removal, this version would refuse all reports and
// updates of that sender (faults.md row 19). A sender of this version refuses to send such numbers.
func leaveOutLater(msg *lofamov1.Message) {
	for _, r := range msg.GetReports().GetReports() {
		r.Readings = slices.DeleteFunc(r.GetReadings(), isLaterReading)
		if len(r.GetObservations()) > MaxObservations {
			continue // is refused
		}
		r.Observations = slices.DeleteFunc(r.GetObservations(), func(o *lofamov1.Observation) bool {
			return o.GetComponent() >= uint32(fault.NumComponents) || o.GetKind() > uint32(fault.KindAbsent) || o.GetState() > lofamov1.State_FAILED
		})
	}
	if s := msg.GetReports().GetStatus(); s.GetState() > lofamov1.PathState_REESTABLISHING {
		s.State = lofamov1.PathState_PATH_STATE_UNSPECIFIED
	}
	leaveOutLaterHealth(msg.GetReports().GetHost())
	leaveOutLaterHealth(msg.GetReports().GetDnp())
	for _, n := range msg.GetFaultUpdate().GetNodes() {
		n.Faults = slices.DeleteFunc(n.GetFaults(), func(f *lofamov1.ComponentFault) bool {
			return f.GetComponent() >= uint32(fault.NumComponents) || f.GetState() > lofamov1.State_FAILED
		})
	}
}

// isLaterReading reports whether only a later version has this quantity of this component.
func isLaterReading(v *lofamov1.Reading) bool {
	c, q := v.GetComponent(), v.GetQuantity()
	if c == 0 || q == 0 {
		return false // is refused
	}
	return c >= uint32(fault.NumComponents) || q > math.MaxUint8 || !fault.Quantity(q).Of(fault.Component(c))
}

// checkBody is long because it has a case for each body, except for orders and their answers (orderForms).
func checkBody(msg *lofamov1.Message) error {
	switch b := msg.GetBody().(type) {
	case *lofamov1.Message_Challenge:
		return checkChallenge(b.Challenge)
	case *lofamov1.Message_Answer:
		return checkAnswer(b.Answer)
	case *lofamov1.Message_Relayed:
		return checkRelayed(b.Relayed)
	case *lofamov1.Message_Downcall:
		return firstError(checkInner("downcall.inner", b.Downcall.GetInner()), checkID("downcall.node", b.Downcall.GetNode()))
	case *lofamov1.Message_PathRequest:
		return checkPathRequest(b.PathRequest)
	case *lofamov1.Message_PathReply:
		return checkPathReply(b.PathReply)
	case *lofamov1.Message_PathAck:
		return checkExchange("path_ack", b.PathAck)
	case *lofamov1.Message_Again:
		return nil
	case *lofamov1.Message_BulkRequest:
		return checkBulkRequest(b.BulkRequest)
	case *lofamov1.Message_BulkAnnounce:
		return checkBulkAnnounce(b.BulkAnnounce)
	case *lofamov1.Message_BulkPull:
		return checkBulkPull(b.BulkPull)
	case *lofamov1.Message_FaultUpdate:
		return checkFaultUpdate(b.FaultUpdate)
	case *lofamov1.Message_Interest:
		return checkInterest(b.Interest)
	case *lofamov1.Message_Eureka:
		return checkEureka(b.Eureka)
	case *lofamov1.Message_DenyPart:
		return checkDenyPart(b.DenyPart)
	case *lofamov1.Message_RenewRequest:
		return checkRenewRequest(b.RenewRequest)
	case *lofamov1.Message_RenewReply:
		return checkRenewReply(b.RenewReply)
	case nil:
		if len(msg.GetAcks()) > 0 {
			return nil
		}
	}
	if is, err := checkOrderBody(msg); is {
		return err
	}
	if len(msg.ProtoReflect().GetUnknown()) > 0 {
		return &RefusedError{Refusal: RefusedUnknownMessage, Err: errUnknownMessage}
	}
	return refuse(RefusedMalformed, "message.body: missing")
}

func checkAck(a *lofamov1.Ack) error {
	if s := a.GetStatus(); s < lofamov1.Ack_RECEIVED || s > lofamov1.Ack_STALE_EPOCH {
		return refuse(RefusedField, "ack.status: given %d: want 1 to 3", s)
	}
	if n := len(a.GetSeqs()); n < 1 || n > MaxAckSeqs {
		return refuse(RefusedField, "ack.seqs: given %d: want 1 to %d", n, MaxAckSeqs)
	}
	if slices.Contains(a.GetSeqs(), 0) {
		return refuse(RefusedField, "ack.seqs: given 0: want at least 1")
	}
	if h := a.GetHighestEpoch(); a.GetStatus() == lofamov1.Ack_STALE_EPOCH && (h == 0 || h > uint64(MaxEpoch)) {
		return refuse(RefusedField, "ack.highest_epoch: given %d: want 1 to %d", h, uint64(MaxEpoch))
	}
	return firstError(
		checkHalf("ack", a),
		atLeastOne("ack.epoch", a.GetEpoch()),
		checkOptionalID("ack.leader", a.GetLeader()),
	)
}

// checkStatus bounds a delivery status, which may be nil. It has no zero that is invalid: a half
// without a direct rail has no state.
func checkStatus(s *lofamov1.DeliveryStatus) error {
	if s == nil {
		return nil
	}
	if st := s.GetState(); st < 0 || st > lofamov1.PathState_REESTABLISHING {
		return refuse(RefusedField, "status.state: given %d: want 0 to %d", st, lofamov1.PathState_REESTABLISHING)
	}
	if n := len(s.GetRails()); n > MaxRails {
		return refuse(RefusedField, "status.rails: given %d: want at most %d", n, MaxRails)
	}
	for _, r := range s.GetRails() {
		if err := firstError(checkText("rail.name", r.GetName()), checkDuration("rail.rtt_ns", r.GetRttNs())); err != nil {
			return err
		}
	}
	return firstError(
		checkText("status.primary", s.GetPrimary()),
		checkText("status.alternate", s.GetAlternate()),
		checkText("status.spool", s.GetSpool()),
		checkDuration("status.oldest_ns", s.GetOldestNs()),
		checkDuration("status.isolated_ns", s.GetIsolatedNs()),
	)
}

func checkChallenge(c *lofamov1.Challenge) error {
	if h := c.GetHalf(); h < 0 || h > lofamov1.Half_HALF_DNP {
		return refuse(RefusedField, "challenge.half: given %d: want 0 to 2", h)
	}
	if at := c.GetIssuedNs(); at < 0 {
		return refuse(RefusedField, "challenge.issued_ns: given %d: want 0 or more", at)
	}
	return firstError(
		checkSize("challenge.nonce", c.GetNonce(), NonceSize),
		checkID("challenge.node", c.GetNode()),
		checkAddress("challenge.reply_to", c.GetReplyTo()),
	)
}

func checkAnswer(a *lofamov1.Answer) error {
	return firstError(
		checkSize("answer.nonce", a.GetNonce(), NonceSize),
		checkHalf("answer", a),
		atLeastOne("answer.epoch", a.GetEpoch()),
	)
}

func checkRelayed(r *lofamov1.Relayed) error {
	if len(r.GetHops()) == 0 {
		return refuse(RefusedField, "relayed.hops: given 0: want 1 to %d, the last one the signer", MaxHops)
	}
	if err := checkInner("relayed.inner", r.GetInner()); err != nil {
		return err
	}
	_, err := decodeHops(r.GetHops())
	return err
}

// checkInner refuses a MAC within a wrapper: it proves nothing to parties that did not exchange its key, and a
// message that passes through other nodes must carry its own proof.
func checkInner(field string, inner *lofamov1.Envelope) error {
	switch {
	case inner == nil:
		return refuse(RefusedField, "%s: missing", field)
	case inner.GetSession() != 0 || len(inner.GetMac()) > 0:
		return refuse(RefusedNested, "%s: given one under a MAC: want one signed", field)
	}
	return nil
}

// exchange is the common part of the three messages that establish a path (seed 004 Figure 8).
type exchange interface {
	speaker
	GetEpoch() uint64
	GetId() uint64
}

func checkExchange(name string, m exchange) error {
	if e := m.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "%s.epoch: given %d: want 1 to %d", name, e, uint64(MaxEpoch))
	}
	return firstError(checkHalf(name, m), atLeastOne(name+".id", m.GetId()))
}

// checkPathRequest lets algorithms of a later version pass: the supervisor chooses another one.
func checkPathRequest(m *lofamov1.PathRequest) error {
	if n := len(m.GetChecksums()); n > MaxChecksums {
		return refuse(RefusedField, "path_request.checksums: given %d: want at most %d", n, MaxChecksums)
	}
	return firstError(checkExchange("path_request", m), checkSize("path_request.key", m.GetKey(), KeySize))
}

func checkPathReply(m *lofamov1.PathReply) error {
	return firstError(
		checkExchange("path_reply", m),
		checkAlgorithm("path_reply.checksum", m.GetChecksum()),
		checkSize("path_reply.key", m.GetKey(), KeySize),
		atLeastOne("path_reply.session", m.GetSession()),
		checkOptionalID("path_reply.leader", m.GetLeader()),
	)
}

func checkBulkRequest(m *lofamov1.BulkRequest) error {
	if n := m.GetMaxSize(); n < 1 || n > MaxBulk {
		return refuse(RefusedField, "bulk_request.max_size: given %d: want 1 to %d", n, MaxBulk)
	}
	return firstError(
		checkSize("bulk_request.transfer", m.GetTransfer(), TransferSize),
		checkHalf("bulk_request", m),
		checkID("bulk_request.object", m.GetObject()),
		checkSize("bulk_request.key", m.GetKey(), KeySize),
		checkAddress("bulk_request.reply_to", m.GetReplyTo()),
		checkOptionalID("bulk_request.via", m.GetVia()),
	)
}

// checkBulkAnnounce requires the key and the chunk size only of an object that will come.
func checkBulkAnnounce(m *lofamov1.BulkAnnounce) error {
	if n := m.GetSize(); n > MaxBulk {
		return refuse(RefusedField, "bulk_announce.size: given %d: want at most %d", n, MaxBulk)
	}
	if err := firstError(
		checkSize("bulk_announce.transfer", m.GetTransfer(), TransferSize),
		checkHalf("bulk_announce", m),
		checkAlgorithm("bulk_announce.checksum_algorithm", m.GetChecksumAlgorithm()),
		checkFileName("bulk_announce.name", m.GetName()),
		checkText("bulk_announce.error", m.GetError()),
	); err != nil || m.GetError() != "" {
		return err
	}
	if n := m.GetChunkSize(); n < 1 || n > MaxDatagram {
		return refuse(RefusedField, "bulk_announce.chunk_size: given %d: want 1 to %d", n, MaxDatagram)
	}
	return checkSize("bulk_announce.key", m.GetKey(), KeySize)
}

func checkBulkPull(m *lofamov1.BulkPull) error {
	if n := len(m.GetRanges()); n > MaxChunkRanges {
		return refuse(RefusedField, "bulk_pull.ranges: given %d: want at most %d", n, MaxChunkRanges)
	}
	for _, r := range m.GetRanges() {
		// No object has more chunks than bytes.
		if first, n := uint64(r.GetFirst()), uint64(r.GetCount()); n == 0 || first+n > MaxBulk {
			return refuse(RefusedField, "bulk_pull.ranges: given %d chunks from %d on: want at least 1, the last below %d", n, first, MaxBulk)
		}
	}
	return firstError(
		checkSize("bulk_pull.transfer", m.GetTransfer(), TransferSize),
		checkHalf("bulk_pull", m),
		checkAddress("bulk_pull.reply_to", m.GetReplyTo()),
		checkOptionalID("bulk_pull.via", m.GetVia()),
	)
}

// firstError returns the first that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// speaker is a message that names a half.
type speaker interface {
	GetNode() string
	GetHalf() lofamov1.Half
}

// OriginOf returns the half that a message, which has passed checkMessage, names: its sender or, for an ack, the
// origin of the acknowledged reports.
func OriginOf(m speaker) fault.Origin {
	return fault.Origin{Node: fault.NodeID(m.GetNode()), Half: fault.Half(m.GetHalf())}
}

func checkHalf(name string, m speaker) error {
	if ValidID(m.GetNode()) && m.GetHalf() >= lofamov1.Half_HALF_HOST && m.GetHalf() <= lofamov1.Half_HALF_DNP {
		return nil
	}
	if err := checkID(name+".node", m.GetNode()); err != nil {
		return err
	}
	_, err := decodeHalf(name+".half", m.GetHalf())
	return err
}

func checkSize(field string, b []byte, want int) error {
	if len(b) != want {
		return refuse(RefusedField, "%s: given %d bytes: want %d", field, len(b), want)
	}
	return nil
}

func atLeastOne(field string, n uint64) error {
	if n == 0 {
		return refuse(RefusedField, "%s: given 0: want at least 1", field)
	}
	return nil
}

func checkAddress(field, addr string) error {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return refuse(RefusedField, "%s: given %.60q: want ip:port", field, addr)
	}
	return nil
}

func checkAlgorithm(field string, a lofamov1.Checksum) error {
	if !KnownChecksum(a) {
		return refuse(RefusedField, "%s: given %d: want one of the %d that are known", field, a, len(Checksums()))
	}
	return nil
}

func checkDuration(field string, ns uint64) error {
	_, err := decodeDuration(field, ns)
	return err
}

// checkID checks the id of a node or supervisor.
func checkID(field, id string) error {
	if !ValidID(id) {
		return refuse(RefusedField, "%s: given %.80q: want 1 to %d bytes of [A-Za-z0-9._-]", field, id, MaxNodeID)
	}
	return nil
}

// ValidID reports whether id can be the id of a node or supervisor: 1 to MaxNodeID bytes of [A-Za-z0-9._-]. The
// configuration and the topology accept no others.
func ValidID(id string) bool {
	ok := len(id) >= 1 && len(id) <= MaxNodeID
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_'
	}
	return ok
}

func checkOptionalID(field, id string) error {
	if id == "" {
		return nil
	}
	return checkID(field, id)
}

// checkFileName lets nothing pass that leaves a directory or hides in it. It may be empty.
func checkFileName(field, s string) error {
	ok := len(s) <= fault.MaxDetail && !strings.HasPrefix(s, ".")
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_'
	}
	if !ok {
		return refuse(RefusedField, "%s: given %.130q: want at most %d bytes of [A-Za-z0-9._-], the first not a dot", field, s, fault.MaxDetail)
	}
	return nil
}

// checkText checks text for people.
func checkText(field, s string) error {
	switch {
	case validText(s):
		return nil
	case len(s) > fault.MaxDetail:
		return refuse(RefusedField, "%s: given %d bytes: want at most %d", field, len(s), fault.MaxDetail)
	}
	return refuse(RefusedField, "%s: given %q: want UTF-8 without control and format characters", field, s)
}

// validText reports whether s is a text for people of at most MaxDetail bytes. This is where text of nodes enters: whatever shows it later
// relies on this.
func validText(s string) bool { return len(s) <= fault.MaxDetail && fault.IsText(s) }
