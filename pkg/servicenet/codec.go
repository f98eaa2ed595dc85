package servicenet

import (
	"math"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// EncodeReport puts a report into its wire message. Details are cut to fault.MaxDetail and their control characters
// blanked; ages are clamped to 0..MaxAge. The message omits the origin's own node in its observations, and the age in
// a digest's NORMAL observations: a digest says that a state still holds, and a report of its own announced the
// change, with its age.
func EncodeReport(r fault.Report) *lofamov1.Report {
	m := &lofamov1.Report{
		Id:                    encodeReportID(r.ID),
		Digest:                r.Digest,
		Partial:               r.Partial,
		DnpWatchdog:           r.Registers.DNPWatchdog,
		HostWatchdog:          r.Registers.HostWatchdog,
		RemoteFaultDescriptor: r.Registers.RemoteFaultDescriptor,
		UptimeNs:              encodeDuration(r.Uptime),
		Observations:          make([]*lofamov1.Observation, len(r.Observations)),
		Platform:              lofamov1.Platform(r.Platform),
	}
	if r.Restart.Half != 0 {
		m.Restart = &lofamov1.RestartNotice{Half: lofamov1.Half(r.Restart.Half), WithinMs: encodeWithin(r.Restart.Within)}
	}
	all := make([]lofamov1.Observation, len(r.Observations)) // one allocation for all
	for i, o := range r.Observations {
		m.Observations[i] = &all[i]
		encodeObservation(m.Observations[i], o, r.ID.Origin.Node, r.Digest)
	}
	for _, v := range r.Readings {
		m.Readings = append(m.Readings, &lofamov1.Reading{
			Component: uint32(v.Component), Quantity: uint32(v.Quantity), Value: v.Value, Threshold: v.Threshold, AgeNs: encodeDuration(v.Age),
		})
	}
	return m
}

func encodeObservation(m *lofamov1.Observation, o fault.Observation, own fault.NodeID, digest bool) {
	m.Component = uint32(o.Component)
	m.State = lofamov1.State(o.State)
	m.Kind = uint32(o.Kind)
	m.AgeNs = encodeDuration(o.Age)
	m.Detail = cutDetail(o.Detail, fault.MaxDetail)
	if o.Node != own {
		m.Node = string(o.Node)
	}
	if digest && o.State == fault.Normal {
		m.AgeNs = 0
	}
}

// DecodeReport is the strict inverse of EncodeReport: everything outside its range is refused.
func DecodeReport(m *lofamov1.Report) (fault.Report, error) {
	id, err := decodeReportID(m.GetId())
	if err != nil {
		return fault.Report{}, err
	}
	return decodeReport(m, id)
}

func decodeReport(m *lofamov1.Report, id fault.ReportID) (fault.Report, error) {
	if n := len(m.GetObservations()); n > MaxObservations {
		return fault.Report{}, refuse(RefusedField, "report.observations: given %d: want at most %d", n, MaxObservations)
	}
	uptime, err := decodeDuration("report.uptime_ns", m.GetUptimeNs())
	if err != nil {
		return fault.Report{}, err
	}
	r := fault.Report{
		ID:     id,
		Digest: m.GetDigest(), Partial: m.GetPartial(),
		Registers: fault.Registers{
			DNPWatchdog:           m.GetDnpWatchdog(),
			HostWatchdog:          m.GetHostWatchdog(),
			RemoteFaultDescriptor: m.GetRemoteFaultDescriptor(),
		},
		Uptime:   uptime,
		Platform: platformOf(m.GetPlatform()),
		Restart:  restartOf(uint64(max(0, m.GetRestart().GetHalf())), uint64(m.GetRestart().GetWithinMs())),
	}
	if n := len(m.GetObservations()); n > 0 {
		r.Observations = make([]fault.Observation, 0, n)
	}
	for _, om := range m.GetObservations() {
		o, err := decodeObservation(om, id.Origin.Node)
		if err != nil {
			return fault.Report{}, err
		}
		r.Observations = append(r.Observations, o)
	}
	if r.Readings, err = decodeReadings(m.GetReadings()); err != nil {
		return fault.Report{}, err
	}
	return r, nil
}

// encodeWithin returns the milliseconds of a notice, at least 1 for any time above 0: 0 ends a restart.
func encodeWithin(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(max(1, min(d, fault.MaxRestart).Milliseconds()))
}

// restartOf converts a notice. It returns none for a half that only a later version knows, and cuts the time to
// fault.MaxRestart.
func restartOf(half, ms uint64) fault.RestartNotice {
	if half > math.MaxUint8 || !fault.Half(half).Valid() {
		return fault.RestartNotice{}
	}
	return fault.RestartNotice{Half: fault.Half(half), Within: min(time.Duration(min(ms, math.MaxUint32))*time.Millisecond, fault.MaxRestart)}
}

// platformOf converts a platform; it returns 0 for one that only a later version knows.
func platformOf(p lofamov1.Platform) fault.Platform {
	if f := fault.Platform(p); p >= 0 && p <= math.MaxUint8 && f.Valid() {
		return f
	}
	return 0
}

func decodeReadings(list []*lofamov1.Reading) ([]fault.Reading, error) {
	if n := len(list); n > fault.MaxReadings {
		return nil, refuse(RefusedField, "report.readings: given %d: want at most %d", n, fault.MaxReadings)
	}
	var out []fault.Reading
	for _, m := range list {
		age, err := decodeDuration("reading.age_ns", m.GetAgeNs())
		if err != nil {
			return nil, err
		}
		r := fault.Reading{
			Component: fault.Component(min(m.GetComponent(), math.MaxUint8)), Quantity: fault.Quantity(min(m.GetQuantity(), math.MaxUint8)),
			Value: m.GetValue(), Threshold: m.GetThreshold(), Age: age,
		}
		if err := r.Check(); err != nil {
			return nil, refuse(RefusedField, "%s", err)
		}
		out = append(out, r)
	}
	return out, nil
}

func decodeObservation(m *lofamov1.Observation, own fault.NodeID) (fault.Observation, error) {
	node := own
	if m.GetNode() != "" {
		if err := checkID("observation.node", m.GetNode()); err != nil {
			return fault.Observation{}, err
		}
		node = fault.NodeID(m.GetNode())
	}
	if c := m.GetComponent(); c > math.MaxUint8 || !fault.Component(c).Valid() {
		return fault.Observation{}, refuse(RefusedField, "observation.component: given %d: want 1 to %d", c, fault.NumComponents-1)
	}
	if s := m.GetState(); s < 0 || s > math.MaxUint8 || !fault.State(s).Valid() {
		return fault.Observation{}, refuse(RefusedField, "observation.state: given %d: want %d to %d", s, fault.Unknown, fault.Failed)
	}
	if k := m.GetKind(); k > math.MaxUint8 || !fault.Kind(k).Valid() {
		return fault.Observation{}, refuse(RefusedField, "observation.kind: given %d: want %d to %d", k, fault.KindSelf, fault.KindDigest)
	}
	age, err := decodeDuration("observation.age_ns", m.GetAgeNs())
	if err != nil {
		return fault.Observation{}, err
	}
	if err := checkText("observation.detail", m.GetDetail()); err != nil {
		return fault.Observation{}, err
	}
	return fault.Observation{
		Node:      node,
		Component: fault.Component(m.GetComponent()),
		State:     fault.State(m.GetState()),
		Kind:      fault.Kind(m.GetKind()),
		Age:       age,
		Detail:    m.GetDetail(),
	}, nil
}

// EncodeReports puts reports of one origin into one wire message. The ids after the first omit fields that equal
// those of the previous id.
func EncodeReports(rs []fault.Report, status *lofamov1.DeliveryStatus) *lofamov1.Reports {
	m := &lofamov1.Reports{Reports: make([]*lofamov1.Report, 0, len(rs)), Status: status}
	for i, r := range rs {
		e := EncodeReport(r)
		if i > 0 && rs[i-1].ID.Origin == r.ID.Origin {
			e.Id.Node, e.Id.Half = "", 0
			if rs[i-1].ID.Epoch == r.ID.Epoch {
				e.Id.Epoch = 0
			}
		}
		m.Reports = append(m.Reports, e)
	}
	return m
}

// decodeReports is the strict inverse of EncodeReports.
func decodeReports(m *lofamov1.Reports) ([]fault.Report, error) {
	if n := len(m.GetReports()); n < 1 || n > MaxReports {
		return nil, refuse(RefusedField, "reports.reports: given %d: want 1 to %d", n, MaxReports)
	}
	out := make([]fault.Report, 0, len(m.GetReports()))
	for i, e := range m.GetReports() {
		var before fault.ReportID
		if i > 0 {
			before = out[i-1].ID
		}
		id, err := decodeNextID(i, e.GetId(), before)
		if err != nil {
			return nil, err
		}
		r, err := decodeReport(e, id)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// decodeNextID reads the id of the i-th report of a message: the whole id in the first, and in the others the fields
// that differ from the previous one.
func decodeNextID(i int, m *lofamov1.ReportID, before fault.ReportID) (fault.ReportID, error) {
	if i == 0 {
		return decodeReportID(m)
	}
	if m.GetNode() != "" || m.GetHalf() != 0 {
		return fault.ReportID{}, refuse(RefusedField, "reports[%d].id: given %q %s: want those of the first report left out", i,
			m.GetNode(), m.GetHalf())
	}
	id := before
	if e := m.GetEpoch(); e != 0 {
		id.Epoch = fault.Epoch(e)
	}
	if id.Seq = fault.Seq(m.GetSeq()); id.Seq == 0 {
		return fault.ReportID{}, refuse(RefusedField, "reports[%d].id.seq: given 0: want at least 1", i)
	}
	return id, nil
}

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

// encodeReportID puts a report's id into its wire message.
func encodeReportID(id fault.ReportID) *lofamov1.ReportID {
	return &lofamov1.ReportID{
		Node:  string(id.Origin.Node),
		Half:  lofamov1.Half(id.Origin.Half),
		Epoch: uint64(id.Epoch),
		Seq:   uint64(id.Seq),
	}
}

// decodeReportID is the strict inverse of encodeReportID.
func decodeReportID(m *lofamov1.ReportID) (fault.ReportID, error) {
	if err := checkID("id.node", m.GetNode()); err != nil {
		return fault.ReportID{}, err
	}
	half, err := decodeHalf("id.half", m.GetHalf())
	if err != nil {
		return fault.ReportID{}, err
	}
	if m.GetEpoch() == 0 {
		return fault.ReportID{}, refuse(RefusedField, "id.epoch: given 0: want at least 1")
	}
	if m.GetSeq() == 0 {
		return fault.ReportID{}, refuse(RefusedField, "id.seq: given 0: want at least 1")
	}
	return fault.ReportID{
		Origin: fault.Origin{Node: fault.NodeID(m.GetNode()), Half: half},
		Epoch:  fault.Epoch(m.GetEpoch()),
		Seq:    fault.Seq(m.GetSeq()),
	}, nil
}

// encodeHops puts hops into their wire messages.
func encodeHops(hops []fault.Hop) []*lofamov1.Hop {
	out := make([]*lofamov1.Hop, 0, len(hops))
	for _, h := range hops {
		out = append(out, &lofamov1.Hop{Node: string(h.Node), Half: lofamov1.Half(h.Half), HeldNs: encodeDuration(h.Held)})
	}
	return out
}

// decodeHops is the strict inverse of encodeHops.
func decodeHops(ms []*lofamov1.Hop) ([]fault.Hop, error) {
	if n := len(ms); n > MaxHops {
		return nil, refuse(RefusedField, "relayed.hops: given %d: want at most %d", n, MaxHops)
	}
	out := make([]fault.Hop, 0, len(ms))
	for _, m := range ms {
		if err := checkID("hop.node", m.GetNode()); err != nil {
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

// cutDetail makes s valid UTF-8 without control characters of at most limit bytes.
func cutDetail(s string, limit int) string {
	if len(s) <= limit && isPlain(s) {
		return s
	}
	if len(s) > 4*limit {
		s = s[:4*limit]
	}
	return fault.Cut(strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")), limit)
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
