package dnpcore

import (
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
)

// Barriers (seed 003 §4.2, §4.4.3; express.Barriers) in a DNP half. What the jobs of this node wait for comes from the host half,
// which says it again and again for as long as somebody does. So this half may begin anew at any time, and when the host half is
// gone nobody waits.

// askedFor is for how long the host half need not ask again; it does so five times a second.
const askedFor = 5 * time.Second

// ArriveAt is what the host half says of a barrier of jobs, by mailbox. Output.Barriers has the answer.
type ArriveAt struct{ express.Arrive }

// LeaveBarrier says that nobody of this node waits any more.
type LeaveBarrier struct{ express.Barrier }

func (ArriveAt) dnpEvent()     {}
func (LeaveBarrier) dnpEvent() {}

// BarrierStatus is what is known of a barrier, for the host half.
type BarrierStatus struct {
	express.Barrier
	Members  int
	Arrived  []int // ranks, ascending
	Gone     []int // it has failed: these will not arrive
	Complete bool
	Err      error // it is not taken
}

// barriers is what the machine keeps of them.
type barriers struct {
	machine *express.Barriers // nil: of an earlier version
	rx      express.Received  // handed over by pointer, never kept
	asked   map[express.Barrier]asked
}

type asked struct {
	members int
	at      time.Time
}

func newBarriers(cfg Config) barriers {
	if cfg.NoExpress {
		return barriers{}
	}
	b := express.NewBarriers(express.MaskOf(cfg.Topo.Links...), cfg.Periods.LinkPeriod)
	b.Place(cfg.Topo.Dims, cfg.Topo.Coord)
	return barriers{machine: b, asked: make(map[express.Barrier]asked)}
}

// onArriveAt takes an arrival, or a question, and always answers.
func (m *Machine) onArriveAt(now time.Time, ev ArriveAt) {
	b := &m.barriers
	if b.machine == nil {
		m.out.Barriers = append(m.out.Barriers, BarrierStatus{Barrier: ev.Barrier, Members: ev.Members, Err: express.ErrBarrier})
		return
	}
	b.asked[ev.Barrier] = asked{ev.Members, now}
	said := len(m.out.Barriers)
	if err := m.stepBarriers(now, ev.Arrive); err != nil {
		delete(b.asked, ev.Barrier)
		m.out.Barriers = append(m.out.Barriers, BarrierStatus{Barrier: ev.Barrier, Members: ev.Members, Err: err})
		return
	}
	if len(m.out.Barriers) == said { // it is not over
		ranks, _ := b.machine.Arrived(ev.Barrier)
		m.out.Barriers = append(m.out.Barriers, BarrierStatus{Barrier: ev.Barrier, Members: ev.Members, Arrived: ranks})
	}
}

func (m *Machine) onLeaveBarrier(now time.Time, ev LeaveBarrier) {
	if m.barriers.machine != nil {
		delete(m.barriers.asked, ev.Barrier)
		_ = m.stepBarriers(now, express.Leave{Barrier: ev.Barrier})
	}
}

// onBarrierFrame takes the payload of a frame of TypeBarrier.
func (m *Machine) onBarrierFrame(now time.Time, l *link, payload []byte) {
	if m.barriers.machine == nil {
		return
	}
	m.barriers.rx = express.Received{Dir: l.dir, Payload: payload}
	_ = m.stepBarriers(now, &m.barriers.rx)
	m.barriers.rx.Payload = nil
}

// tickBarriers does what is due; while there are no barriers that is nothing.
func (m *Machine) tickBarriers(now time.Time) {
	b := &m.barriers
	if b.machine == nil || !b.machine.Busy() {
		return
	}
	if len(b.asked) > 0 {
		for _, of := range slices.SortedFunc(maps.Keys(b.asked), compareBarriers) {
			if now.Sub(b.asked[of].at) >= askedFor {
				m.onLeaveBarrier(now, LeaveBarrier{of})
			}
		}
	}
	_ = m.stepBarriers(now, express.Tick{})
}

// stepBarriers steps the machine and does what it says.
func (m *Machine) stepBarriers(now time.Time, ev express.Event) error {
	out := m.barriers.machine.Step(now, ev)
	if out.Bad {
		m.breaks(now, m.links[m.barriers.rx.Dir.Index()], RuleExpress, 1)
	}
	for _, s := range out.Send {
		m.sendExpress(m.links[s.Dir.Index()], torus.TypeBarrier, s.Payload)
	}
	for _, r := range out.Results {
		m.onBarrierResult(now, r)
	}
	return out.Err
}

// onBarrierResult passes on that a barrier at which somebody waits is over.
func (m *Machine) onBarrierResult(now time.Time, r express.BarrierResult) {
	switch r.Topic {
	case express.TopicJob:
	case express.TopicManage:
		m.onManageBarrier(now, r.Barrier)
		return
	default:
		return // of a later version
	}
	a := m.barriers.asked[r.Barrier]
	delete(m.barriers.asked, r.Barrier)
	s := BarrierStatus{Barrier: r.Barrier, Members: a.members, Gone: r.Gone, Complete: len(r.Gone) == 0}
	if s.Complete {
		for rank := range s.Members {
			s.Arrived = append(s.Arrived, rank)
		}
	} else {
		s.Arrived, _ = m.barriers.machine.Arrived(r.Barrier)
	}
	m.out.Barriers = append(m.out.Barriers, s)
}

func compareBarriers(a, b express.Barrier) int {
	switch {
	case a.Name < b.Name:
		return -1
	case a.Name > b.Name:
		return 1
	case a.Generation < b.Generation:
		return -1
	case a.Generation > b.Generation:
		return 1
	}
	return int(a.Topic) - int(b.Topic)
}

// ExpressLinks returns how many links carry broadcasts, and are not broken.
func (m *Machine) ExpressLinks() int { return bits.OnesCount8(uint8(m.express.ways.Good)) }

// BarrierStats returns the counters of the barriers.
func (m *Machine) BarrierStats() express.BarrierStats {
	if m.barriers.machine == nil {
		return express.BarrierStats{}
	}
	return m.barriers.machine.Stats()
}
