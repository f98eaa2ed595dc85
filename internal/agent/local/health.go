package local

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// writeHealth writes recoveries and self-tests, if any are known.
func writeHealth(b *strings.Builder, s Status) {
	known, tested := false, false
	recoveries := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(recoveries, "HALF\tDAEMON SAYS\tRESTARTS\tLAST\tSERVING AFTER\tWENT ON") // a Builder never fails
	var notes []string
	for _, half := range []string{"host", "dnp"} {
		r := s.Health[half].GetRecovery()
		tested = tested || len(s.Health[half].GetTests()) > 0
		if r == nil {
			continue
		}
		known = true
		last := "-"
		if r.GetCause() != "" {
			last = r.GetCause() + ", " + roundNs(r.GetAgeNs()).String() + " ago"
		}
		_, _ = fmt.Fprintf(recoveries, "%s\t%s\t%s\t%s\t%s\t%s\n", half, daemonSays(r), restartText(r), last, micros(r.GetServingUs()), wentOn(r))
		if r.GetReason() != "" {
			notes = append(notes, half+": "+r.GetReason())
		}
	}
	for _, half := range []string{"host", "dnp"} {
		p := s.Health[half].GetProcessor()
		for _, w := range []string{servicenet.BudgetWords(p), servicenet.RealtimeWords(p)} {
			if w != "" {
				notes = append(notes, "the "+half+" half "+w)
			}
		}
	}
	if known {
		_ = recoveries.Flush()
	}
	for _, n := range notes {
		b.WriteString(n + "\n")
	}
	if known || len(notes) > 0 {
		b.WriteString("\n")
	}
	if !tested {
		return
	}
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "HALF\tMODULE\tSELF-TEST\tAGE\tLATENCY\tUSUAL\tTESTS\tFAULTS")
	for _, half := range []string{"host", "dnp"} {
		for _, m := range s.Health[half].GetTests() {
			_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", half, m.GetModule(), m.GetState(),
				roundNs(uint64(m.GetAgeMs())*uint64(time.Millisecond)),
				micros(m.GetLatencyUs()), micros(m.GetLearnedUs()), m.GetTests(), selfTestFaults(m))
		}
	}
	_ = t.Flush()
	b.WriteString("\n")
}

func daemonSays(r *lofamov1.RecoveryStatus) string {
	if r.GetState() == lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED {
		return "-"
	}
	return strings.ReplaceAll(r.GetState().String(), "_", " ")
}

func restartText(r *lofamov1.RecoveryStatus) string {
	if r.GetBudget() == 0 {
		return fmt.Sprint(r.GetRestarts())
	}
	return fmt.Sprintf("%d (%d of %d within %s)", r.GetRestarts(), r.GetInWindow(), r.GetBudget(),
		time.Duration(r.GetWindowMs())*time.Millisecond)
}

func wentOn(r *lofamov1.RecoveryStatus) string {
	switch r.GetResumption() {
	case lofamov1.Resumption_RESUMED:
		return "where it was"
	case lofamov1.Resumption_COLD:
		return "cold, its copy: " + r.GetCold()
	default:
		return "-"
	}
}

func micros(us uint32) string {
	if us == 0 {
		return "-"
	}
	return roundNs(uint64(us) * uint64(time.Microsecond)).String()
}

// selfTestFaults lists past and present faults of a self-test.
func selfTestFaults(t *lofamov1.SelfTest) string {
	var parts []string
	for _, f := range []struct {
		n    uint64
		name string
	}{{t.GetLost(), "lost"}, {t.GetAltered(), "altered"}, {t.GetDoubled(), "doubled"}, {t.GetLate(), "late"}} {
		if f.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", f.n, f.name))
		}
	}
	if t.GetWhy() != "" {
		parts = append(parts, t.GetWhy())
	}
	if t.GetProving() {
		parts = append(parts, "has yet to pass since the restart")
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// String describes the copy in words.
func (c CopyStatus) String() string {
	s := c.Path
	if c.Path == "" {
		return "none"
	}
	if c.Failing {
		s += " FAILS: a restart would begin cold"
	} else {
		s += fmt.Sprintf(", %d reports", c.Reports)
	}
	if c.Cold != "" {
		s += "; this half began cold, its copy: " + c.Cold
	}
	return s
}
