package measure

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// The half that is measured does test itself, by everything that a report goes through, and only while it runs.
func TestMeasuredHalfTestsItselfWhileItRuns(t *testing.T) {
	origin := fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	ids, err := NewIdentities(origin, ReplicaName)
	if err != nil {
		t.Fatal(err)
	}
	report := fault.Report{Uptime: time.Hour, Observations: []fault.Observation{
		{Node: origin.Node, Component: fault.ComponentTemperature, State: fault.Sick, Kind: fault.KindSelf},
	}}
	r, err := NewTested(ids, origin, report, 500*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := r.Tests(); n != 0 {
		t.Errorf("%d tests before it runs", n)
	}
	r.Run(true)
	n := uint64(0)
	for end := time.Now().Add(time.Minute); n < 6 && time.Now().Before(end); n, err = r.Tests() {
		if _, err := r.Saturate(2*time.Second, 8); err != nil {
			t.Fatal(err)
		}
	}
	r.Run(false)
	if err != nil || n < 6 {
		t.Errorf("%d tests: %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
