package replica

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
)

// encodeRestated encodes unchanged digests for the leader.
func encodeRestated(list []engine.Restated, now time.Time) *lofamov1.ForwardRequest {
	all := make([]lofamov1.RestatedDigest, len(list))
	out := &lofamov1.ForwardRequest{Restated: make([]*lofamov1.RestatedDigest, len(list))}
	for i := range list {
		r, d := &list[i], &all[i]
		d.Node, d.Half, d.Epoch, d.Seq = string(r.ID.Origin.Node), lofamov1.Half(r.ID.Origin.Half), uint64(r.ID.Epoch), uint64(r.ID.Seq)
		d.Words, d.Path, d.HeldNs = r.Words, uint32(r.Path), uint64(max(0, r.Held)+max(0, now.Sub(r.Arrived)))
		out.Restated[i] = d
	}
	return out
}

// decodeRestated decodes them. It omits nodes that are unknown to this replica: the topology may have changed. It
// fails if the other replica violates the protocol.
func decodeRestated(list []*lofamov1.RestatedDigest, now time.Time, known func(fault.NodeID) bool) ([]engine.Restated, error) {
	if n := len(list); n > engine.MaxRestated {
		return nil, fmt.Errorf("restated: given %d: want at most %d", n, engine.MaxRestated)
	}
	out := make([]engine.Restated, 0, len(list))
	for i, d := range list {
		r := engine.Restated{
			ID: fault.ReportID{
				Origin: fault.Origin{Node: fault.NodeID(d.GetNode()), Half: fault.Half(d.GetHalf())},
				Epoch:  fault.Epoch(d.GetEpoch()), Seq: fault.Seq(d.GetSeq()),
			},
			Words: d.GetWords(), Path: fault.Path(d.GetPath()), Held: time.Duration(min(d.GetHeldNs(), uint64(maxHeld))), Arrived: now,
		}
		switch {
		case d.GetHalf() < lofamov1.Half_HALF_HOST || d.GetHalf() > lofamov1.Half_HALF_DNP:
			return nil, fmt.Errorf("restated[%d].half: given %d: want HALF_HOST or HALF_DNP", i, d.GetHalf())
		case r.ID.Epoch == 0 || r.ID.Seq == 0 || r.Words == 0:
			return nil, fmt.Errorf("restated[%d]: given epoch %d, seq %d, words %d: want none to be 0", i, r.ID.Epoch, r.ID.Seq, r.Words)
		case d.GetPath() > uint32(fault.PathTorus) || !r.Path.Valid():
			return nil, fmt.Errorf("restated[%d].path: given %d: want DIRECT, GOSSIP or TORUS", i, d.GetPath())
		case known(r.ID.Origin.Node):
			out = append(out, r)
		}
	}
	return out, nil
}
