package host

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/storage/backup"
)

// faresFamilies describes the health metrics of both halves as the host half knows them. The copy is the caller's.
func faresFamilies() []metric {
	half, module := []string{"half"}, []string{"half", "module"}
	return []metric{
		{"lofamo_agent_recovery_state", "What a half does as its recovery daemon has it, one series a state; all 0 where no daemon has said so.", []string{"half", "state"}},
		{"lofamo_agent_restarts_total", "Restarts of a half by its recovery daemon since the machine was booted.", half},
		{"lofamo_agent_restarts_in_window", "Of these, the restarts that count against the budget now.", half},
		{"lofamo_agent_failures_total", "Ends and hangs of a half that its recovery daemon saw since the machine was booted, by cause.", []string{"half", "cause"}},
		{
			"lofamo_agent_recovery_seconds",
			"Course of a half's last recovery: from the detection until the old process was gone, the new one started, serving, and proven by its self-test; 0 for a step not made.",
			[]string{"half", "step"},
		},
		{"lofamo_agent_resumed", "1 when a half went on from its copy when it was started, 0 when it began cold or has not said so.", half},
		{"lofamo_agent_copy_failing", "1 while the host half's copy does not work: a restart would begin cold.", nil},
		{"lofamo_agent_copy_mended_total", "Damaged places in the host half's copy that were mended since it started, then included.", nil},
		{"lofamo_agent_copy_lost", "Cells of the host half's copy that were lost when it started.", nil},
		{"lofamo_agent_copy_remade_total", "Times that the host half's copy was made anew since it started.", nil},
		{"lofamo_agent_copy_failed_stores_total", "Stores that did not reach the host half's copy.", nil},
		{"lofamo_agent_copy_no_room_total", "Reports that the host half's copy had no room for.", nil},
		{"lofamo_agent_copy_reports", "Reports that the host half's copy holds.", nil},
		{"lofamo_agent_selftest_state", "What the self-test of a module found, one series a state.", []string{"half", "module", "state"}},
		{"lofamo_agent_selftest_proving", "1 while a module that was in use before the last restart has not passed since.", module},
		{"lofamo_agent_selftest_latency_seconds", "Slowest message of the last test of a module.", module},
		{"lofamo_agent_selftest_usual_seconds", "What a module has shown to be usual, 0 when nothing yet.", module},
		{"lofamo_agent_selftest_tests_total", "Tests of a module since its half started.", module},
		{"lofamo_agent_selftest_faults_total", "Test messages that were lost, altered, doubled or late, those within the bounds included.", []string{"half", "module", "fault"}},
	}
}

// heardFares is the host half's knowledge of both halves, for one scrape.
type heardFares struct {
	health  servicenet.Health
	records [2]recovery.Record
	rails   *lofamov1.DeliveryStatus
	copy    backup.Stats
	failing bool
}

// heardFares runs under the mutex.
func (h *hostHalf) heardFares(now time.Time) heardFares {
	h.Copy.Mu.Lock()
	failing := h.Copy.Broken.On
	h.Copy.Mu.Unlock()
	return heardFares{health: h.core.Health(now), records: h.records, copy: h.Copy.File.Stats(), failing: failing}
}

// onRecord stores the daemon's record of a half.
func (h *hostHalf) onRecord(b []byte) {
	r, err := recovery.Decode(b)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records[r.Half-fault.HalfHost] = r
}

func (s sink) fares(f heardFares) {
	for i, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		name, is := h.String(), f.health.Of(h)
		r := is.GetRecovery()
		for st := lofamov1.RecoveryState_STOPPED; st <= lofamov1.RecoveryState_GIVEN_UP; st++ {
			s.gauge("lofamo_agent_recovery_state", one(r.GetState() == st), name, st.String())
		}
		s.counter("lofamo_agent_restarts_total", uint64(r.GetRestarts()), name)
		s.gauge("lofamo_agent_restarts_in_window", float64(r.GetInWindow()), name)
		for _, c := range recovery.CauseKinds() {
			s.counter("lofamo_agent_failures_total", f.records[i].Count(c), name, c.String())
		}
		for step, us := range map[string]uint32{"gone": r.GetGoneUs(), "started": r.GetStartedUs(), "serving": r.GetServingUs(), "proven": r.GetProvenUs()} {
			s.gauge("lofamo_agent_recovery_seconds", float64(us)/1e6, name, step)
		}
		s.gauge("lofamo_agent_resumed", one(r.GetResumption() == lofamov1.Resumption_RESUMED), name)
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
