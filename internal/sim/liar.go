package sim

import (
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

const (
	// maxReplays bounds the messages of others that a liar keeps to send again.
	maxReplays = 32
	// replayEvery is how often it does.
	replayEvery = 20 * time.Millisecond
	// maxHolding is the longest time for which a liar delays a message that it relays, while it claims no delay.
	maxHolding = 4 * time.Second
)

// lie falsifies a liar's own reports: it accuses all its neighbours. It can sign only for itself (faults.md row 17).
func (n *node) lie(rs []fault.Report) []fault.Report {
	if !n.liar {
		return rs
	}
	rs = slices.Clone(rs)
	for i := range rs {
		r := &rs[i]
		r.Observations = slices.Clone(r.Observations)
		for j := range r.Observations {
			o := &r.Observations[j]
			_, link := o.Component.LinkDirection()
			switch {
			case link && o.Node == n.id():
				o.State, o.Kind, o.Age, o.Detail = fault.Failed, fault.KindSilence, time.Minute, ""
			case o.Kind == fault.KindDescriptor:
				o.State, o.Age = fault.Failed, time.Minute
			}
		}
	}
	return rs
}

// keepReplay has a liar store the messages that it relays.
func (n *node) keepReplay(m halfcore.Relay) {
	if !n.liar || m.Kind != halfcore.RelayUp {
		return
	}
	if len(n.replays) == maxReplays {
		n.replays = n.replays[1:]
	}
	n.replays = append(n.replays, slices.Clone(m.Envelope))
}

// replay has a liar resend others' old messages as if they were fresh.
func (n *node) replay() {
	if !n.liar {
		return
	}
	n.w.after(replayEvery, n.replay)
	if len(n.replays) == 0 || !n.host.up() {
		return
	}
	inner := n.replays[n.w.rnd.IntN(len(n.replays))]
	n.sendHost(hostcore.Send{
		Path: fault.PathDirect, Target: n.w.replicas[n.w.rnd.IntN(len(n.w.replicas))].id,
		Relayed: &hostcore.Relayed{Inner: inner, Hops: []fault.Hop{{Node: n.id(), Half: fault.HalfHost}}},
	})
}

// Numbers that no message, component or kind of evidence has yet.
const (
	unknownField     protowire.Number = 1500
	unknownComponent uint32           = 200
	unknownKind      uint32           = 77
)

// addUnknown adds content to a message that only a later version knows (faults.md row 19).
func addUnknown(m *lofamov1.Message) {
	m.ProtoReflect().SetUnknown(unknownBytes())
	body := m.ProtoReflect().WhichOneof(m.ProtoReflect().Descriptor().Oneofs().ByName("body"))
	if body == nil {
		return
	}
	in := m.ProtoReflect().Mutable(body).Message()
	in.SetUnknown(unknownBytes())
	reports := m.GetReports()
	for _, r := range reports.GetReports() {
		r.ProtoReflect().SetUnknown(unknownBytes())
		for _, o := range r.GetObservations() {
			o.ProtoReflect().SetUnknown(unknownBytes())
		}
		r.Observations = append(r.Observations,
			&lofamov1.Observation{Component: unknownComponent, State: lofamov1.State_FAILED, Kind: uint32(fault.KindSelf)},
			&lofamov1.Observation{Component: uint32(fault.ComponentMemory), State: lofamov1.State_FAILED, Kind: unknownKind})
	}
}

func unknownBytes() protoreflect.RawFields {
	return protowire.AppendBytes(protowire.AppendTag(nil, unknownField, protowire.BytesType), []byte("later"))
}

// sealReports seals as the node's version does.
func (n *node) sealReports(rs []fault.Report, status *lofamov1.DeliveryStatus, h servicenet.Health, key sealer) ([]byte, error) {
	rs = n.lie(rs)
	if !n.future {
		return servicenet.SealReports(rs, status, key, servicenet.SealOptions{Health: h})
	}
	return n.sealMessage(&lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: servicenet.EncodeReports(rs, status)}}, key)
}

func (n *node) sealMessage(m *lofamov1.Message, key sealer) ([]byte, error) {
	if !n.future {
		return servicenet.Seal(m, key)
	}
	return sealLater(m, key)
}

// sealLater seals a message of a later version, because this version's sealing rejects unknown fields.
func sealLater(m *lofamov1.Message, key sealer) ([]byte, error) {
	addUnknown(m)
	payload, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	env := &lofamov1.Envelope{
		Payload: payload, Certificate: key.Cert(), Signature: key.Sign(payload), ChecksumAlgorithm: lofamov1.Checksum_CHECKSUM_CRC32C,
	}
	summed, err := proto.MarshalOptions{Deterministic: true}.Marshal(env)
	if err != nil {
		return nil, err
	}
	env.Checksum = servicenet.ChecksumOf(env.GetChecksumAlgorithm(), summed)
	return proto.MarshalOptions{Deterministic: true}.Marshal(env)
}
