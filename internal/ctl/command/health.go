package command

import (
	"fmt"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// halfHealth is the known health of one half.
type halfHealth struct {
	name string
	*lofamov1.HalfHealth
}

// halves returns a node's halves with known health.
func halves(n *lofamov1.Node) []halfHealth {
	var out []halfHealth
	for _, h := range []halfHealth{{"host", n.GetHostHealth()}, {"dnp", n.GetDnpHealth()}} {
		if h.HalfHealth != nil {
			out = append(out, h)
		}
	}
	return out
}

// restarts summarises the restarts of a node's halves in one cell, with problems in words.
func restarts(n *lofamov1.Node) string {
	var parts []string
	for _, h := range halves(n) {
		r := h.GetRecovery()
		if r == nil {
			continue
		}
		s := h.name + " " + Count(r.GetRestarts())
		switch r.GetState() {
		case lofamov1.RecoveryState_RUNNING, lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED:
		default:
			s += " " + recoveryState(r)
		}
		if h.GetOld() {
			s += " OLD"
		}
		parts = append(parts, s)
	}
	return Dash(strings.Join(parts, ", "))
}

// tested sums the self-tests of a node's halves up in one cell.
func tested(n *lofamov1.Node) string {
	var passed, failing, proving, untested, idle int
	for _, h := range halves(n) {
		for _, t := range h.GetTests() {
			switch {
			case t.GetState() == lofamov1.TestState_FAILING:
				failing++
			case t.GetProving():
				proving++
			case t.GetState() == lofamov1.TestState_PASSED:
				passed++
			case t.GetState() == lofamov1.TestState_IDLE:
				idle++
			default:
				untested++
			}
		}
	}
	var parts []string
	add := func(n int, word string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, word))
		}
	}
	add(failing, "failing")
	add(proving, "to be proven")
	add(passed, "passed")
	add(untested, "untested")
	add(idle, "idle")
	return Dash(strings.Join(parts, ", "))
}

func recoveryState(r *lofamov1.RecoveryStatus) string {
	if r.GetState() == lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ReplaceAll(r.GetState().String(), "_", " ")
}

func micros(us uint32) string {
	if us == 0 {
		return "-"
	}
	return Duration(time.Duration(us) * time.Microsecond)
}

// printHealth prints the recoveries and self-tests of a node's halves, from the newest digest that has them.
func printHealth(a *App, n *lofamov1.Node) error {
	all := halves(n)
	if len(all) == 0 && n.GetStale() {
		a.Printf("\nRecoveries and self-tests: unknown: only the leader knows them\n")
		return nil
	}
	if len(all) == 0 {
		a.Printf("\nRecoveries and self-tests: the node has not said anything of them since this leader took over\n")
		return nil
	}
	a.Printf("\nRecoveries, as said")
	for i, h := range all {
		a.Printf("%s of the %s half %s ago", map[bool]string{true: ","}[i > 0], h.name, nanos(h.GetAgeNs()))
		if h.GetOld() {
			a.Printf(" (OLD: it may be otherwise by now)")
		}
	}
	a.Printf("\n")
	rows := [][]string{{"  HALF", "STATE", "RESTARTS", "IN WINDOW", "LAST", "CAUSE", "DEAD", "STARTED", "SERVING", "PROVEN", "WENT ON"}}
	var more []string
	for _, h := range all {
		r := h.GetRecovery()
		if r == nil {
			rows = append(rows, []string{"  " + h.name, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"})
			continue
		}
		last := "-"
		if r.GetAgeNs() > 0 {
			last = nanos(r.GetAgeNs()) + " ago"
		}
		window := "-"
		if r.GetBudget() > 0 {
			window = fmt.Sprintf("%d of %d in %s", r.GetInWindow(), r.GetBudget(), Duration(time.Duration(r.GetWindowMs())*time.Millisecond))
		}
		went := map[lofamov1.Resumption]string{lofamov1.Resumption_RESUMED: "where it was", lofamov1.Resumption_COLD: "cold"}[r.GetResumption()]
		dead := micros(r.GetGoneUs())
		if r.GetGoneUs() == 1 { // it was dead when that was seen
			dead = "at once"
		}
		rows = append(rows, []string{
			"  " + h.name, recoveryState(r), Count(r.GetRestarts()), window, last, Dash(Printable(r.GetCause())),
			dead, micros(r.GetStartedUs()), micros(r.GetServingUs()), micros(r.GetProvenUs()), Dash(went),
		})
		if r.GetState() == lofamov1.RecoveryState_RESTARTING && r.GetUntilMs() > 0 {
			more = append(more, fmt.Sprintf("the %s half means to be back within %s", h.name,
				Duration(time.Duration(r.GetUntilMs())*time.Millisecond)))
		}
		if r.GetReason() != "" {
			more = append(more, fmt.Sprintf("the %s half: %s", h.name, Printable(r.GetReason())))
		}
		if r.GetCold() != "" {
			more = append(more, fmt.Sprintf("the %s half began cold, its copy: %s", h.name, Printable(r.GetCold())))
		}
		for _, text := range servicenet.MachineNotes(h.HalfHealth) {
			more = append(more, Printable(text))
		}
		if h.GetCut() {
			more = append(more, fmt.Sprintf("of the %s half not everything is known: there was no room for it in the digest", h.name))
		}
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	for _, m := range more {
		a.Printf("  %s\n", m)
	}
	return printTests(a, all)
}

func printTests(a *App, all []halfHealth) error {
	rows := [][]string{{"  HALF", "MODULE", "STATE", "TESTED", "LATENCY", "USUAL", "TESTS", "LOST", "ALTERED", "DOUBLED", "LATE", "NOTE"}}
	for _, h := range all {
		for _, t := range h.GetTests() {
			state, note := t.GetState().String(), Printable(t.GetWhy())
			if t.GetState() == lofamov1.TestState_TEST_STATE_UNSPECIFIED {
				state = "-"
			}
			if t.GetProving() {
				note = strings.TrimPrefix(note+"; has yet to pass since the restart", "; ")
			}
			age := "-"
			if t.GetAgeMs() > 0 {
				age = Duration(time.Duration(t.GetAgeMs())*time.Millisecond) + " ago"
			}
			rows = append(rows, []string{
				"  " + h.name, Dash(Printable(t.GetModule())), state, age, micros(t.GetLatencyUs()), micros(t.GetLearnedUs()),
				Count(t.GetTests()),
				Count(t.GetLost()), Count(t.GetAltered()), Count(t.GetDoubled()), Count(t.GetLate()),
				Dash(note),
			})
		}
	}
	if len(rows) == 1 {
		a.Printf("\nSelf-tests: none is known of\n")
		return nil
	}
	a.Printf("\nSelf-tests\n")
	return a.Table(rows)
}
