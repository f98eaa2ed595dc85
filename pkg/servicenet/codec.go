package servicenet

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// NewAcks answers reports, in as many acks as their origins and epochs take.
func NewAcks(status lofamov1.Ack_Status, ids ...fault.ReportID) []*lofamov1.Ack {
	var out []*lofamov1.Ack
	var last fault.ReportID
	for _, id := range ids {
		n := len(out)
		if n == 0 || last.Origin != id.Origin || last.Epoch != id.Epoch || len(out[n-1].GetSeqs()) == MaxAckSeqs {
			one := new(struct { // one allocation for all
				ack  lofamov1.Ack
				list [1]*lofamov1.Ack
				seqs [2]uint64
			})
			a := &one.ack
			a.Status, a.Node, a.Half, a.Epoch = status, string(id.Origin.Node), lofamov1.Half(id.Origin.Half), uint64(id.Epoch)
			a.Seqs = one.seqs[:0]
			if n == 0 {
				out = one.list[:0]
			}
			out = append(out, a)
			n++
		}
		out[n-1].Seqs = append(out[n-1].Seqs, uint64(id.Seq))
		last = id
	}
	return out
}

// AckedIDs returns the ids that an ack, which has passed Open, answers.
func AckedIDs(a *lofamov1.Ack) []fault.ReportID {
	origin := OriginOf(a)
	out := make([]fault.ReportID, 0, len(a.GetSeqs()))
	for _, s := range a.GetSeqs() {
		out = append(out, fault.ReportID{Origin: origin, Epoch: fault.Epoch(a.GetEpoch()), Seq: fault.Seq(s)})
	}
	return out
}

// encodeHops puts hops into their wire messages.
func encodeHops(hops []fault.Hop) []*lofamov1.Hop {
	out := make([]*lofamov1.Hop, 0, len(hops))
	for _, h := range hops {
		out = append(out, &lofamov1.Hop{Node: string(h.Node), Half: lofamov1.Half(h.Half), HeldNs: encodeDuration(h.Held)})
	}
	return out
}

// decodeHops is the strict inverse of encodeHops. The names of the first and of the last hop may be left out.
func decodeHops(ms []*lofamov1.Hop) ([]fault.Hop, error) {
	if n := len(ms); n > MaxHops {
		return nil, refuse(RefusedField, "relayed.hops: given %d: want at most %d", n, MaxHops)
	}
	out := make([]fault.Hop, 0, len(ms))
	for i, m := range ms {
		check := checkID
		if i == 0 || i == len(ms)-1 {
			check = checkOptionalID
		}
		if err := check("hop.node", m.GetNode()); err != nil {
			return nil, err
		}
		half, err := decodeHalf("hop.half", m.GetHalf())
		if err != nil {
			return nil, err
		}
		held, err := decodeDuration("hop.held_ns", m.GetHeldNs())
		if err != nil {
			return nil, err
		}
		out = append(out, fault.Hop{Node: fault.NodeID(m.GetNode()), Half: half, Held: held})
	}
	return out, nil
}

func decodeHalf(field string, h lofamov1.Half) (fault.Half, error) {
	if h < lofamov1.Half_HALF_HOST || h > lofamov1.Half_HALF_DNP {
		return 0, refuse(RefusedField, "%s: given %d: want 1 (host) or 2 (dnp)", field, h)
	}
	return fault.Half(h), nil
}

func encodeDuration(d time.Duration) uint64 {
	return uint64(min(max(d, 0), MaxAge))
}

func decodeDuration(field string, ns uint64) (time.Duration, error) {
	if ns > uint64(MaxAge) {
		return 0, refuse(RefusedField, "%s: given %d: want at most %d", field, ns, int64(MaxAge))
	}
	return time.Duration(ns), nil
}
