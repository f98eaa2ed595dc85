package servicenet

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The roles that may sign envelopes.
const (
	RoleNode       = "node"
	RoleSupervisor = "supervisor"
)

const signatureSize = 64 // Ed25519

// Signer signs for one half or one supervisor. Sign covers a fixed prefix and the payload; it
// keeps neither slice.
type Signer interface {
	Cert() []byte // DER
	Sign(payload []byte) []byte
}

// Verifier checks a certificate against the cluster's authority and a signature against the
// certificate, and returns who signed. A node's name is "<node>/<half>", a supervisor's is its id.
// It does not block and keeps none of the slices.
type Verifier interface {
	VerifyName(cert, payload, sig []byte) (role, name string, err error)
}

// Opened is a verified message.
type Opened struct {
	Msg        *lofamov1.Message
	Role, Name string // of the signer
	Raw        []byte // the envelope as it came; the caller's slice
}

// Seal signs a message and returns the marshalled envelope, at most MaxDatagram bytes. What no
// receiver would accept is refused here.
func Seal(msg *lofamov1.Message, s Signer) ([]byte, error) {
	if err := checkMessage(msg); err != nil {
		return nil, fmt.Errorf("seal message: %w", err)
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("seal message: %w", err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&lofamov1.Envelope{
		Payload:     payload,
		Certificate: s.Cert(),
		Signature:   s.Sign(payload),
	})
	if err != nil {
		return nil, fmt.Errorf("seal message: %w", err)
	}
	if len(b) > MaxDatagram {
		return nil, fmt.Errorf("seal message: %w", refuse(RefusedTooLong, "envelope: given %d bytes: want at most %d", len(b), MaxDatagram))
	}
	return b, nil
}

// SealReports seals reports of one origin under one signature. The status may be nil.
func SealReports(rs []fault.Report, status *lofamov1.DeliveryStatus, s Signer) ([]byte, error) {
	return Seal(&lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: EncodeReports(rs, status)}}, s)
}

// SealRelayed wraps another origin's envelope, with the hops that it took; the last one is the
// signer itself. Where all hops do not fit, those between the first and the last are merged into
// their successors, so that the time held stays whole.
func SealRelayed(inner []byte, hops []fault.Hop, s Signer) ([]byte, error) {
	env, err := parseEnvelope(inner)
	if err != nil {
		return nil, fmt.Errorf("seal relayed message: %w", err)
	}
	hops = append([]fault.Hop(nil), hops...)
	for {
		if len(hops) <= MaxHops {
			b, err := Seal(&lofamov1.Message{Body: &lofamov1.Message_Relayed{
				Relayed: &lofamov1.Relayed{Inner: env, Hops: EncodeHops(hops)},
			}}, s)
			if RefusalOf(err) != RefusedTooLong || len(hops) <= 2 {
				return b, err
			}
		}
		hops[2].Held += hops[1].Held
		hops = append(hops[:1], hops[2:]...)
	}
}

// SealDowncall wraps an envelope (an ack or a challenge) that a host half is to pass to node.
func SealDowncall(node fault.NodeID, inner []byte, s Signer) ([]byte, error) {
	env, err := parseEnvelope(inner)
	if err != nil {
		return nil, fmt.Errorf("seal downcall: %w", err)
	}
	return Seal(&lofamov1.Message{Body: &lofamov1.Message_Downcall{
		Downcall: &lofamov1.Downcall{Node: string(node), Inner: env},
	}}, s)
}

// Open verifies an envelope: its size, the signature, the fields of the message, and that the
// signer may say it: reports or an answer only their origin, Relayed only the host half that is the
// last hop, acks, Challenge and Downcall only a supervisor. Of a Relayed or Downcall only the
// wrapper is verified; see Unwrap and InnerOf. Every error is a *RefusedError.
func Open(b []byte, v Verifier) (Opened, error) {
	env, err := parseEnvelope(b)
	if err != nil {
		return Opened{}, err
	}
	o, err := openEnvelope(env, v)
	o.Raw = b
	return o, err
}

// Arrival is a verified message of a half as it reached a supervisor. Of a relayed one it is the inner
// message, its origin's name, and the hops, the last of which is the host half that relayed it.
type Arrival struct {
	Opened
	Path    fault.Path
	Hops    []fault.Hop
	Reports []fault.Report           // of a Reports message
	Status  *lofamov1.DeliveryStatus // that came with them; nil: none
}

// Delivery returns one of the reports together with how it came.
func (a *Arrival) Delivery(i int) fault.Delivery {
	return fault.Delivery{Report: a.Reports[i], Path: a.Path, Hops: a.Hops}
}

// Unwrap opens what reached a supervisor by path. A Relayed is peeled, its inner envelope verified as
// well, and the path is TORUS.
func Unwrap(b []byte, path fault.Path, v Verifier) (Arrival, error) {
	if !path.Valid() {
		return Arrival{}, fmt.Errorf("unwrap: path: given %s: want DIRECT, GOSSIP or TORUS", path)
	}
	o, err := Open(b, v)
	if err != nil {
		return Arrival{}, err
	}
	a := Arrival{Path: path}
	if rel := o.Msg.GetRelayed(); rel != nil {
		a.Path = fault.PathTorus
		if a.Hops, err = DecodeHops(rel.GetHops()); err != nil {
			return Arrival{}, err
		}
		if o, err = openEnvelope(rel.GetInner(), v); err != nil {
			return Arrival{}, err
		}
		switch o.Msg.GetBody().(type) {
		case *lofamov1.Message_Reports, *lofamov1.Message_Answer, *lofamov1.Message_BulkAnnounce:
		default:
			return Arrival{}, refuse(RefusedNested, "relayed.inner: given %T: want reports, an answer or a bulk announcement", o.Msg.GetBody())
		}
		o.Raw = b
	}
	a.Opened = o
	if reps := o.Msg.GetReports(); reps != nil {
		a.Status = reps.GetStatus()
		if a.Reports, err = DecodeReports(reps); err != nil {
			return Arrival{}, err
		}
	}
	return a, nil
}

// InnerOf returns the marshalled envelope within an opened Downcall, and whom it is for. The inner
// envelope is not verified: the node that it is for does that.
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

func parseEnvelope(b []byte) (*lofamov1.Envelope, error) {
	if len(b) > MaxDatagram {
		return nil, refuse(RefusedTooLong, "envelope: given %d bytes: want at most %d", len(b), MaxDatagram)
	}
	env := new(lofamov1.Envelope)
	if err := proto.Unmarshal(b, env); err != nil {
		return nil, refuse(RefusedMalformed, "envelope of %d bytes: %w", len(b), err)
	}
	if len(env.GetPayload()) == 0 || len(env.GetCertificate()) == 0 {
		return nil, refuse(RefusedMalformed, "envelope of %d bytes: payload or certificate missing", len(b))
	}
	return env, nil
}

// openEnvelope verifies before it parses: nothing unsigned reaches the message decoder.
func openEnvelope(env *lofamov1.Envelope, v Verifier) (Opened, error) {
	if n := len(env.GetSignature()); n != signatureSize {
		return Opened{}, refuse(RefusedSignature, "signature: given %d bytes: want %d", n, signatureSize)
	}
	role, name, err := v.VerifyName(env.GetCertificate(), env.GetPayload(), env.GetSignature())
	if err != nil {
		return Opened{}, refuse(RefusedSignature, "%w", err)
	}
	msg := new(lofamov1.Message)
	if err := proto.Unmarshal(env.GetPayload(), msg); err != nil {
		return Opened{}, refuse(RefusedMalformed, "message signed by %s %s: %w", role, name, err)
	}
	if err := checkMessage(msg); err != nil {
		return Opened{}, err
	}
	if err := checkSigner(msg, role, name); err != nil {
		return Opened{}, err
	}
	return Opened{Msg: msg, Role: role, Name: name}, nil
}

// checkSigner says whether the signer may say msg, which has passed checkMessage.
func checkSigner(msg *lofamov1.Message, role, name string) error {
	want := RoleNode
	var speaker fault.Origin
	switch b := msg.GetBody().(type) {
	case *lofamov1.Message_Reports:
		id := b.Reports.GetReports()[0].GetId() // the others are of the same origin
		speaker = fault.Origin{Node: fault.NodeID(id.GetNode()), Half: fault.Half(id.GetHalf())}
	case *lofamov1.Message_Answer:
		speaker = fault.Origin{Node: fault.NodeID(b.Answer.GetNode()), Half: fault.Half(b.Answer.GetHalf())}
	case *lofamov1.Message_Relayed:
		last := b.Relayed.GetHops()[len(b.Relayed.GetHops())-1]
		speaker = fault.Origin{Node: fault.NodeID(last.GetNode()), Half: fault.HalfHost}
	default:
		want = RoleSupervisor
	}
	if role != want {
		return refuse(RefusedRole, "%T: signed by %s %q: want a %s", msg.GetBody(), role, name, want)
	}
	if len(msg.GetAcks()) > 0 && role != RoleSupervisor {
		return refuse(RefusedRole, "acks: signed by %s %q: want a %s", role, name, RoleSupervisor)
	}
	if want == RoleNode && speaker.String() != name {
		return refuse(RefusedOrigin, "%T of %s: signed by %q: want the same", msg.GetBody(), speaker, name)
	}
	return nil
}
