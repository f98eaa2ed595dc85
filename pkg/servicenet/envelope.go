package servicenet

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The roles that may sign envelopes.
const (
	RoleNode       = "node"
	RoleSupervisor = "supervisor"
)

// Signer signs for one half or one supervisor. Sign covers a fixed prefix and the payload; it
// keeps neither slice.
type Signer interface {
	Cert() []byte // DER; it may be renewed, and Sign is then of the new one's key
	Sign(payload []byte) []byte
}

// Verifier checks a certificate against the cluster's authority and a signature against the certificate, and returns
// the signer. A node's name is "<node>/<half>", a supervisor's is its id. It does not block and keeps none of the
// slices.
type Verifier interface {
	VerifyName(cert, payload, sig []byte) (role, name string, err error)
}

// Opened is a verified message.
type Opened struct {
	// Msg is the message. For Reports it has only the status and the health: Unwrap returns the reports.
	Msg        *lofamov1.Message
	Role, Name string // of the signer
	Session    uint64 // of the MAC; 0: signed
	Raw        []byte // the envelope as it came; the caller's slice
	// Certificate is the verified certificate of the signer, part of the caller's slice; nil under a MAC.
	Certificate []byte

	reports []fault.Report // of a Reports message
}

// SealOptions say how a message is sealed. The zero value signs, with a CRC-32C beside it.
type SealOptions struct {
	// Checksum is the end-to-end checksum; nil: CRC-32C, which every version knows. Use others only once a PathReply
	// has chosen them: lofamov1.Checksum.Enum makes the pointer.
	Checksum *lofamov1.Checksum
	// Session proves the message with a MAC; nil: a signature does.
	Session *SessionKey
	// Health goes with reports, and with nothing else; see FitHealth.
	Health Health
}

// Seal signs a message and returns the marshalled envelope, at most MaxDatagram bytes. It refuses a message that no
// receiver would accept.
func Seal(msg *lofamov1.Message, s Signer) ([]byte, error) { return SealWith(msg, s, SealOptions{}) }

// SealWith is Seal with options. With a session the signer is not used.
func SealWith(msg *lofamov1.Message, s Signer, o SealOptions) ([]byte, error) {
	b, err := sealWith(msg, s, o)
	if err != nil {
		return nil, fmt.Errorf("seal message: %w", err)
	}
	return b, nil
}

func sealWith(msg *lofamov1.Message, s Signer, o SealOptions) ([]byte, error) {
	if _, err := checkMessage(msg); err != nil {
		return nil, err
	}
	if o.Session != nil {
		if err := checkUnderMAC(msg); err != nil {
			return nil, err
		}
	}
	b, at := beginField(make([]byte, 0, sealedRoom), fieldPayload)
	if msg.GetBody() == nil && msg.GetNoQuorumMs() == 0 {
		b = appendAcks(b, msg.GetAcks())
	} else {
		var err error
		if b, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(b, msg); err != nil {
			return nil, err
		}
	}
	return finish(b, at, s, o)
}

// SealReports seals reports of one origin under one signature or MAC. The status may be nil.
func SealReports(rs []fault.Report, status *lofamov1.DeliveryStatus, s Signer, o SealOptions) ([]byte, error) {
	b, err := sealReports(rs, status, s, o)
	if err != nil {
		return nil, fmt.Errorf("seal message: %w", err)
	}
	return b, nil
}

func sealReports(rs []fault.Report, status *lofamov1.DeliveryStatus, s Signer, o SealOptions) ([]byte, error) {
	b, at := beginField(make([]byte, 0, reportsRoom(rs, o)), fieldPayload)
	b, err := appendReports(b, rs, status, o.Health)
	if err != nil {
		return nil, err
	}
	if o.Session != nil {
		for i := range rs {
			if !rs[i].Digest {
				return nil, refuseUnderMAC(i)
			}
		}
	}
	return finish(b, at, s, o)
}

// sealedRoom is enough for a message without a signature and most of those with one.
const sealedRoom = 512

// reportsRoom is about as many bytes as will be sealed.
func reportsRoom(rs []fault.Report, o SealOptions) int {
	n := 200 + healthSize(o.Health) // the status, MAC and checksum
	if o.Session == nil {
		n += signedSize(usualCertificate)
	}
	for i := range rs {
		n += 48 + 16*len(rs[i].Observations)
	}
	return min(n, MaxDatagram)
}

// finish proves the payload that begins at at, and ends the envelope.
func finish(b []byte, at int, s Signer, o SealOptions) ([]byte, error) {
	p := packet{algorithm: DefaultChecksum}
	if o.Checksum != nil {
		p.algorithm = *o.Checksum
	}
	if err := checkAlgorithm("checksum", p.algorithm); err != nil {
		return nil, err
	}
	n := len(b) - at
	b = endField(b, at)
	payload := b[len(b)-n:]
	if o.Session == nil {
		for renewed := true; renewed; renewed = !bytes.Equal(p.certificate, s.Cert()) { // between the two: then it is another's signature
			p.certificate, p.signature = s.Cert(), s.Sign(payload)
		}
	} else {
		mac := o.Session.MAC(payload)
		p.session, p.mac = o.Session.ID(), mac[:]
	}
	b = p.appendProof(b)
	if len(b) > MaxDatagram {
		return nil, refuse(RefusedTooLong, "envelope: given %d bytes: want at most %d", len(b), MaxDatagram)
	}
	return b, nil
}

// SealRelayed wraps another origin's envelope, with the hops that it took; the last one is the
// signer itself. Where all hops do not fit, those between the first and the last are merged into
// their successors, so that the time held stays whole. Where these two do not fit, their names are left out: the two
// certificates have them.
func SealRelayed(inner []byte, hops []fault.Hop, s Signer) ([]byte, error) {
	env, err := parseInner(inner)
	if err != nil {
		return nil, fmt.Errorf("seal relayed message: %w", err)
	}
	hops = append([]fault.Hop(nil), hops...)
	for {
		if len(hops) <= MaxHops {
			b, err := sealHops(env, encodeHops(hops), s)
			if RefusalOf(err) != RefusedTooLong {
				return b, err
			}
		}
		if len(hops) <= 2 {
			return sealHops(env, leaveOutNames(encodeHops(hops), env), s)
		}
		hops[2].Held += hops[1].Held
		hops = append(hops[:1], hops[2:]...)
	}
}

func sealHops(inner *lofamov1.Envelope, hops []*lofamov1.Hop, s Signer) ([]byte, error) {
	return Seal(&lofamov1.Message{Body: &lofamov1.Message_Relayed{Relayed: &lofamov1.Relayed{Inner: inner, Hops: hops}}}, s)
}

// leaveOutNames removes the name of the last hop, which is the signer's, and that of the first, if it is the origin's.
func leaveOutNames(hops []*lofamov1.Hop, inner *lofamov1.Envelope) []*lofamov1.Hop {
	msg := new(lofamov1.Message)
	if err := proto.Unmarshal(inner.GetPayload(), msg); err == nil {
		if _, err = checkMessage(msg); err == nil {
			if of, _ := bySpeaker(msg); hops[0].GetNode() == string(of.Node) {
				hops[0].Node = ""
			}
		}
	}
	hops[len(hops)-1].Node = ""
	return hops
}

// SealDowncall wraps an envelope (an ack or a challenge) that a host half is to pass to node.
func SealDowncall(node fault.NodeID, inner []byte, s Signer) ([]byte, error) {
	env, err := parseInner(inner)
	if err != nil {
		return nil, fmt.Errorf("seal downcall: %w", err)
	}
	return Seal(&lofamov1.Message{Body: &lofamov1.Message_Downcall{
		Downcall: &lofamov1.Downcall{Node: string(node), Inner: env},
	}}, s)
}

// Open verifies an envelope: its size, its checksum, the signature or MAC, the fields of the message, and the
// signer's right to send it. Reports, an answer, findings, PathRequest, PathAck, BulkAnnounce, Interest or JobEureka
// may come only from the half itself, Relayed only from the host half that is the last hop, everything else only from
// a supervisor. Under a MAC only digests are allowed, and the supervisor messages that checkUnderMAC lists. Of a
// Relayed or Downcall only the wrapper is verified; see Unwrap and InnerOf. The reader compares the addressee of a
// supervisor's message (PathReply.node and half, say). Every error is a *RefusedError; see IsDamaged.
func Open(b []byte, v Verifier) (Opened, error) {
	p, err := parsePacket(b)
	if err != nil {
		return Opened{}, err
	}
	o, err := p.open(v)
	if err != nil {
		return Opened{}, err
	}
	o.Raw = b
	return o, nil
}

// Arrival is a verified message of a half as it reached a supervisor. For a relayed one it holds the inner message,
// its origin's name, and the hops, the last of which is the host half that relayed it.
type Arrival struct {
	Opened
	Reports // without reports if the message has none: then only the way it came
}

// Reports are verified reports of one origin that arrived together, the way they came, and the statuses that came with
// them.
type Reports struct {
	List   []fault.Report
	Path   fault.Path
	Hops   []fault.Hop
	Status *lofamov1.DeliveryStatus // of the origin's outbox; nil: none
	Health Health                   // of the halves of the origin's node
	// Words identifies a single full digest, so that a supervisor can recognise its restatements; 0: none. The
	// supervisor's intake sets it.
	Words uint64
}

// Delivery returns one of the reports together with how it came.
func (r *Reports) Delivery(i int) fault.Delivery {
	return fault.Delivery{Report: r.List[i], Path: r.Path, Hops: r.Hops}
}

// Digests reports whether all reports are digests.
func (r *Reports) Digests() bool {
	return r != nil && !slices.ContainsFunc(r.List, func(r fault.Report) bool { return !r.Digest })
}

// Unwrap opens a message that reached a supervisor by path. From a Relayed it takes and verifies the inner envelope
// as well, and the path is TORUS.
func Unwrap(b []byte, path fault.Path, v Verifier) (Arrival, error) {
	if !path.Valid() {
		return Arrival{}, fmt.Errorf("unwrap: path: given %s: want DIRECT, GOSSIP or TORUS", path)
	}
	o, err := Open(b, v)
	if err != nil {
		return Arrival{}, err
	}
	a := Arrival{Reports: Reports{Path: path}}
	if rel := o.Msg.GetRelayed(); rel != nil {
		a.Path = fault.PathTorus
		if a.Hops, err = decodeHops(rel.GetHops()); err != nil {
			return Arrival{}, err
		}
		inner := packetOf(rel.GetInner())
		if o, err = inner.open(v); err != nil {
			return Arrival{}, err
		}
		if a.Hops[0].Node == "" { // left out: the origin's
			a.Hops[0].Node = fault.NodeOf(o.Name)
		}
		switch o.Msg.GetBody().(type) {
		case *lofamov1.Message_Reports, *lofamov1.Message_Answer, *lofamov1.Message_BulkAnnounce:
		default:
			if _, ok := OrderStatusOf(o.Msg); !ok {
				return Arrival{}, refuse(RefusedNested, "relayed.inner: given %T: want reports, an answer, findings, a bulk announcement or a status",
					o.Msg.GetBody())
			}
		}
		o.Raw = b
	}
	a.Opened, a.List, a.Status, a.Health = o, o.reports, o.Msg.GetReports().GetStatus(), healthOf(o.Msg.GetReports())
	return a, nil
}

// InnerOf returns the marshalled envelope within an opened Downcall, and its addressee. The inner envelope is not
// verified: the addressed node does that.
func InnerOf(o Opened) (node fault.NodeID, inner []byte, err error) {
	dc := o.Msg.GetDowncall()
	if dc == nil {
		return "", nil, refuse(RefusedNested, "message: given %T: want a downcall", o.Msg.GetBody())
	}
	inner, err = proto.MarshalOptions{Deterministic: true}.Marshal(dc.GetInner())
	if err != nil {
		return "", nil, fmt.Errorf("marshal inner envelope of downcall to %s: %w", dc.GetNode(), err)
	}
	return fault.NodeID(dc.GetNode()), inner, nil
}

// parseInner reads an envelope before it is wrapped. Its checksum is for the receiver that opens it: a relay need not
// know the algorithm.
func parseInner(b []byte) (*lofamov1.Envelope, error) {
	p, err := parsePacket(b)
	if err != nil {
		return nil, err
	}
	if err := p.checkParts(); err != nil {
		if damage := p.checkSum(); damage != nil {
			return nil, damage
		}
		return nil, err
	}
	env := new(lofamov1.Envelope)
	if err := proto.Unmarshal(b, env); err != nil { // keeps fields that only later versions know
		return nil, refuse(RefusedMalformed, "envelope of %d bytes: %w", len(b), err)
	}
	return env, nil
}

// open verifies before it parses: nothing damaged is verified, and nothing unproved reaches the message
// decoder.
func (p *packet) open(v Verifier) (Opened, error) {
	if err := p.checkSum(); err != nil {
		return Opened{}, err
	}
	if err := p.checkParts(); err != nil {
		return Opened{}, err
	}
	role, name, err := p.prove(v)
	if err != nil {
		return Opened{}, err
	}
	o := Opened{Role: role, Name: name, Session: p.session, Certificate: p.certificate}
	if o.readReports(p.payload) || o.readAcks(p.payload) {
		return o, nil
	}
	o.Msg = new(lofamov1.Message)
	if err := proto.Unmarshal(p.payload, o.Msg); err != nil {
		return Opened{}, refuse(RefusedMalformed, "message signed by %s %s: %w", role, name, err)
	}
	leaveOutLater(o.Msg)
	if o.reports, err = checkMessage(o.Msg); err != nil {
		return Opened{}, err
	}
	if err := checkSigner(o.Msg, role, name); err != nil {
		return Opened{}, err
	}
	if p.session != 0 {
		if err := checkUnderMAC(o.Msg); err != nil {
			return Opened{}, err
		}
	}
	if o.reports != nil {
		o.Msg = reportsStandIn(o.Msg.GetReports().GetStatus(), healthOf(o.Msg.GetReports()))
	}
	return o, nil
}

// checkSigner checks whether the signer may send msg, which has passed checkMessage.
func checkSigner(msg *lofamov1.Message, role, name string) error {
	said, want := bySpeaker(msg)
	if role != want {
		return refuse(RefusedRole, "%T: signed by %s %q: want a %s", msg.GetBody(), role, name, want)
	}
	if len(msg.GetAcks()) > 0 && role != RoleSupervisor {
		return refuse(RefusedRole, "acks: signed by %s %q: want a %s", role, name, RoleSupervisor)
	}
	if hops := msg.GetRelayed().GetHops(); len(hops) > 0 && hops[len(hops)-1].GetNode() == "" { // left out: the signer's
		hops[len(hops)-1].Node = string(fault.NodeOf(name))
		said.Node = fault.NodeOf(name)
	}
	if want == RoleNode && said.String() != name {
		return refuse(RefusedOrigin, "%T of %s: signed by %q: want the same", msg.GetBody(), said, name)
	}
	return nil
}

// bySpeaker returns which role may say msg and, for a node's, which half.
func bySpeaker(msg *lofamov1.Message) (said fault.Origin, role string) {
	switch b := msg.GetBody().(type) {
	case *lofamov1.Message_Reports:
		return OriginOf(b.Reports.GetReports()[0].GetId()), RoleNode // the others are of the same origin
	case *lofamov1.Message_Answer:
		return OriginOf(b.Answer), RoleNode
	case *lofamov1.Message_Relayed:
		last := b.Relayed.GetHops()[len(b.Relayed.GetHops())-1]
		return fault.Origin{Node: fault.NodeID(last.GetNode()), Half: fault.HalfHost}, RoleNode
	case *lofamov1.Message_PathRequest:
		return OriginOf(b.PathRequest), RoleNode
	case *lofamov1.Message_PathAck:
		return OriginOf(b.PathAck), RoleNode
	case *lofamov1.Message_BulkAnnounce:
		return OriginOf(b.BulkAnnounce), RoleNode
	case *lofamov1.Message_RenewRequest:
		return OriginOf(b.RenewRequest), RoleNode
	case *lofamov1.Message_Interest:
		return fault.Origin{Node: fault.NodeID(b.Interest.GetNode()), Half: fault.HalfHost}, RoleNode
	case *lofamov1.Message_Eureka:
		return fault.Origin{Node: fault.NodeID(b.Eureka.GetNode()), Half: fault.HalfHost}, RoleNode
	}
	if s, ok := OrderStatusOf(msg); ok {
		return s.By, RoleNode
	}
	return fault.Origin{}, RoleSupervisor
}
