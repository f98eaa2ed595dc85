package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
)

// One-to-all data messages (seed 003 §4.3.5; express.Data) in a DNP half. They travel in frames of TypeEureka, on ticks
// that occur anyway. They are absent from the copy: a restarted half asks its neighbours.

// unknownData is how long a half keeps data of a topic unknown to this version, for neighbours that join later and may
// know it.
const unknownData = 10 * time.Minute

// JudgeData asks the shell to verify the envelopes of a datum. DataOpened is the answer.
type JudgeData struct {
	ID        express.DataID
	Envelopes [][]byte
}

// dataHalf holds the machine's state for one-to-all data.
type dataHalf struct {
	machine *express.Data    // nil: this half is of an earlier version
	rx      express.Received // passed by pointer, never kept
}

func newData(cfg Config) dataHalf {
	if cfg.NoExpress {
		return dataHalf{}
	}
	return dataHalf{machine: express.NewData(express.MaskOf(cfg.Topo.Links...), cfg.Periods.LinkPeriod, torus.MaxPayload(cfg.MaxFrame))}
}

// onData takes the payload of a frame of TypeEureka for which express.IsData holds.
func (m *Machine) onData(now time.Time, l *link, payload []byte) {
	m.data.rx = express.Received{Dir: l.dir, Payload: payload}
	_ = m.stepData(now, &m.data.rx)
	m.data.rx.Payload = nil
}

// tickData does the due work; it does nothing while all neighbours have the same data.
func (m *Machine) tickData(now time.Time) {
	if m.data.machine != nil && m.data.machine.Due(now) {
		_ = m.stepData(now, express.Tick{})
	}
}

// stepData steps the machine and carries out its output.
func (m *Machine) stepData(now time.Time, ev express.Event) error {
	if m.data.machine == nil {
		return express.ErrInvalid
	}
	out := m.data.machine.Step(now, ev)
	if out.Bad {
		m.breaks(now, m.links[m.data.rx.Dir.Index()], halfcore.RuleExpress, 1)
	}
	for _, s := range out.Send {
		m.sendExpress(m.links[s.Dir.Index()], torus.TypeEureka, s.Payload)
	}
	for _, d := range out.Deliver {
		m.onDatum(now, d)
	}
	return out.Err
}

// onDatum handles a complete datum.
func (m *Machine) onDatum(now time.Time, d express.Datum) {
	if d.Topic != configurationTopic { // of a later version, or made up: pass it on
		_ = m.stepData(now, express.Judged{ID: d.DataID, Good: true, For: unknownData})
		return
	}
	envelopes, err := splitEnvelopes(d.Body)
	if err != nil {
		m.refuseData(now, d.DataID, err)
		return
	}
	m.out.Judge = append(m.out.Judge, JudgeData{d.DataID, envelopes})
}

func (m *Machine) refuseData(now time.Time, id express.DataID, why error) {
	m.note(NoteRefused, "data %s: %v", id, why)
	_ = m.stepData(now, express.Judged{ID: id})
}

// DataStats returns the counters of one-to-all data.
func (m *Machine) DataStats() express.DataStats {
	if m.data.machine == nil {
		return express.DataStats{}
	}
	return m.data.machine.Stats()
}
