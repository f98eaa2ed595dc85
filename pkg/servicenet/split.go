package servicenet

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxReportSize is the size in bytes of an encoded report that always fits MaxDatagram, even when
// another node has wrapped it with certificate and signature of its own and three hops, if both certificates have
// usual names. It follows from MaxDatagram - 2×(usualCertificate + signature, checksum and framing) - hops;
// TestReportFitsRelayed measures it. The reports of a half with longer names are shorter: see roomFor.
const MaxReportSize = 259

// usualCertificate is the size in bytes of a certificate for which MaxReportSize is made. Only names that have together
// more than some 60 bytes need longer ones.
const usualCertificate = 450

// Bytes around the parts of an envelope that are always there.
const (
	checksumSize = 2 + 9                       // algorithm and sum
	messageSize  = 3                           // tag and length of Message.reports
	reportFrame  = 1 + 2                       // tag and length of Reports.reports
	hopSize      = 2 + 2 + 10                  // a hop whose name is left out
	relayedSize  = messageSize + 3 + 2*hopSize // Message.relayed, Relayed.inner and two hops
	renewedSize  = 8                           // growth of a certificate by its renewal
	shortHold    = 4                           // bytes that a hop saves that holds a message for less than 30 s
	olderSize    = 16                          // growth of the ages in a report that waits for days
)

// signedSize returns the bytes of a certificate, a signature and the payload's own tag.
func signedSize(certificate int) int { return 3 + certificate + 2 + signatureSize + 3 }

// room is how many bytes of an encoded Reports message, the sum of reportSize and statusSize, are sure to fit a
// datagram. The datagram is signed (a first attempt under a MAC has more room, but its repetition is signed).
type room struct {
	direct int
	torus  int // a relay wraps the datagram
	// limit is the room by the torus beside certificates of the present size, for reports that wait for an hour at most. A half that has
	// only the torus leaves longer reports out.
	limit int
}

// usualRoom is the room beside usual certificates.
var usualRoom = room{
	direct: MaxDatagram - checksumSize - messageSize - signedSize(usualCertificate),
	torus:  reportFrame + MaxReportSize,
	limit:  relayedRoom(usualCertificate, usualCertificate) + 2*shortHold,
}

// relayedRoom returns the room between two certificates of these sizes.
func relayedRoom(own, relay int) int {
	return MaxDatagram - checksumSize - messageSize - signedSize(own) - relayedSize - checksumSize - signedSize(relay)
}

// roomFor returns the room of a half whose certificate has the given size. A relay's certificate is of the same
// authority, and larger only by a longer name of its node. Beside the largest certificates, one observation about a neighbour may already
// exceed the room: splitReport then makes a part that is too long, and only limit tells whether it can be sent.
func roomFor(node fault.NodeID, certificate int) room {
	own := certificate + renewedSize
	relay := min(own+MaxNodeID-len(node), max(own, MaxCertificate))
	direct := MaxDatagram - checksumSize - messageSize - signedSize(own)
	return room{
		direct: min(usualRoom.direct, direct),
		torus:  min(usualRoom.torus, relayedRoom(own, relay)-olderSize),
		limit:  relayedRoom(certificate, certificate) + 2*shortHold,
	}
}

// by returns the room by a path. A gossip broadcast costs every member, so its room is as small as that of the torus.
func (r room) by(path fault.Path) int {
	if path == fault.PathDirect {
		return r.direct
	}
	return r.torus
}

// report returns the size of the largest report that fits by each path.
func (r room) report() int { return r.torus - reportFrame }

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

// splitReport divides a report so that each part is at most most bytes, or has one observation without details. 17
// observations of a healthy node fit into a part of MaxReportSize bytes. Every part repeats ID, Digest, Registers and Uptime. Outbox.Add
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
func splitReport(out []fault.Report, r fault.Report, most int) []fault.Report {
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
		r.Observations = digestObservations(&r, base, most, s)
	}

	part := header
	part.ID, part.Partial = r.ID, false
	size, before, from := base, len(out), 0
	for i := range r.Observations {
		o := &r.Observations[i]
		n := s.observation(o, &r)
		if over := base + n - most; over > 0 {
			o.Detail = fault.Clean(o.Detail, max(0, len(o.Detail)-over))
			n = s.observation(o, &r)
		}
		if i > from && (size+n > most || i-from == MaxObservations) {
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
	if room := (most - size) / readingSize; r.Digest && len(out) == before+1 {
		out[before].Readings = r.Readings[:min(len(r.Readings), max(0, room))]
	}
	return out
}

// readingSize is the size that a reading adds to its report, at most: with an age of up to 36 minutes.
const readingSize = 2 + 2 + 2 + 5 + 5 + 7

// digestObservations returns the part of a digest's observations that is sent. base is the size without any, most that of a part. If they
// have no room with all details, the NORMAL ones lose theirs, and then all.
func digestObservations(r *fault.Report, base, most int, s sizer) []fault.Observation {
	out := r.Observations[:0]
	for i := range r.Observations {
		o := &r.Observations[i]
		if o.Kind == fault.KindDescriptor && o.State == fault.Normal && o.Node != r.ID.Origin.Node {
			continue
		}
		out = append(out, *o)
	}
	for _, least := range [...]fault.State{fault.Normal, fault.Failed} {
		size := base
		for i := range out {
			size += s.observation(&out[i], r)
		}
		if size <= most {
			break
		}
		for i := range out {
			if out[i].State <= least {
				out[i].Detail = ""
			}
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
