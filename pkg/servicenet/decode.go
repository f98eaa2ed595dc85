package servicenet

import (
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// canonical reads a message that is written as encode.go writes it: known fields in the order of their numbers, each
// once unless it is repeated. It leaves everything else that protobuf allows, and every refusal, to the protobuf
// runtime and the checks of check.go, which find the right words. FuzzCanonical compares the two.
type canonical struct {
	b    []byte // not read yet
	text string // the original b, where strings share its memory; empty: each has its own
	bad  bool   // not canonical
}

func (c *canonical) fail() { c.b, c.bad = nil, true }

// done reports whether everything was read.
func (c *canonical) done() bool { return len(c.b) == 0 && !c.bad }

// at consumes the tag of a field if that comes next.
func (c *canonical) at(field protowire.Number, kind protowire.Type) bool {
	if len(c.b) == 0 || c.b[0] != byte(field)<<3|byte(kind) {
		return false
	}
	c.b = c.b[1:]
	return true
}

// uint reads a number that may be missing.
func (c *canonical) uint(field protowire.Number, most uint64) uint64 {
	if !c.at(field, protowire.VarintType) {
		return 0
	}
	v, n := protowire.ConsumeVarint(c.b)
	if n < 0 || v > most {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// age reads a duration.
func (c *canonical) age(field protowire.Number) time.Duration {
	return time.Duration(c.uint(field, uint64(MaxAge)))
}

func (c *canonical) flag(field protowire.Number) bool { return c.uint(field, 1) == 1 }

func (c *canonical) word(field protowire.Number) uint32 {
	if !c.at(field, protowire.Fixed32Type) {
		return 0
	}
	v, n := protowire.ConsumeFixed32(c.b)
	if n < 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// bytes reads a field with a length, which stays the message's memory.
func (c *canonical) bytes(field protowire.Number) []byte {
	if !c.at(field, protowire.BytesType) {
		return nil
	}
	v, n := protowire.ConsumeBytes(c.b)
	if n < 0 {
		c.fail()
		return nil
	}
	c.b = c.b[n:]
	return v
}

// string reads a text; whether it is one (UTF-8) is for the caller to check.
func (c *canonical) string(field protowire.Number) string {
	v := c.bytes(field)
	if c.text == "" || len(v) == 0 {
		return string(v)
	}
	end := len(c.text) - len(c.b)
	return c.text[end-len(v) : end]
}

// message reads an embedded message.
func (c *canonical) message(field protowire.Number) canonical {
	v := c.bytes(field)
	in := canonical{b: v, bad: c.bad}
	if c.text != "" && len(v) > 0 {
		end := len(c.text) - len(c.b)
		in.text = c.text[end-len(v) : end]
	}
	return in
}

// next reports whether a field with a length comes next.
func (c *canonical) next(field protowire.Number) bool {
	return len(c.b) > 0 && c.b[0] == byte(field)<<3|byte(protowire.BytesType)
}

// count says how many of a repeated message come next.
func (c canonical) count(field protowire.Number) int {
	n := 0
	for c.next(field) {
		c.bytes(field)
		n++
	}
	return n
}

// readReports takes o's reports from a canonical payload that o's signer is allowed to send; false: use the general
// decoder.
func (o *Opened) readReports(payload []byte) bool {
	m := canonical{b: payload}
	body := m.message(1)
	if o.Role != RoleNode || !m.done() || !body.next(1) {
		return false
	}
	n := body.count(1)
	if n > MaxReports {
		return false
	}
	rs := make([]fault.Report, n)
	var before fault.ReportID
	for i := range rs {
		r := &rs[i]
		w := wire{in: body.message(1)}
		if w.read(i, r, before, o.Name); !w.ok() || o.Session != 0 && !r.Digest {
			return false
		}
		before = r.ID
	}
	var status *lofamov1.DeliveryStatus
	if body.next(2) {
		if status = body.readStatus(); status == nil {
			return false
		}
	}
	var health Health
	if !body.readHealth(&health) || !body.done() || !isName(o.Name, rs[0].ID.Origin) {
		return false
	}
	o.reports, o.Msg = rs, reportsStandIn(status, health)
	return true
}

// reportsStandIn is the message that stands for reports that were read.
func reportsStandIn(status *lofamov1.DeliveryStatus, health Health) *lofamov1.Message {
	m := new(struct {
		message lofamov1.Message
		body    lofamov1.Message_Reports
		reports lofamov1.Reports
	})
	m.message.Body, m.body.Reports, m.reports.Status = &m.body, &m.reports, status
	m.reports.Host, m.reports.Dnp = health.Host, health.DNP
	return &m.message
}

// isName reports whether name is the name in the certificate of a half.
func isName(name string, o fault.Origin) bool {
	rest, ok := strings.CutPrefix(name, string(o.Node))
	return ok && rest != "" && rest[0] == '/' && rest[1:] == o.Half.String()
}

// readStatus returns nil for a status that is not canonical.
func (c *canonical) readStatus() *lofamov1.DeliveryStatus {
	m := c.message(2)
	m.text = string(m.b)
	s := &lofamov1.DeliveryStatus{
		State:   lofamov1.PathState(m.uint(1, uint64(lofamov1.PathState_REESTABLISHING))),
		Primary: m.string(2), Alternate: m.string(3),
		Logged: uint32(m.uint(4, math.MaxUint32)), Unanswered: uint32(m.uint(5, math.MaxUint32)),
		OldestNs: uint64(m.age(6)), Migrations: m.uint(7, math.MaxUint64),
		Retries: m.uint(8, math.MaxUint64), Shortened: m.uint(9, math.MaxUint64),
	}
	if m.next(10) {
		n := m.count(10)
		if n > MaxRails {
			return nil
		}
		all := make([]lofamov1.RailStatus, n)
		s.Rails = make([]*lofamov1.RailStatus, n)
		for i := range all {
			r, rail := &all[i], m.message(10)
			r.Name, r.Down, r.InFlight = rail.string(1), rail.flag(2), uint32(rail.uint(3, math.MaxUint32))
			r.Sent, r.Answered, r.RttNs = rail.uint(4, math.MaxUint64), rail.uint(5, math.MaxUint64), uint64(rail.age(6))
			if s.Rails[i] = r; !rail.done() {
				return nil
			}
		}
	}
	s.IsolatedNs, s.Spool = uint64(m.age(11)), m.string(12)
	s.ViewRevision, s.Interest = m.uint(13, math.MaxUint64), uint32(m.uint(14, math.MaxUint32))
	if !m.done() || checkStatus(s) != nil {
		return nil
	}
	return s
}

// readAcks reads o's message from a payload that is canonical acks, and nothing else, of a supervisor.
func (o *Opened) readAcks(payload []byte) bool {
	m := canonical{b: payload}
	if o.Role != RoleSupervisor || !m.next(15) {
		return false
	}
	n := m.count(15)
	if n > MaxAcks {
		return false
	}
	mem := new(struct {
		message lofamov1.Message
		acks    [2]lofamov1.Ack // RECEIVED and COMMITTED
		list    [2]*lofamov1.Ack
	})
	acks, list := mem.acks[:], mem.list[:]
	if n > len(acks) {
		acks, list = make([]lofamov1.Ack, n), make([]*lofamov1.Ack, n)
	}
	m.text = string(payload)
	for i := range n {
		list[i] = &acks[i]
		if a := m.message(15); !a.readAck(list[i]) {
			return false
		}
	}
	mem.message.Acks = list[:n]
	o.Msg = &mem.message
	return m.done()
}

func (c *canonical) readAck(a *lofamov1.Ack) bool {
	a.Status = lofamov1.Ack_Status(c.uint(1, uint64(lofamov1.Ack_STALE_EPOCH)))
	a.Node = c.string(2)
	a.Half = lofamov1.Half(c.uint(3, uint64(fault.HalfDNP)))
	a.Epoch = c.uint(4, math.MaxUint64)
	seqs := c.bytes(5)
	n := 0
	for _, b := range seqs {
		if b < 0x80 {
			n++
		}
	}
	if n < 1 || n > MaxAckSeqs {
		return false
	}
	a.Seqs = make([]uint64, 0, n)
	for len(seqs) > 0 {
		v, n := protowire.ConsumeVarint(seqs)
		if n < 0 {
			return false
		}
		a.Seqs, seqs = append(a.Seqs, v), seqs[n:]
	}
	a.Leader = c.string(6)
	a.HighestEpoch = c.uint(7, math.MaxUint64)
	return c.done() && checkAck(a) == nil
}
