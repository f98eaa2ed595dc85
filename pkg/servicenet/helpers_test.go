package servicenet

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// fakeSigner stands for internal/pki: a certificate "role|name|padding" and a signature that is a
// hash over both.
type fakeSigner struct{ cert []byte }

func newSigner(role, name string) fakeSigner { return newSignerSize(role, name, 300) }

func newSignerSize(role, name string, size int) fakeSigner {
	c := []byte(role + "|" + name + "|")
	return fakeSigner{append(c, bytes.Repeat([]byte{0xff}, max(0, size-len(c)))...)}
}

func (s fakeSigner) Cert() []byte { return s.cert }

func (s fakeSigner) Sign(payload []byte) []byte {
	h := sha256.Sum256(append(append([]byte(nil), s.cert...), payload...))
	return append(h[:], h[:]...)
}

var errBadMAC = errors.New("bad MAC")

type fakeVerifier struct{}

func (fakeVerifier) VerifyName(cert, payload, sig []byte) (role, name string, err error) {
	parts := strings.SplitN(string(cert), "|", 3)
	if len(parts) != 3 || !bytes.Equal(fakeSigner{cert}.Sign(payload), sig) {
		return "", "", errors.New("bad signature")
	}
	return parts[0], parts[1], nil
}

// origin reads "<node>/<half>".
func origin(name string) fault.Origin {
	node, half, _ := strings.Cut(name, "/")
	h, err := fault.ParseHalf(half)
	if err != nil {
		panic(err)
	}
	return fault.Origin{Node: fault.NodeID(node), Half: h}
}

// healthyDigest states every component of a node, and every descriptor of its six neighbours.
func healthyDigest(node fault.NodeID) fault.Report {
	r := fault.Report{
		ID:        fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: 1 << 20, Seq: 1 << 28},
		Digest:    true,
		Registers: fault.Registers{DNPWatchdog: 1, HostWatchdog: 1},
		Uptime:    100 * 24 * time.Hour,
	}
	for _, c := range fault.Components() {
		r.Observations = append(r.Observations, fault.Observation{
			Node: node, Component: c, State: fault.Normal, Kind: fault.KindSelf, Age: 48 * time.Hour})
	}
	for _, n := range []fault.NodeID{"n11-10-10", "n9-10-10", "n10-11-10", "n10-9-10", "n10-10-11", "n10-10-9"} {
		for _, c := range []fault.Component{fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
			fault.ComponentPeripheral1} {
			r.Observations = append(r.Observations, fault.Observation{
				Node: n, Component: c, State: fault.Normal, Kind: fault.KindDescriptor, Age: 48 * time.Hour})
		}
	}
	return r
}

// positions returns all positions in the order of their origins.
func (i *Inbox) positions() []InboxPosition {
	out := make([]InboxPosition, 0, len(i.origins))
	for _, p := range i.origins {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b InboxPosition) int {
		return cmp.Or(cmp.Compare(a.Origin.Node, b.Origin.Node), cmp.Compare(a.Origin.Half, b.Origin.Half))
	})
	return out
}

// encode marshals a packet whose parts need not fit together.
func (p *packet) encode() []byte { return p.appendProof(appendBytes(nil, fieldPayload, p.payload)) }

// is reports whether m is the message that was opened.
func (o *Opened) is(m *lofamov1.Message) bool {
	if m.GetReports() == nil {
		return proto.Equal(o.Msg, m)
	}
	want := EncodeReports(o.reports, o.Msg.GetReports().GetStatus())
	want.Host, want.Dnp = o.Msg.GetReports().GetHost(), o.Msg.GetReports().GetDnp()
	return proto.Equal(want, m.GetReports())
}

// parsed reads a report that the protobuf runtime has parsed.
func parsed(m *lofamov1.Report) (fault.Report, error) { return decodeReport(0, m, fault.ReportID{}) }
