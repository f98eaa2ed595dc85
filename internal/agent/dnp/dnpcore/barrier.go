package dnpcore

import (
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
)

// Barriers (seed 003 §4.2, §4.4.3; express.Barriers) in a DNP half. The host half sends the barriers that this node's
// jobs wait at, and repeats them while a job waits. So this half may restart at any time, and no job waits once the
// host half is gone.

// askedFor is how long a request of the host half stays valid; it repeats the request five times a second.
const askedFor = 5 * time.Second

// ArriveAt is a mailbox message of the host half about a barrier of jobs. Output.Barriers holds the answer.
type ArriveAt struct{ express.Arrive }

// LeaveBarrier says that no job of this node waits at the barrier any more.
type LeaveBarrier struct{ express.Barrier }

func (ArriveAt) dnpEvent()     {}
func (LeaveBarrier) dnpEvent() {}

// BarrierStatus is the state of a barrier, for the host half.
type BarrierStatus struct {
	express.Barrier
	Members  int
	Arrived  []int // ranks, ascending
	Gone     []int // set if the barrier has failed: these ranks will not arrive
	Complete bool
	Err      error // why the barrier was refused
}

// barriers holds the machine's barrier state.
type barriers struct {
	machine *express.Barriers // nil: this half is of an earlier version
	rx      express.Received  // passed by pointer, never kept
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

// onArriveAt handles an arrival or a question, and always answers.
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
	if len(m.out.Barriers) == said { // it is not complete
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

// tickBarriers does the due work of the barriers; without barriers it does nothing.
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

// stepBarriers steps the machine and carries out its output.
func (m *Machine) stepBarriers(now time.Time, ev express.Event) error {
	out := m.barriers.machine.Step(now, ev)
	if out.Bad {
		m.breaks(now, m.links[m.barriers.rx.Dir.Index()], halfcore.RuleExpress, 1)
	}
	for _, s := range out.Send {
		m.sendExpress(m.links[s.Dir.Index()], torus.TypeBarrier, s.Payload)
	}
	for _, r := range out.Results {
		m.onBarrierResult(now, r)
	}
	return out.Err
}

// onBarrierResult passes on the completion of a barrier at which a job or procedure waits.
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
