package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The roles that may sign envelopes.
const (
	RoleNode       = "node"
	RoleSupervisor = "supervisor"
)

// Signer signs for one half or one supervisor.
type Signer interface {
	Cert() []byte               // DER of the certificate
	Sign(payload []byte) []byte // over the envelope prefix and the payload
}

// Verifier checks a certificate against the cluster's authority and a signature against the
// certificate, and returns who signed. A node's name is "<node>/<half>". It does not keep the slices.
type Verifier interface {
	VerifyName(cert, payload, sig []byte) (role, name string, err error)
}

// Opened is a verified message.
type Opened struct {
	Msg        *lofamov1.Message
	Role, Name string // of the signer
	Raw        []byte // the envelope as it came
}

// Seal signs a message and returns the marshalled envelope, at most MaxDatagram bytes.
func Seal(msg *lofamov1.Message, s Signer) ([]byte, error) { panic("skeleton") }

// SealReport seals a report.
func SealReport(r fault.Report, s Signer) ([]byte, error) { panic("skeleton") }

// SealRelayed wraps another origin's envelope, with the hops that it took; the last one is the
// signer itself.
func SealRelayed(inner []byte, hops []fault.Hop, s Signer) ([]byte, error) { panic("skeleton") }

// SealDowncall wraps an envelope (an ack or a challenge) that a host half is to pass to node.
func SealDowncall(node fault.NodeID, inner []byte, s Signer) ([]byte, error) { panic("skeleton") }

// Open verifies an envelope: bounds, signature, and that the signer's role and name may say it. Of
// a Relayed or Downcall only the wrapper is verified.
func Open(b []byte, v Verifier) (Opened, error) { panic("skeleton") }

// Unwrap opens what reached a supervisor by path. For a report the delivery is whole; a Relayed is
// peeled: the message is the inner one, the delivery has its hops and the path is TORUS. For any
// other message the delivery has only path and hops.
func Unwrap(b []byte, path fault.Path, v Verifier) (fault.Delivery, *lofamov1.Message, error) {
	panic("skeleton")
}

// InnerOf returns the marshalled envelope within an opened Downcall, and whom it is for.
func InnerOf(o Opened) (node fault.NodeID, inner []byte, err error) { panic("skeleton") }
