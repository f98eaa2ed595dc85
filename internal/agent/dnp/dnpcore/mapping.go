package dnpcore

import (
	"bytes"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/mapping"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A supervisor orders this half to map a region about which the supervisor has no evidence (seed 003 §5.2.3.2, Figure
// 18). Probes travel as test frames along routes found a moment before, and the findings go up in the same way as an
// answer. Every half forwards and answers probes without keeping state for them. No other work waits for a mapping.
//
//	none ──order──► waiting ──mapEvery since the last──► running ──done──► said
//	                   ▲                                   │                │
//	                   └────────────── newer order ────────┴────────────────┘
//
// Repeating an order makes the half repeat its findings. It refuses an older order, as for a diagnosis (see
// order.Runs).

// mapEvery is the least time between the beginnings of two runs.
const mapEvery = 2 * time.Second

// mapHostRate is the maximum number of probes per second from each link to this node's host half. mapHostBurst is the maximum number at
// once. A mapper asks a host half a few times in a run. The mailbox carries far fewer test messages than a link, also those of the
// self-test.
const (
	mapHostRate  = 10
	mapHostBurst = 20
)

// mapPart is the number of nodes per message: with the signature, that fits a relayed message.
const mapPart = servicenet.MaxMapNodes

// mapMark is the prefix of a probe in the host half's mailbox.
var mapMark = [...]byte{'L', 'F', 'M', 'H'}

// mappingState holds the state of the latest mapping order.
type mappingState struct {
	order   *lofamov1.MapOrder // nil: none yet
	runs    order.Runs
	machine *mapping.Machine // nil: not running
	run     uint64
	beginAt time.Time // while waiting; zero: not waiting
	began   time.Time // the last run
	wake    time.Time // while waiting or running; zero: neither

	found   []mapping.Found // the findings of the order, once done
	refused string          // why it mapped nothing; empty: it did map
	part    int             // the next part to send
	sayAt   time.Time       // when to send it; zero: all parts are sent
	attempt int             // the attempt number of these messages

	budget [grid.NumDirections]bucket // for probes that arrive by each link
	hosts  [grid.NumDirections]bucket // for probes from each link to this node's host half
}

func newMapping(now time.Time) (s mappingState) {
	for _, d := range grid.Directions() {
		s.budget[d.Index()] = newBucket(mapping.Rate, mapping.Burst, now)
		s.hosts[d.Index()] = newBucket(mapHostRate, mapHostBurst, now)
	}
	return s
}

// onMapOrder takes a verified order of a supervisor.
func (m *Machine) onMapOrder(now time.Time, o *lofamov1.MapOrder, by string) {
	s := &m.mapping
	switch verdict := s.runs.Judge(now, o.GetNumber()); verdict {
	case order.Known:
		if s.sayAt.IsZero() && s.beginAt.IsZero() && s.machine == nil {
			s.part, s.sayAt, s.attempt = 0, now, 2
			m.sayMapped(now)
		}
	case order.New:
		s.runs.Take(now, o.GetNumber())
		s.order, s.machine, s.found, s.refused, s.sayAt = o, nil, nil, "", time.Time{}
		s.beginAt = now
		if next := s.began.Add(mapEvery); !s.began.IsZero() && next.After(now) {
			s.beginAt = next
		}
		s.wake = s.beginAt
		m.note(NoteDiagnosis, "mapping %d of term %d of %d nodes, ordered by %s", o.GetNumber().GetCount(), o.GetNumber().GetTerm(),
			len(o.GetRegion()), by)
		m.tickMapping(now)
	default:
		m.refuseRun("mapping", o.GetNumber(), by, verdict)
	}
}

// tickMapping does the due work of a mapping.
func (m *Machine) tickMapping(now time.Time) {
	s := &m.mapping
	m.sayMapped(now)
	if !s.beginAt.IsZero() && !now.Before(s.beginAt) {
		m.beginMapping(now)
	}
	m.stepMapping(now, mapping.Tick{})
}

// beginMapping begins the run of the latest order.
func (m *Machine) beginMapping(now time.Time) {
	s := &m.mapping
	s.beginAt, s.began = time.Time{}, now
	s.run++
	n := s.order.GetNumber()
	cfg := mapping.Config{
		Dims: m.cfg.Topo.Dims, At: m.cfg.Topo.Coord, Own: m.mapWord(), Hops: int(m.cfg.MaxHops),
		Run: max(1, n.GetTerm()<<20^n.GetCount()<<8^s.run^uint64(m.Epoch())<<40),
	}
	for _, rank := range s.order.GetRegion() {
		if at := cfg.Dims.At(int(rank)); int64(rank) < int64(cfg.Dims.Places()) && at != cfg.At {
			cfg.Region = append(cfg.Region, at)
		}
	}
	if err := cfg.Validate(); err != nil { // the order may be of another topology
		s.refused, s.wake = err.Error(), time.Time{}
		s.part, s.sayAt, s.attempt = 0, now, 1
		m.sayMapped(now)
		return
	}
	s.machine = mapping.New(cfg, now)
}

// mapWord returns this half's description of itself.
func (m *Machine) mapWord() mapping.Word {
	var w mapping.Word
	for i, l := range m.links {
		switch {
		case l == nil:
		case l.usable():
			w.Good |= 1 << i
		case l.detail.State() == torus.LinkBroken:
			w.Bad |= 1 << i
		}
	}
	switch {
	case m.verdict == watchdog.Alive:
		w.Host = mapping.HostAlive
	case m.hostStatus().HostDead:
		w.Host = mapping.HostDead
	}
	return w
}

// stepMapping steps the run.
func (m *Machine) stepMapping(now time.Time, ev mapping.Event) {
	s := &m.mapping
	if s.machine == nil {
		return
	}
	out := s.machine.Step(now, ev)
	s.wake = out.Wake
	for _, p := range out.Send {
		m.sendMap(p.Dir, p.Data)
	}
	if out.Done {
		s.found, s.machine = s.machine.Findings(), nil
		s.part, s.sayAt, s.attempt = 0, now, 1
		m.sayMapped(now)
	}
}

// sayMapped sends the next part of the findings when due: one after the other, as for a diagnosis.
func (m *Machine) sayMapped(now time.Time) {
	s := &m.mapping
	if s.sayAt.IsZero() || now.Before(s.sayAt) {
		return
	}
	f := &lofamov1.MapFindings{
		Number: s.order.GetNumber(), Node: string(m.self), Epoch: uint64(m.Epoch()), Part: uint32(s.part),
		Parts: uint32(max(1, (len(s.found)+mapPart-1)/mapPart)), Error: s.refused,
	}
	for _, n := range s.found[min(len(s.found), s.part*mapPart):min(len(s.found), (s.part+1)*mapPart)] {
		f.Nodes = append(f.Nodes, &lofamov1.MappedNode{
			Rank: uint32(m.cfg.Topo.Dims.Rank(n.At)), Dnp: knowledge(n.DNP), Host: knowledge(n.Host), LinksGood: uint32(n.Good),
			LinksBad:    uint32(n.Bad),
			RoundTripUs: uint32(n.RoundTrip.Microseconds()),
		})
	}
	m.answerOrder(s.attempt, &lofamov1.Message{Body: &lofamov1.Message_MapFindings{MapFindings: f}})
	s.part++
	s.sayAt = now.Add(mapping.Pace)
	if s.part >= int(f.GetParts()) {
		s.sayAt = time.Time{}
	}
}

func knowledge(k mapping.Knowledge) lofamov1.MapKnowledge {
	switch k {
	case mapping.Good:
		return lofamov1.MapKnowledge_MAP_GOOD
	case mapping.Bad:
		return lofamov1.MapKnowledge_MAP_BAD
	default:
		return lofamov1.MapKnowledge_MAP_UNKNOWN
	}
}

// sendMap sends a probe if the link is usable. A half of an earlier version ignores it.
func (m *Machine) sendMap(d grid.Direction, data []byte) {
	if l := m.links[d.Index()]; l != nil && l.usable() {
		m.sendTest(l, testMap, data)
	}
}

// onMapFrame forwards a probe, answers it, or takes an answer. It trusts a probe only for the next direction: by links
// of this node, for mapping.MaxPath steps, and within the budget of the link by which it arrived.
func (m *Machine) onMapFrame(now time.Time, l *link, data []byte) {
	if !m.mapping.budget[l.dir.Index()].take(now) {
		return
	}
	switch what, to, out := mapping.Hop(data, l.dir); what {
	case mapping.Pass:
		m.sendMap(to, out)
	case mapping.Asked:
		to, out, host := mapping.Reply(data, m.mapWord())
		m.sendMap(to, out)
		if host && m.verdict != watchdog.Stale && m.mapping.hosts[l.dir.Index()].take(now) {
			m.out.TestMail = append(m.out.TestMail, TestMail{Data: append(mapMark[:len(mapMark):len(mapMark)], data...)})
		}
	case mapping.Answer:
		m.stepMapping(now, mapping.Back{Data: data})
	case mapping.Drop:
	}
}

// onMapMail takes a probe that this node's host half sent back, and reports whether the data is one.
func (m *Machine) onMapMail(data []byte) bool {
	probe, ok := bytes.CutPrefix(data, mapMark[:])
	if !ok {
		return false
	}
	if to, out := mapping.ReplyHost(probe, m.mapWord()); out != nil {
		m.sendMap(to, out)
	}
	return true
}
