package view

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Health is a half's latest whole health report, and the time of the latest digest that confirmed it: unchanged
// digests omit the report.
type Health struct {
	Said             *lofamov1.HalfHealth // nil: no report yet; immutable
	At, Heard, OldAt time.Time
}

// render advances ages to now. Single events age from the whole report. Modules under constant test age from the
// latest confirmation.
func (h Health) render(now time.Time, d *lofamov1.DeliveryStatus) *lofamov1.HalfHealth {
	if h.Said == nil {
		return nil
	}
	out := proto.CloneOf(h.Said)
	since, heard := max(0, now.Sub(h.At)), max(0, now.Sub(h.Heard))
	if r := out.GetRecovery(); r != nil {
		if r.GetAgeNs() > 0 {
			r.AgeNs += uint64(since)
		}
		r.UntilMs -= uint32(min(int64(r.GetUntilMs()), since.Milliseconds()))
	}
	for _, t := range out.GetTests() {
		by := heard
		if t.GetState() == lofamov1.TestState_IDLE {
			by = since
		}
		t.AgeMs = uint32(min(int64(t.GetAgeMs())+by.Milliseconds(), 1<<32-1))
		t.Module = servicenet.ModuleName(t.GetNumber(), d)
	}
	out.AgeNs = min(out.GetAgeNs()+uint64(heard), uint64(servicenet.MaxAge))
	out.Old = Old(h.OldAt, now)
	return out
}

// starved returns the starved half of a node that is later than the other, or nil. A node that is FAILED, or whose
// reports are old, is not known to be starved.
func starved(n *lofamov1.Node) *lofamov1.Starved {
	var out *lofamov1.Starved
	for i, h := range []*lofamov1.HalfHealth{n.GetHostHealth(), n.GetDnpHealth()} {
		p := h.GetProcessor()
		if !p.GetStarved() || h.GetOld() || n.GetState() == lofamov1.State_FAILED || out != nil && p.GetLongestMs() <= out.GetLongestMs() {
			continue
		}
		out = &lofamov1.Starved{
			Half: [...]fault.Half{fault.HalfHost, fault.HalfDNP}[i].String(), LongestMs: p.GetLongestMs(), SharePermille: p.GetSharePermille(),
		}
	}
	return out
}

// HealthNotes describes the health of a node's halves as far as it concerns a component. A half without restarts and
// without test failures adds nothing.
func HealthNotes(e Entry, c fault.Component, now time.Time) []string {
	half, ok := e.Health[1], c == fault.ComponentDNP || c == fault.ComponentDNPCore
	if c == fault.ComponentNode {
		return append(kernelNotes(e, c), servicenet.MachineNotes(e.Health[0].Said)...)
	}
	if c == fault.ComponentHost {
		half, ok = e.Health[0], true
	}
	h := half.render(now, e.Delivery)
	if !ok || h == nil {
		return kernelNotes(e, c)
	}
	name := map[bool]string{true: "host", false: "DNP"}[c == fault.ComponentHost]
	out := kernelNotes(e, c)
	if r := h.GetRecovery(); r.GetRestarts() > 0 || r.GetReason() != "" || r.GetState() == lofamov1.RecoveryState_RESTARTING {
		out = append(out, "its daemon "+recoveryWords(r, name))
	}
	if c == fault.ComponentHost {
		out = append(out, servicenet.MachineNotes(e.Health[0].Said)...)
	}
	if p := h.GetProcessor(); p.GetStarved() {
		out = append(out, fmt.Sprintf("the %s half is starved of processor time: late by up to %d ms, for %d %% of the time", name,
			p.GetLongestMs(), p.GetSharePermille()/10))
	}
	if w := servicenet.BudgetWords(h.GetProcessor()); w != "" {
		out = append(out, fmt.Sprintf("the %s half %s", name, w))
	}
	var proving []string
	for _, t := range h.GetTests() {
		switch {
		case t.GetState() == lofamov1.TestState_FAILING:
			out = append(out, fmt.Sprintf("the %s half's self-test of %s fails: %s", name, t.GetModule(),
				cmp.Or(t.GetWhy(), "there was no room to say why")))
		case t.GetProving():
			proving = append(proving, t.GetModule())
		}
	}
	if len(proving) > 0 {
		out = append(out, fmt.Sprintf("since its restart the %s half has yet to pass the self-test of %s", name, strings.Join(proving, ", ")))
	}
	if h.GetOld() && len(out) > 0 {
		out = append(out, fmt.Sprintf("that is of %s ago, and may be otherwise by now", round(time.Duration(h.GetAgeNs()))))
	}
	return out
}

// PathNotes names the service interfaces that a node has lost, of the node and of its service network.
func PathNotes(e Entry, c fault.Component, now time.Time) []string {
	w := servicenet.LostPathsWords(servicenet.LostPaths(e.Delivery))
	if w == "" || Old(e.DeliveryOldAt, now) || c != fault.ComponentNode && c != fault.ComponentServiceNetwork {
		return nil
	}
	return []string{"it has " + w}
}

// kernelNotes says whether the kernel under a dead component is dead.
func kernelNotes(e Entry, c fault.Component) (out []string) {
	if w := e.KernelDead(c).Why; w != "" {
		out = append(out, w)
	}
	return out
}

// recoveryWords begin with the daemon's present or past action.
func recoveryWords(r *lofamov1.RecoveryStatus, half string) string {
	last := ""
	if r.GetAgeNs() > 0 {
		last = fmt.Sprintf(", the last %s ago", round(time.Duration(r.GetAgeNs())))
		if r.GetCause() != "" {
			last += ": " + r.GetCause()
		}
		if us := r.GetServingUs(); us > 0 {
			last += fmt.Sprintf(", serving again after %s", round(time.Duration(us)*time.Microsecond))
		}
	}
	times := fmt.Sprintf("%d times since the machine was booted", r.GetRestarts())
	if r.GetRestarts() == 1 {
		times = "once since the machine was booted"
	}
	switch r.GetState() {
	case lofamov1.RecoveryState_GIVEN_UP:
		return fmt.Sprintf("has given the %s half up: %s", half, cmp.Or(r.GetReason(), r.GetCause()))
	case lofamov1.RecoveryState_RESTARTING:
		return fmt.Sprintf("is restarting the %s half; before that it did so %s%s", half, times, last)
	default:
		return fmt.Sprintf("restarted the %s half %s%s", half, times, last)
	}
}

func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	default:
		return d.Round(100 * time.Microsecond)
	}
}
