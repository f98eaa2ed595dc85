package servicenet

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxReportSize is the size in bytes of an encoded report that always fits MaxDatagram, even when
// another node has wrapped it with certificate and signature of its own and three hops. It follows
// from MaxDatagram - 2×(MaxCertificate + signature, checksum and framing) - hops; TestReportFitsRelayed
// measures it.
const MaxReportSize = 259

// Bytes around the parts of an envelope that are always there.
const (
	checksumSize = 2 + 9                                      // algorithm and sum
	signedSize   = 3 + MaxCertificate + 2 + signatureSize + 3 // certificate, signature, payload's own tag
	messageSize  = 3                                          // tag and length of Message.reports
)

// batchLimit returns how many bytes of an encoded Reports message, the sum of reportSize and statusSize, are sure to
// fit a datagram by path. The datagram is signed with a certificate of at most MaxCertificate bytes (a first attempt
// under a MAC has more room, but its repetition is signed), and through the torus it is wrapped by a relay.
func batchLimit(path fault.Path) int {
	if path == fault.PathTorus {
		return 1 + protowire.SizeBytes(MaxReportSize)
	}
	return MaxDatagram - signedSize - checksumSize - messageSize
}

// reportSize returns how many bytes a report adds to an encoded Reports message, at most: with ages
// that grow in the log, and an id that is written out.
func reportSize(r fault.Report) int {
	s := newSizer()
	n := s.header(&r) + len(r.Readings)*readingSize
	for i := range r.Observations {
		n += s.observation(&r.Observations[i], &r)
	}
	return 1 + protowire.SizeBytes(n)
}

// statusSize returns how many bytes a status adds to an encoded Reports message; nil adds none.
func statusSize(s *lofamov1.DeliveryStatus) int {
	if s == nil {
		return 0
	}
	var room [512]byte // enough for most
	return 1 + protowire.SizeBytes(len(appendStatus(room[:0], s)))
}

// splitReport divides a report so that each part is at most MaxReportSize bytes: 17 observations
// of a healthy node fit into one part. Every part repeats ID, Digest, Registers and Uptime. Outbox.Add
// calls it, and numbers the parts; a report that has no origin yet comes back whole. A report
// without observations is one part. The parts of a digest are marked Partial.
//
// A digest omits the NORMAL descriptors of neighbours: with them the digest of a healthy node would need three
// datagrams. So a descriptor missing from a digest has no meaning; one that becomes normal is announced by a report
// of its own. When a digest does not fit into one part it loses its details as well, which the reports of the changes
// carried.
//
// Readings go only with a digest of one part, as many as there is room for.
//
// The parts are appended to out. They are cut from r's observations, which are not to be used otherwise.
func splitReport(out []fault.Report, r fault.Report) []fault.Report {
	if r.ID.Origin.Node == "" {
		return append(out, r)
	}
	header := r
	header.Observations, header.Readings = nil, nil
	header.Partial = r.Digest // room for the mark
	// The numbers are not known yet: 5 bytes each.
	header.ID.Epoch, header.ID.Seq = 1<<34, 1<<34
	s := newSizer()
	base := s.header(&header)
	if r.Digest {
		r.Observations = digestObservations(&r, base, s)
	}

	part := header
	part.ID, part.Partial = r.ID, false
	size, before, from := base, len(out), 0
	for i := range r.Observations {
		o := &r.Observations[i]
		n := s.observation(o, &r)
		if over := base + n - MaxReportSize; over > 0 {
			o.Detail = fault.Clean(o.Detail, max(0, fault.MaxDetail-over))
			n = s.observation(o, &r)
		}
		if i > from && (size+n > MaxReportSize || i-from == MaxObservations) {
			part.Observations = r.Observations[from:i:i]
			out = append(out, part)
			size, from = base, i
		}
		size += n
	}
	part.Observations = r.Observations[from:len(r.Observations):len(r.Observations)]
	out = append(out, part)
	for i := range out[before:] {
		out[before+i].Partial = r.Digest && len(out) > before+1
	}
	if room := (MaxReportSize - size) / readingSize; r.Digest && len(out) == before+1 {
		out[before].Readings = r.Readings[:min(len(r.Readings), max(0, room))]
	}
	return out
}

// readingSize is the size that a reading adds to its report, at most: with an age of up to 36 minutes.
const readingSize = 2 + 2 + 2 + 5 + 5 + 7

// digestObservations returns the part of a digest's observations that is sent. base is the size without any.
func digestObservations(r *fault.Report, base int, s sizer) []fault.Observation {
	out := r.Observations[:0]
	size := base
	for i := range r.Observations {
		o := &r.Observations[i]
		if o.Kind == fault.KindDescriptor && o.State == fault.Normal && o.Node != r.ID.Origin.Node {
			continue
		}
		size += s.observation(o, r)
		out = append(out, *o)
	}
	if size > MaxReportSize {
		for i := range out {
			out[i].Detail = ""
		}
	}
	return out
}

// sizer measures parts of reports: it writes them to memory that it keeps.
type sizer struct{ room []byte }

func newSizer() sizer { return sizer{make([]byte, 0, 256)} } // enough for the longest

// observation returns the size that o adds to its report, with room for an age that grows in the log.
func (s sizer) observation(o *fault.Observation, r *fault.Report) int {
	older := *o
	older.Age = max(o.Age, waitingAge)
	w := wire{writes: true, out: s.room}
	w.observation(&older, r, r.ID.Origin.Node)
	return 1 + protowire.SizeBytes(len(w.out))
}

// waitingAge takes as many bytes as any age up to 73 minutes.
const waitingAge = time.Duration(1 << 41)

// header returns the size of a report without its observations and readings.
func (s sizer) header(r *fault.Report) int {
	header := *r
	header.Observations, header.Readings = nil, nil
	return len(AppendReport(s.room, &header))
}

// varintSize and stringSize are the sizes of fields with numbers up to 15, which are left out when empty.
func varintSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func stringSize(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}
