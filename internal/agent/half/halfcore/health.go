package halfcore

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// HealthRepeat is the interval at which the daemon and the halves repeat unchanged health by mailbox.
const HealthRepeat = 5 * time.Second

// testsFor is how long self-test results count without newer ones: the half is then dead, or stopped.
const testsFor = 3 * HealthRepeat

// HealthLog holds the newest health of each half. The zero value is empty.
type HealthLog struct {
	halves [2]halfHealth
}

// halfHealth is the health of one half.
type halfHealth struct {
	recovery   *lofamov1.RecoveryStatus
	recoveryAt time.Time
	tests      []*lofamov1.SelfTest
	testsAt    time.Time
	processor  *lofamov1.ProcessorTime
	spentAt    time.Time // of processor
	lastBoot   *lofamov1.LastBoot
	watchdog   *lofamov1.HardwareWatchdog
	words      []*lofamov1.LastWords
	wordsAt    time.Time
}

// wordsFor is how long a digest restates the last words of another machine. The supervisors store them.
const wordsFor = 2 * time.Minute

// Set merges a partial report of a half. An absent recovery, absent tests or an absent processor time mean no change. A recovery without a
// state only tells how the half resumed when it started, which the daemon does not know. The caller must not change h
// afterwards. nil makes the half unknown.
func (k *HealthLog) Set(now time.Time, of fault.Half, h *lofamov1.HalfHealth) {
	if !of.Valid() {
		return
	}
	s := &k.halves[of-fault.HalfHost]
	if h == nil {
		*s = halfHealth{}
		return
	}
	if r := h.GetRecovery(); r != nil {
		s.setRecovery(now, r)
	}
	if h.GetTests() != nil {
		s.tests, s.testsAt = h.GetTests(), now
	}
	if p := h.GetProcessor(); p != nil {
		s.processor, s.spentAt = p, now
	}
	if b := h.GetLastBoot(); b != nil {
		s.lastBoot = b
	}
	if w := h.GetHardwareWatchdog(); w != nil || h.GetRecovery().GetState() != lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED {
		s.watchdog = w // the daemon's records state both: a daemon that feeds no device takes back the word of one that did
	}
	if w := h.GetLastWords(); len(w) > 0 {
		s.words, s.wordsAt = w, now
	}
}

func (s *halfHealth) setRecovery(now time.Time, r *lofamov1.RecoveryStatus) {
	old := s.recovery
	switch {
	case old == nil:
		s.recovery, s.recoveryAt = r, now
	case r.GetState() == lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED:
		s.recovery = proto.CloneOf(old)
		s.recovery.Resumption, s.recovery.Cold = r.GetResumption(), r.GetCold()
	default:
		s.recovery, s.recoveryAt = r, now
		// The resumption of a previous process does not carry over.
		if r.GetResumption() == lofamov1.Resumption_RESUMPTION_UNSPECIFIED && r.GetRestarts() == old.GetRestarts() {
			s.recovery = proto.CloneOf(r)
			s.recovery.Resumption, s.recovery.Cold = old.GetResumption(), old.GetCold()
		}
	}
}

// As returns the known health, with ages as of now.
func (k *HealthLog) As(now time.Time) servicenet.Health {
	return servicenet.Health{Host: k.halves[0].as(now), DNP: k.halves[1].as(now)}
}

func (s *halfHealth) as(now time.Time) *lofamov1.HalfHealth {
	h := &lofamov1.HalfHealth{LastBoot: s.lastBoot, HardwareWatchdog: s.watchdog}
	if s.recovery != nil {
		h.Recovery = proto.CloneOf(s.recovery)
		OlderRecovery(h.Recovery, now.Sub(s.recoveryAt))
	}
	if passed := now.Sub(s.testsAt); s.tests != nil && passed < testsFor {
		for _, t := range s.tests {
			t = proto.CloneOf(t)
			OlderTest(t, passed)
			h.Tests = append(h.Tests, t)
		}
		h.AgeNs = uint64(max(0, passed))
	}
	if p := s.processor; (p.GetStarved() || p.GetBudgetLevel() > 0 || p.GetNotRealtime()) && now.Sub(s.spentAt) < testsFor {
		h.Processor = p
	}
	for _, w := range s.words {
		if age := time.Duration(w.GetAgeMs())*time.Millisecond + max(0, now.Sub(s.wordsAt)); age < wordsFor {
			w = proto.CloneOf(w)
			w.AgeMs = uint32(age.Milliseconds())
			h.LastWords = append(h.LastWords, w)
		}
	}
	if h.Recovery == nil && h.Tests == nil && h.Processor == nil && h.LastBoot == nil && h.HardwareWatchdog == nil &&
		h.LastWords == nil {
		return nil
	}
	return h
}

// OlderRecovery counts the age of the last restart on, and the time until one is over down.
func OlderRecovery(r *lofamov1.RecoveryStatus, by time.Duration) {
	by = max(0, by)
	if r.GetAgeNs() > 0 {
		r.AgeNs = min(r.GetAgeNs()+uint64(by), uint64(servicenet.MaxAge))
	}
	r.UntilMs -= uint32(min(int64(r.GetUntilMs()), by.Milliseconds()))
}

// OlderTest counts the age of a test on.
func OlderTest(t *lofamov1.SelfTest, by time.Duration) {
	t.AgeMs = uint32(min(int64(t.GetAgeMs())+max(0, by).Milliseconds(), math.MaxUint32))
}

// WhyDown returns in words why the daemon gave up a half, or cannot start it; empty: neither.
func WhyDown(h *lofamov1.HalfHealth) string {
	r := h.GetRecovery()
	if r.GetState() != lofamov1.RecoveryState_GIVEN_UP {
		return r.GetReason()
	}
	if r.GetReason() == "" {
		return "given up"
	}
	return "given up, " + r.GetReason()
}
