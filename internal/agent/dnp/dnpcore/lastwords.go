package dnpcore

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// The report of the host's death carries the last words of the host's kernel. They may be the only proof that the kernel is dead. A
// datagram over the torus has little room beside its reports. If other reports or changes would take the room that the last words need,
// the half sends the death separately.

// addChanges reports changes in one report. If the other changes take room from the last words, it reports the death separately.
func (m *Machine) addChanges(now time.Time, changes []fault.Observation) {
	var death, others []fault.Observation
	for _, o := range changes {
		if o.Node == m.self && (o.Component == fault.ComponentHost || o.Component == fault.ComponentBus) {
			death = append(death, o)
		} else {
			others = append(others, o)
		}
	}
	if len(others) == 0 || !m.statesDeath(death) || m.roomForWords(now, death) <= m.roomForWords(now, changes) {
		m.add(now, fault.Report{Observations: changes})
		return
	}
	m.add(now, fault.Report{Observations: death})
	m.add(now, fault.Report{Observations: others})
}

// statesDeath reports whether observations of this half say that its host is dead.
func (m *Machine) statesDeath(all []fault.Observation) bool {
	return slices.ContainsFunc(all, func(o fault.Observation) bool {
		return o.Node == m.self && o.Component == fault.ComponentHost && o.State == fault.Failed
	})
}

// roomForWords returns how many bytes of last words fit beside observations in one report by the torus.
func (m *Machine) roomForWords(now time.Time, all []fault.Observation) int {
	r := m.headed(now, fault.Report{Observations: all})
	r.ID = fault.ReportID{Origin: fault.Origin{Node: m.self, Half: fault.HalfDNP}, Epoch: m.Epoch(), Seq: m.Numbers().Seq + 1}
	return m.wordsSize(now, servicenet.Send{Reports: []fault.Report{r}, Path: fault.PathTorus,
		Room: m.sender.Room(fault.PathTorus)})
}

// wordsSize returns how many bytes of last words go with a datagram.
func (m *Machine) wordsSize(now time.Time, s servicenet.Send) (n int) {
	for _, w := range m.healthFor(now, s).DNP.GetLastWords() {
		n += proto.Size(w)
	}
	return n
}

// deathApart divides a datagram into the newest report of the host's death and the other reports. ok is false if there is nothing to
// divide, or if a separate report of the death has no additional room for last words.
func (m *Machine) deathApart(now time.Time, s servicenet.Send) (death, others servicenet.Send, ok bool) {
	at := -1
	for i, r := range s.Reports {
		if !r.Digest && m.statesDeath(r.Observations) {
			at = i
		}
	}
	if at < 0 || len(s.Reports) == 1 {
		return s, s, false
	}
	death, others = s, s
	death.Reports, death.Status = s.Reports[at:at+1], nil
	others.Reports = slices.Concat(s.Reports[:at], s.Reports[at+1:])
	return death, others, m.wordsSize(now, death) > m.wordsSize(now, s)
}
