package servicenet

import (
	"google.golang.org/protobuf/encoding/protowire"
	"math"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Reports and acks, the two messages of every exchange, are written by hand into the datagram that carries them,
// exactly as a deterministic protobuf encoder writes EncodeReports. A half sends these a few times in a second, and
// by then neither the tables of the protobuf runtime nor fresh memory is in the caches. The runtime encodes all other
// messages.

// beginField starts a field with a length, for which it leaves one byte; endField ends it.
func beginField(b []byte, field protowire.Number) (out []byte, at int) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

// endField fills in the length, and makes room where one byte is not enough.
func endField(b []byte, at int) []byte {
	n := len(b) - at
	if more := protowire.SizeVarint(uint64(n)) - 1; more > 0 {
		for range more {
			b = append(b, 0)
		}
		copy(b[at+more:], b[at:at+n])
	}
	protowire.AppendVarint(b[:at-1], uint64(n))
	return b
}

func appendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendFlag(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendUint(b, field, 1)
}

func appendWord(b []byte, field protowire.Number, v uint32) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), v)
}

func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// appendReports writes a Message of reports of one origin, or refuses one that no receiver would accept. The status
// may be nil, the health empty.
func appendReports(b []byte, rs []fault.Report, status *lofamov1.DeliveryStatus, health Health) ([]byte, error) {
	if n := len(rs); n < 1 || n > MaxReports {
		return nil, refuse(RefusedField, "reports.reports: given %d: want 1 to %d", n, MaxReports)
	}
	if err := firstError(checkStatus(status), checkHealth(health)); err != nil {
		return nil, err
	}
	b, body := beginField(b, 1)
	var before fault.ReportID
	for i := range rs {
		r := &rs[i]
		if err := checkOwn(i, r, before); err != nil {
			return nil, err
		}
		b = appendReport(b, r, before)
		before = r.ID
	}
	if status != nil {
		var at int
		b, at = beginField(b, 2)
		b = endField(appendStatus(b, status), at)
	}
	return endField(appendHealth(b, health), body), nil
}

// checkOwn checks the i-th report before it is written; fields that are too long are cut instead.
func checkOwn(i int, r *fault.Report, before fault.ReportID) error {
	switch id := r.ID; {
	case i > 0 && id.Origin != before.Origin:
		return refuse(RefusedField, "reports[%d].id: given one of %s: want that of the first report, %s", i, id.Origin, before.Origin)
	case !ValidID(string(id.Origin.Node)):
		return checkID("id.node", string(id.Origin.Node))
	case !id.Origin.Half.Valid():
		return refuse(RefusedField, "id.half: given %d: want 1 (host) or 2 (dnp)", id.Origin.Half)
	case id.Epoch == 0:
		return refuse(RefusedField, "reports[%d].id.epoch: given 0: want at least 1", i)
	case id.Seq == 0:
		return refuse(RefusedField, "reports[%d].id.seq: given 0: want at least 1", i)
	}
	if n := len(r.Observations); n > MaxObservations {
		return refuse(RefusedField, "report.observations: given %d: want at most %d", n, MaxObservations)
	}
	if n := len(r.Readings); n > fault.MaxReadings {
		return refuse(RefusedField, "report.readings: given %d: want at most %d", n, fault.MaxReadings)
	}
	for _, v := range r.Readings {
		if err := v.Check(); err != nil {
			return refuse(RefusedField, "%s", err)
		}
	}
	for j := range r.Observations {
		switch o := &r.Observations[j]; {
		case o.Node != r.ID.Origin.Node && o.Node != "" && !ValidID(string(o.Node)):
			return checkID("observation.node", string(o.Node))
		case !o.Component.Valid():
			return refuse(RefusedField, "observation.component: given %d: want 1 to %d", o.Component, fault.NumComponents-1)
		case !o.State.Valid():
			return refuse(RefusedField, "observation.state: given %d: want %d to %d", o.State, fault.Unknown, fault.Failed)
		case !o.Kind.Valid():
			return refuse(RefusedField, "observation.kind: given %d: want %d to %d", o.Kind, fault.KindSelf, fault.KindDigest)
		}
	}
	return nil
}

// AppendReport appends the bytes of EncodeReport to b, without the message. The stored copy of every sent report has
// this form.
func AppendReport(b []byte, r *fault.Report) []byte { return appendFields(b, r, fault.ReportID{}) }

// appendReport appends a report of a list; before is the id of the report before it, if any.
func appendReport(b []byte, r *fault.Report, before fault.ReportID) []byte {
	b, report := beginField(b, 1)
	return endField(appendFields(b, r, before), report)
}

func appendFields(b []byte, r *fault.Report, before fault.ReportID) []byte {
	b, id := beginField(b, 1)
	if before.Seq == 0 { // the first
		b = appendText(b, 1, string(r.ID.Origin.Node))
		b = appendUint(b, 2, uint64(r.ID.Origin.Half))
	}
	if before.Epoch != r.ID.Epoch {
		b = appendUint(b, 3, uint64(r.ID.Epoch))
	}
	b = appendUint(b, 4, uint64(r.ID.Seq))
	b = endField(b, id)
	b = appendFlag(b, 2, r.Digest)
	for i := range r.Observations {
		b = appendObservation(b, &r.Observations[i], r)
	}
	b = appendWord(b, 4, r.Registers.DNPWatchdog)
	b = appendWord(b, 5, r.Registers.HostWatchdog)
	b = appendWord(b, 6, r.Registers.RemoteFaultDescriptor)
	b = appendUint(b, 7, encodeDuration(r.Uptime))
	b = appendFlag(b, 8, r.Partial)
	for i := range r.Readings {
		b = appendReading(b, &r.Readings[i])
	}
	b = appendUint(b, 10, uint64(r.Platform))
	if r.Restart.Half == 0 {
		return b
	}
	b, at := beginField(b, 11)
	b = appendUint(b, 1, uint64(r.Restart.Half))
	return endField(appendUint(b, 2, uint64(encodeWithin(r.Restart.Within))), at)
}

func appendReading(b []byte, r *fault.Reading) []byte {
	b, at := beginField(b, 9)
	b = appendUint(b, 1, uint64(r.Component))
	b = appendUint(b, 2, uint64(r.Quantity))
	b = appendWord(b, 3, math.Float32bits(r.Value))
	b = appendWord(b, 4, math.Float32bits(r.Threshold))
	b = appendUint(b, 5, encodeDuration(r.Age))
	return endField(b, at)
}

func appendObservation(b []byte, o *fault.Observation, r *fault.Report) []byte {
	b, at := beginField(b, 3)
	if o.Node != r.ID.Origin.Node {
		b = appendText(b, 1, string(o.Node))
	}
	b = appendUint(b, 2, uint64(o.Component))
	b = appendUint(b, 3, uint64(o.State))
	b = appendUint(b, 4, uint64(o.Kind))
	if !r.Digest || o.State != fault.Normal {
		b = appendUint(b, 5, encodeDuration(o.Age))
	}
	b = appendText(b, 6, cutDetail(o.Detail, fault.MaxDetail))
	return endField(b, at)
}

func appendStatus(b []byte, s *lofamov1.DeliveryStatus) []byte {
	b = appendUint(b, 1, uint64(s.GetState()))
	b = appendText(b, 2, s.GetPrimary())
	b = appendText(b, 3, s.GetAlternate())
	b = appendUint(b, 4, uint64(s.GetLogged()))
	b = appendUint(b, 5, uint64(s.GetUnanswered()))
	b = appendUint(b, 6, s.GetOldestNs())
	b = appendUint(b, 7, s.GetMigrations())
	b = appendUint(b, 8, s.GetRetries())
	b = appendUint(b, 9, s.GetShortened())
	for _, r := range s.GetRails() {
		var at int
		b, at = beginField(b, 10)
		b = appendText(b, 1, r.GetName())
		b = appendFlag(b, 2, r.GetDown())
		b = appendUint(b, 3, uint64(r.GetInFlight()))
		b = appendUint(b, 4, r.GetSent())
		b = appendUint(b, 5, r.GetAnswered())
		b = appendUint(b, 6, r.GetRttNs())
		b = endField(b, at)
	}
	b = appendUint(b, 11, s.GetIsolatedNs())
	b = appendText(b, 12, s.GetSpool())
	b = appendUint(b, 13, s.GetTold())
	b = appendUint(b, 14, uint64(s.GetInterest()))
	return appendUint(b, 18, s.GetDenied())
}

// appendAcks writes a Message of acks, which have passed checkAck, and nothing else. The acks may come from a leader
// of a later version: its additional fields are kept.
func appendAcks(b []byte, acks []*lofamov1.Ack) []byte {
	for _, a := range acks {
		var at, seqs int
		b, at = beginField(b, 15)
		b = appendUint(b, 1, uint64(a.GetStatus()))
		b = appendText(b, 2, a.GetNode())
		b = appendUint(b, 3, uint64(a.GetHalf()))
		b = appendUint(b, 4, a.GetEpoch())
		b, seqs = beginField(b, 5)
		for _, s := range a.GetSeqs() {
			b = protowire.AppendVarint(b, s)
		}
		b = endField(b, seqs)
		b = appendText(b, 6, a.GetLeader())
		b = appendUint(b, 7, a.GetHighestEpoch())
		b = append(b, a.ProtoReflect().GetUnknown()...)
		b = endField(b, at)
	}
	return b
}
