package hostcore

import (
	"fmt"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// health passes a half's health to the machine.
func (w *world) health(args []string) {
	half, err := fault.ParseHalf(args[0])
	w.must(err)
	if args[1] == "given-up" {
		w.step(Health{Half: half, Health: &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{
			State: lofamov1.RecoveryState_GIVEN_UP, Reason: strings.Join(args[2:], " "),
		}}})
		return
	}
	restarts, tests := w.number(args[1]), w.number(args[2])
	if restarts == 0 && tests == 0 {
		w.step(Health{Half: half})
		return
	}
	h := &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{
		State: lofamov1.RecoveryState_RUNNING, Restarts: uint32(restarts), Cause: "killed by signal 9", AgeNs: uint64(time.Second),
		ServingUs: 43_000,
	}}
	for n := range uint32(tests) {
		h.Tests = append(h.Tests, &lofamov1.SelfTest{Number: 1 + n, State: lofamov1.TestState_PASSED, AgeMs: 500, LatencyUs: 90, LearnedUs: 100,
			Tests: 1 << 40})
	}
	w.step(Health{Half: half, Health: h})
}

// sentHealth prints the health of the halves in a message.
func (w *world) sentHealth(s *Send) {
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		h := s.Health.Of(half)
		if h == nil {
			continue
		}
		line := fmt.Sprintf("%s: %d restarts", half, h.GetRecovery().GetRestarts())
		if r := h.GetRecovery(); r.GetAgeNs() > 0 {
			line += fmt.Sprintf(", the last %s ago, %q", time.Duration(r.GetAgeNs()).Round(time.Millisecond), r.GetCause())
		}
		var tests []string
		for _, t := range h.GetTests() {
			text := fmt.Sprintf("%d %s", t.GetNumber(), t.GetState())
			if t.GetAgeMs() > 0 {
				text += fmt.Sprintf(" %d ms ago", t.GetAgeMs())
			}
			tests = append(tests, text)
		}
		if len(tests) > 0 {
			line += "; tests " + strings.Join(tests, ", ")
		}
		if h.GetCut() {
			line += "; cut"
		}
		w.say("%s%s %s digest, %s", s.Path, w.iface(s), s.Target, line)
	}
}
