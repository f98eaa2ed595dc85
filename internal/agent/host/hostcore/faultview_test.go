package hostcore

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// A half that resumes in its boot epoch has a different list from the one that supervisors may hold: an empty one,
// under a new number.
func TestResumedInterestListHasNewNumber(t *testing.T) {
	m := NewFaultView("n0", nil)
	m.Resume(0)
	if m.Serial() != 0 || m.Interest(3) != nil {
		t.Errorf("a list that nobody made: %d", m.Serial())
	}
	m.Resume(5)
	msgs := m.Interest(3)
	if m.Serial() != 6 || len(msgs) != 1 || msgs[0].GetSerial() != 6 || len(msgs[0].GetNodes()) != 0 {
		t.Errorf("serial %d, %v", m.Serial(), msgs)
	}
	if m.Watch([]fault.NodeID{"n7"}); m.Serial() != 7 || !m.Pending() {
		t.Errorf("serial %d, pending %t", m.Serial(), m.Pending())
	}
}
