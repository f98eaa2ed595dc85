package servicenet

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// smallOutbox is an outbox with room for few reports.
func smallOutbox(t *testing.T) *Outbox {
	t.Helper()
	cfg := DefaultOutboxConfig(fault.PathDirect)
	cfg.MaxReports = 8
	o, err := NewOutbox(origin("n0-0-0/host"), 1, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Every dropped report is mentioned by the next report on its component, even if the report that needed the room was
// on another component, and even if the report that mentioned it was dropped itself.
func TestNextReportMentionsDroppedOnes(t *testing.T) {
	o := smallOutbox(t)
	components := []fault.Component{fault.ComponentMemory, fault.ComponentPower, fault.ComponentVoltage}
	now, says := time.Unix(0, 0), map[fault.ReportID]int{}
	add := func(c fault.Component, digest bool) {
		now = now.Add(time.Millisecond)
		_, out := o.Add(now, fault.Report{Digest: digest,
			Observations: []fault.Observation{{Component: c, State: fault.Sick, Kind: fault.KindSelf, Detail: "d"}}})
		for _, r := range out.Keep {
			n := 0
			if _, err := fmt.Sscanf(r.Observations[0].Detail, "[%d earlier left out] d", &n); err == nil {
				says[r.ID] = n
			}
		}
		for _, id := range out.Forget {
			delete(says, id)
		}
	}
	for i := range 100 {
		add(components[i%len(components)], false)
		add(components[i%len(components)], true) // which says nothing of it
	}
	before := o.Stats().Shortened
	if before < 50 {
		t.Fatalf("%d were left out", before)
	}
	for _, c := range components {
		add(c, false)
	}
	said := 0
	for _, n := range says {
		said += n
	}
	if after := o.Stats().Shortened; said < int(before) || said > int(after) {
		t.Errorf("%d to %d were left out, and said to be of %d", before, after, said)
	}
}

// TestFullLogKeepsNotices: a full log drops restated reports, and keeps the newest notice of a stop, and of a restart of each half.
func TestFullLogKeepsNotices(t *testing.T) {
	o := smallOutbox(t)
	now, kept := time.Unix(0, 0), map[fault.ReportID]fault.Report{}
	add := func(r fault.Report) {
		now = now.Add(time.Millisecond)
		_, out := o.Add(now, r)
		for _, r := range out.Keep {
			kept[r.ID] = r
		}
		for _, id := range out.Forget {
			delete(kept, id)
		}
	}
	for _, s := range []fault.Stop{fault.StopDaemon, fault.StopReboot} {
		add(fault.Report{Stop: s})
	}
	for _, within := range []time.Duration{time.Second, 2 * time.Second} {
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			add(fault.Report{Restart: fault.RestartNotice{Half: h, Within: within}})
		}
	}
	for range 20 {
		add(fault.Report{Observations: []fault.Observation{{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf}}})
	}
	stops, restarts := 0, 0
	for _, r := range kept {
		if r.Stop == fault.StopReboot {
			stops++
		}
		if r.Restart.Within == 2*time.Second {
			restarts++
		}
	}
	if len(kept) > o.cfg.MaxReports || stops != 1 || restarts != 2 {
		t.Errorf("of %d reports, %d announce the last stop, and %d the last restarts: want at most %d, 1 and 2: %+v", len(kept), stops, restarts,
			o.cfg.MaxReports, kept)
	}
}
