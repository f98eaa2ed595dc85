package host

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// halfStatusFamilies describes the health metrics of both halves as the host half knows them. The copy is the caller's.
func halfStatusFamilies() []metric {
	half, module := []string{"half"}, []string{"half", "module"}
	return []metric{
		{"lofamo_agent_recovery_state", "State of a half as its recovery daemon sees it, one series a state; all 0 without a daemon.",
			[]string{"half", "state"}},
		{"lofamo_agent_restarts_total", "Restarts of a half by its recovery daemon since the machine was booted.", half},
		{"lofamo_agent_restarts_in_window", "Of these, the restarts that count against the budget now.", half},
		{"lofamo_agent_failures_total", "Ends and hangs of a half that its recovery daemon saw since the machine was booted, by cause.",
			[]string{"half", "cause"}},
		{
			"lofamo_agent_recovery_seconds",
			"Course of a half's last recovery: from the detection until the old process was gone, the new one started, serving, and proven by its " +
				"self-test; 0 for a step not made.",
			[]string{"half", "step"},
		},
		{"lofamo_agent_starved", "1 while a half is starved of processor time: it gives no verdicts while it is late.", half},
		{"lofamo_agent_lateness_seconds", "Longest lateness of a starved half in the last ten to twenty digest periods, 0 if not starved.", half},
		{"lofamo_agent_lateness_ratio", "Part of the time in which a starved half was late, 0 to 1; 0 if not starved.", half},
		{"lofamo_agent_budget_level", "Periodic work that a half gives up to keep to its processor budget: 0 none, 1 digests are rarer, 2 " +
			"probes too, 3 readings of sensors too.", half},
		{"lofamo_agent_budget_use_ratio", "Share of a core that a half over its budget used in the last seconds; 0 at level 0.", half},
		{"lofamo_agent_resumed", "1 when a half went on from its copy when it was started, 0 when it began cold or has not said so.", half},
		{"lofamo_agent_copy_failing", "1 while the host half's copy does not work: a restart would begin cold.", nil},
		{"lofamo_agent_copy_mended_total", "Damaged places in the host half's copy that were mended since it started, then included.", nil},
		{"lofamo_agent_copy_lost", "Cells of the host half's copy that were lost when it started.", nil},
		{"lofamo_agent_copy_remade_total", "Times that the host half made a new copy since it started.", nil},
		{"lofamo_agent_copy_failed_stores_total", "Stores that did not reach the host half's copy.", nil},
		{"lofamo_agent_copy_no_room_total", "Reports that the host half's copy had no room for.", nil},
		{"lofamo_agent_copy_reports", "Reports that the host half's copy holds.", nil},
		{"lofamo_agent_selftest_state", "Result of a module's self-test, one series a state.", []string{"half", "module", "state"}},
		{"lofamo_agent_selftest_proving", "1 while a module that was in use before the last restart has not passed since.", module},
		{"lofamo_agent_selftest_latency_seconds", "Slowest message of the last test of a module.", module},
		{"lofamo_agent_selftest_usual_seconds", "The module's usual time, 0 if not known yet.", module},
		{"lofamo_agent_selftest_tests_total", "Tests of a module since its half started.", module},
		{"lofamo_agent_selftest_faults_total", "Test messages that were lost, altered, doubled or late, those within the bounds included.",
			[]string{"half", "module", "fault"}},
	}
}

// heardHalfStatus is the host half's knowledge of both halves, for one scrape.
type heardHalfStatus struct {
	health  servicenet.Health
	records [2]halfcore.RecoveryRecord
	rails   *lofamov1.DeliveryStatus
	copy    storage.CopyStats
	failing bool
}

// heardHalfStatus runs under the mutex.
func (h *hostHalf) heardHalfStatus(now time.Time) heardHalfStatus {
	h.Copy.Mu.Lock()
	failing := h.Copy.Broken.On
	h.Copy.Mu.Unlock()
	return heardHalfStatus{health: h.core.Health(now), records: h.records, copy: h.Copy.File.Stats(), failing: failing}
}

// onRecord stores the daemon's record of a half.
func (h *hostHalf) onRecord(b []byte) {
	r, err := halfcore.DecodeRecovery(b)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records[r.Half-fault.HalfHost] = r
}

func (s sink) halfStatus(f heardHalfStatus) {
	for i, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		name, is := h.String(), f.health.Of(h)
		r := is.GetRecovery()
		for st := lofamov1.RecoveryState_STOPPED; st <= lofamov1.RecoveryState_GIVEN_UP; st++ {
			s.gauge("lofamo_agent_recovery_state", one(r.GetState() == st), name, st.String())
		}
		s.counter("lofamo_agent_restarts_total", uint64(r.GetRestarts()), name)
		s.gauge("lofamo_agent_restarts_in_window", float64(r.GetInWindow()), name)
		for _, c := range halfcore.CauseKinds() {
			s.counter("lofamo_agent_failures_total", f.records[i].Count(c), name, c.String())
		}
		for step, us := range map[string]uint32{"gone": r.GetGoneUs(), "started": r.GetStartedUs(), "serving": r.GetServingUs(),
			"proven": r.GetProvenUs()} {
			s.gauge("lofamo_agent_recovery_seconds", float64(us)/1e6, name, step)
		}
		s.gauge("lofamo_agent_resumed", one(r.GetResumption() == lofamov1.Resumption_RESUMED), name)
		p := is.GetProcessor()
		s.gauge("lofamo_agent_starved", one(p.GetStarved()), name)
		s.gauge("lofamo_agent_lateness_seconds", float64(p.GetLongestMs())/1e3, name)
		s.gauge("lofamo_agent_lateness_ratio", float64(p.GetSharePermille())/1e3, name)
		s.gauge("lofamo_agent_budget_level", float64(p.GetBudgetLevel()), name)
		s.gauge("lofamo_agent_budget_use_ratio", float64(p.GetUsedPermille())/1e3, name)
		for _, t := range is.GetTests() {
			s.test(name, servicenet.ModuleName(t.GetNumber(), f.rails), t)
		}
	}
	s.gauge("lofamo_agent_copy_failing", one(f.failing))
	s.counter("lofamo_agent_copy_mended_total", uint64(f.copy.Mended))
	s.gauge("lofamo_agent_copy_lost", float64(f.copy.Lost))
	s.counter("lofamo_agent_copy_remade_total", f.copy.Made)
	s.counter("lofamo_agent_copy_failed_stores_total", f.copy.Failed)
	s.counter("lofamo_agent_copy_no_room_total", f.copy.NoRoom)
	s.gauge("lofamo_agent_copy_reports", float64(f.copy.Reports))
}

func (s sink) test(of, module string, t *lofamov1.SelfTest) {
	for st := lofamov1.TestState_PASSED; st <= lofamov1.TestState_IDLE; st++ {
		s.gauge("lofamo_agent_selftest_state", one(t.GetState() == st), of, module, st.String())
	}
	s.gauge("lofamo_agent_selftest_proving", one(t.GetProving()), of, module)
	s.gauge("lofamo_agent_selftest_latency_seconds", float64(t.GetLatencyUs())/1e6, of, module)
	s.gauge("lofamo_agent_selftest_usual_seconds", float64(t.GetLearnedUs())/1e6, of, module)
	s.counter("lofamo_agent_selftest_tests_total", t.GetTests(), of, module)
	for fault, n := range map[string]uint64{"lost": t.GetLost(), "altered": t.GetAltered(), "doubled": t.GetDoubled(), "late": t.GetLate()} {
		s.counter("lofamo_agent_selftest_faults_total", n, of, module, fault)
	}
}
