package view

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestWatchdogStatements: each step is a message of n1-0-0. want is the statement afterwards: + armed, - not armed, empty none.
func TestWatchdogStatements(t *testing.T) {
	type message struct {
		half   fault.Half
		epoch  fault.Epoch
		seq    fault.Seq
		says   string // a digest that states + or -, "none" for host health without a watchdog, "nothing" for no health; empty: a report
		stop   fault.Stop
		want   string
		notice time.Duration // of a restart of the host half; below 0: it is over
	}
	const host, dnp = fault.HalfHost, fault.HalfDNP
	for name, tc := range map[string]struct {
		restored fault.Epoch // of a statement + by an earlier leader; 0: none
		play     []message
	}{
		"the newest counts":         {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 3, "-", 0, "-", 0}, {host, 2, 2, "+", 0, "-", 0}}},
		"only the host half's word": {0, []message{{host, 2, 1, "-", 0, "-", 0}, {dnp, 2, 2, "+", 0, "-", 0}}},
		"taken back": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 2, "nothing", 0, "+", 0},
			{host, 2, 3, "none", 0, "", 0}}},
		"a stop": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 2, "", fault.StopDaemon, "", 0}, {host, 2, 3, "+", 0, "", 0},
			{host, 2, 4, "", fault.StopOver, "", 0}, {host, 2, 5, "+", 0, "+", 0}}},
		"a boot, by a report": {0, []message{{host, 2, 9, "+", 0, "+", 0}, {host, 3, 1, "", 0, "", 0}, {host, 3, 2, "+", 0, "+", 0}}},
		"a boot, by a digest": {0, []message{{host, 2, 9, "+", 0, "+", 0}, {host, 3, 1, "nothing", 0, "", 0},
			{host, 2, 10, "+", 0, "", 0}}},
		"same boot, other leader":       {2, []message{{host, 2, 1, "nothing", 0, "+", 0}, {host, 2, 2, "", 0, "+", 0}}},
		"a boot after another leader":   {2, []message{{host, 3, 1, "", 0, "", 0}}},
		"a digest after another leader": {2, []message{{host, 3, 1, "nothing", 0, "", 0}}},
		"of before another leader":      {2, []message{{host, 1, 7, "-", 0, "+", 0}}},
		"a restart": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 2, "", 0, "", time.Second}, {host, 2, 3, "+", 0, "", 0},
			{host, 3, 1, "", 0, "", -1}, {host, 3, 2, "+", 0, "+", 0}}},
		"the end of an earlier stop, delayed": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 5, "", fault.StopDaemon, "", 0},
			{host, 2, 4, "", fault.StopOver, "", 0}, {host, 2, 6, "+", 0, "", 0}}},
		"the end of an earlier restart, delayed": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 5, "", 0, "", time.Second},
			{host, 2, 4, "", 0, "", -1}, {host, 2, 6, "+", 0, "", 0}}},
		"a stop of an earlier boot": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 1, 9, "", fault.StopReboot, "+", 0},
			{host, 2, 2, "+", 0, "+", 0}}},
		"the same stop again": {0, []message{{host, 2, 1, "+", 0, "+", 0}, {host, 2, 2, "", fault.StopDaemon, "", 0},
			{host, 2, 2, "", fault.StopDaemon, "", 0}, {host, 2, 3, "+", 0, "", 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWatchdogs()
			stated := map[string]*lofamov1.HardwareWatchdog{
				"+": {Armed: true, TimeoutMs: 10_000, ContactWithinMs: 5000, Boot: 7}, "-": {Boot: 7}}
			var is *lofamov1.HardwareWatchdog
			if tc.restored > 0 {
				is = stated["+"]
				w.Restore("n1-0-0", is, tc.restored)
			}
			for i, m := range tc.play {
				id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: m.half}, Epoch: m.epoch, Seq: m.seq}
				var h *lofamov1.HalfHealth
				switch m.says {
				case "":
					rep := &fault.Report{ID: id, Stop: m.stop}
					if m.notice != 0 {
						rep.Restart = fault.RestartNotice{Half: host, Within: max(0, m.notice)}
					}
					if gone, _ := w.Report(time.Unix(1, 0), rep); gone {
						is = nil
					}
				default:
					if m.says != "nothing" {
						h = &lofamov1.HalfHealth{HardwareWatchdog: stated[m.says]}
					}
					if now, ok := w.Digest(time.Unix(1, 0), id, h); ok {
						is = StatedWatchdog(is, now, time.Unix(1, 0))
					}
				}
				got := ""
				if is != nil {
					got = map[bool]string{true: "+", false: "-"}[is.GetArmed()]
				}
				if got != m.want {
					t.Fatalf("after message %d, %+v: %q, want %q", i, m, got, m.want)
				}
			}
		})
	}
}

// TestUnendedRestartHidesArmedWatchdogForLimitedTime: a node may never report the end of a restart of its host half. After the announced
// time, and 10 min for a daemon that was paused, its digests state the device again.
func TestUnendedRestartHidesArmedWatchdogForLimitedTime(t *testing.T) {
	const node = "n1-0-0"
	armed := &lofamov1.HalfHealth{HardwareWatchdog: &lofamov1.HardwareWatchdog{Armed: true, TimeoutMs: 10_000, Boot: 7}}
	began := time.Unix(1000, 0)
	id := func(seq fault.Seq) fault.ReportID {
		return fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: 2, Seq: seq}
	}
	restart := func(w *Watchdogs) {
		w.Report(began, &fault.Report{ID: id(1), Restart: fault.RestartNotice{Half: fault.HalfHost, Within: 20 * time.Second}})
	}
	stop := func(w *Watchdogs) { w.Report(began, &fault.Report{ID: id(1), Stop: fault.StopDaemon}) }
	for name, tc := range map[string]struct {
		play   func(*Watchdogs)
		hidden time.Duration // 0: always
	}{
		"a restart":                    {restart, 20*time.Second + 10*time.Minute},
		"a restart, by another leader": {func(w *Watchdogs) { w.RestoreRestart(began, node, 2) }, fault.MaxRestart + 10*time.Minute},
		"a stop":                       {stop, 0},
		"a stop, by another leader":    {func(w *Watchdogs) { w.RestoreStop(node, 2) }, 0},
		"a restart during a stop": {func(w *Watchdogs) {
			stop(w)
			w.Report(began, &fault.Report{ID: id(2), Restart: fault.RestartNotice{Half: fault.HalfHost, Within: time.Second}})
		}, 0},
		"a restart that ends during a stop": {func(w *Watchdogs) {
			stop(w)
			w.Report(began, &fault.Report{ID: id(2), Restart: fault.RestartNotice{Half: fault.HalfHost, Within: time.Second}})
			w.Report(began, &fault.Report{ID: id(3), Restart: fault.RestartNotice{Half: fault.HalfHost}})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWatchdogs()
			tc.play(w)
			if tc.hidden == 0 {
				if _, ok := w.Digest(began.Add(24*time.Hour), id(3), armed); ok || w.RunOut(began.Add(24*time.Hour), node) {
					t.Error("the stop counts as over although the node has not said so")
				}
				return
			}
			if _, ok := w.Digest(began.Add(tc.hidden-1), id(3), armed); ok || w.RunOut(began.Add(tc.hidden-1), node) {
				t.Error("the restart counts as over too early")
			}
			if is, ok := w.Digest(began.Add(tc.hidden), id(4), armed); !ok || !is.GetArmed() {
				t.Errorf("%s after the notice the leader hides that the device is armed", tc.hidden)
			}
			tc.play(w)
			if !w.RunOut(began.Add(tc.hidden), node) || w.RunOut(began.Add(tc.hidden), node) {
				t.Error("the restart does not run out once")
			}
		})
	}
}
