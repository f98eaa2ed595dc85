package agent

import (
	"encoding/binary"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/procedure"

	"github.com/lofamo/lofamo/internal/agent/backup"
	"github.com/lofamo/lofamo/internal/agent/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/status"
)

// The copy has a place for each broadcast that the machine holds. Before each stands there the time when it was stored,
// CLOCK_MONOTONIC in ns, 8 bytes big endian, as with held messages.
var (
	_ [backup.NumExpress]struct{}                               = [express.MaxHeld]struct{}{}
	_ [backup.MaxExpress - takenSize - express.MaxKeep]struct{} // not negative
	_ [backup.MaxExpressSeen - express.MaxKeepSeen]struct{}
)

// resumeExpress returns what the copy holds of broadcasts.
func (d *dnpHalf) resumeExpress() express.Resume {
	out := express.Resume{Number: d.copy.numbers.Express, Seen: d.copy.file.ExpressSeen()}
	now := monotonic()
	for i := range out.Held {
		if b := d.copy.file.Express(i); len(b) >= takenSize {
			age := time.Duration(max(0, now-int64(binary.BigEndian.Uint64(b))))
			out.Held[i] = express.Kept{Bytes: b[takenSize:], Age: age}
		}
	}
	return out
}

// keepExpress stores what a step wants kept of broadcasts. It comes before its frames: what is acknowledged is in the copy.
func (d *dnpHalf) keepExpress(out *dnpcore.Output) {
	for _, k := range out.KeepExpress {
		var b []byte
		if k.Bytes != nil {
			b = append(binary.BigEndian.AppendUint64(d.held.buf[:0], uint64(monotonic())), k.Bytes...)
		}
		d.copy.note(d.log, d.copy.file.StoreExpress(k.Place, b))
	}
	if out.KeepSeen != nil {
		d.copy.note(d.log, d.copy.file.StoreExpressSeen(out.KeepSeen))
	}
}

// What the DNP half counts of the fault management procedure stands behind that.
const (
	procedureCounts = countsOfTopic * express.NumTopics

	countState    = iota - 1 // procedure.State
	countWave                // the low 32 bits
	countClear               // procedures that ended with the torus empty
	countNotClear            // with messages in it, or members that had not answered
	countRefused             // that this half wanted and did not begin
	countHeldUp              // messages that waited for the end
	countWaiting             // of these, now
	countHeld                // messages that may wait, in this half, while a procedure is under way
	numProcedureCounts
)

func (d *dnpHalf) countProcedures(out []uint32) {
	s := d.core.ProcedureStats()
	out[countState], out[countWave], out[countClear], out[countNotClear] = uint32(s.State), uint32(s.Wave), uint32(s.Clear), uint32(s.NotClear)
	out[countRefused], out[countHeldUp], out[countWaiting], out[countHeld] = uint32(s.Refused), uint32(s.HeldUp), uint32(s.Waiting), uint32(s.Held)
}

// draining says whether the DNP half holds back what may wait.
func (p *page) draining() bool {
	state := procedure.State(p.file.Counter(procedureCounts + countState))
	return state.Valid() && state != procedure.Normal
}

// procedures reads them; nil: the DNP half takes no part, or is of an earlier version.
func (h *hostHalf) procedures() *status.Procedures {
	all := h.page.file.Counters()
	c := all[procedureCounts:]
	state := procedure.State(c[countState])
	if !state.Valid() {
		return nil
	}
	return &status.Procedures{
		State: state.String(), Wave: c[countWave], Clear: c[countClear], NotClear: c[countNotClear], Refused: c[countRefused],
		HeldUp: c[countHeldUp], Waiting: c[countWaiting], Held: c[countHeld],
	}
}

func (s sink) procedures(p *status.Procedures) {
	if p == nil {
		return
	}
	for state := procedure.Normal; state <= procedure.Diagnostics; state++ {
		s.gauge("lofamo_agent_procedure_state", one(p.State == state.String()), state.String())
	}
	s.counter("lofamo_agent_procedures_total", uint64(p.Clear), "clear")
	s.counter("lofamo_agent_procedures_total", uint64(p.NotClear), "not-clear")
	s.counter("lofamo_agent_procedures_total", uint64(p.Refused), "refused")
	s.counter("lofamo_agent_procedure_held_up_total", uint64(p.HeldUp))
	s.gauge("lofamo_agent_procedure_waiting", float64(p.Waiting))
}
