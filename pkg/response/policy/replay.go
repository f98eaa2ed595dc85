package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Recorded is an event and its time.
type Recorded struct {
	At    time.Time
	Event response.Event
}

// ReplayOptions configures a replay.
type ReplayOptions struct {
	Config      response.Config
	Policies    []*response.Policy
	Topology    response.TopologyChanged
	Supervisors []response.SupervisorInfo
	// Enforce makes policies act that only observe.
	Enforce bool
	// Approve lists subjects that approve every response at once.
	Approve []string
	// KernelDead is assumed of every FAILED node and half: recordings do not contain it. 0: unknown, as in a new cluster.
	KernelDead fault.KernelDead
	Took       time.Duration // duration of each step; 0 stands for 1 s
	Tail       time.Duration // how long the replay continues after the last event; 0 stands for 1 h
}

// ReplayReport is the result of a replay.
type ReplayReport struct {
	Start     time.Time // of the first event
	Decisions []response.Decision
	Open      []*response.Response // open at the end
	Breaker   response.Breaker     // at the end
	Most      int                  // maximum number of nodes under response at once
}

// maxReplaySteps limits a replay, in steps of the engine per event.
const maxReplaySteps = 1000

// replay is a replay in progress.
type replay struct {
	o       ReplayOptions
	e       *response.Engine
	now     time.Time
	wake    time.Time
	results []pending // by time
	boots   fault.Epoch
	report  ReplayReport
}

type pending struct {
	at    time.Time
	event response.Event
}

// firstEpoch is the initial boot epoch of every node.
const firstEpoch = 1

// token is the token of the replay's only leader.
const token = 1

// Replay runs recorded events through the engine of pkg/response, in the order of their times, to show the effect of
// policies: the requested and completed steps, and the refusals with their reasons.
//
// Nothing is carried out: every step succeeds after ReplayOptions.Took. Recordings do not contain the age of evidence, so
// evidence counts as fresh while its fault stands. Every node counts as booted before, and boots again as soon as it
// was reset. Every node counts as one that fences itself (node.fence). Whether a kernel died with a fault is unknown, unless
// ReplayOptions.KernelDead assumes it. The replay finds the incidents itself, with the
// rules and default periods of pkg/awareness.
func Replay(events []Recorded, o ReplayOptions) (ReplayReport, error) {
	if len(events) == 0 {
		return ReplayReport{}, errors.New("replay: given no events: want at least one")
	}
	e, err := response.New(o.Config)
	if err != nil {
		return ReplayReport{}, fmt.Errorf("replay: %w", err)
	}
	o.Took, o.Tail = cmp.Or(o.Took, time.Second), cmp.Or(o.Tail, time.Hour)
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b Recorded) int { return a.At.Compare(b.At) })
	r := &replay{o: o, e: e, report: ReplayReport{Start: events[0].At}}
	begin := r.report.Start.Add(-o.Config.Grace)
	led := response.Led{Token: token}
	for _, n := range o.Topology.Nodes {
		led.Epochs = append(led.Epochs, response.Booted{Node: n.ID, Epoch: firstEpoch})
	}
	for _, ev := range []response.Event{o.Topology, response.SupervisorsChanged{Supervisors: o.Supervisors},
		response.PoliciesChanged{Policies: r.policies()}, led} {
		r.step(begin, ev)
	}
	end := events[len(events)-1].At.Add(o.Tail)
	if events, err = withIncidents(events, &o, end); err != nil {
		return ReplayReport{}, fmt.Errorf("replay: %w", err)
	}
	for steps := 0; ; steps++ {
		if steps > maxReplaySteps*(len(events)+1) {
			return ReplayReport{}, fmt.Errorf("replay: %d steps for %d events: it does not come to rest", steps, len(events))
		}
		at, ev := r.next(&events)
		if ev == nil || at.After(end) {
			break
		}
		r.step(at, ev)
	}
	r.report.Open, r.report.Breaker = e.Responses(), e.Breaker()
	return r.report, nil
}

func (r *replay) policies() []*response.Policy {
	out := slices.Clone(r.o.Policies)
	for i, p := range out {
		if r.o.Enforce {
			c := *p
			c.Mode = response.Enforce
			out[i] = &c
		}
	}
	return out
}

// next returns the next input: at equal times an event, then a result, then the engine's own wake.
func (r *replay) next(events *[]Recorded) (at time.Time, ev response.Event) {
	if len(*events) > 0 {
		at, ev = (*events)[0].At, (*events)[0].Event
	}
	if len(r.results) > 0 && (ev == nil || r.results[0].at.Before(at)) {
		at, ev = r.results[0].at, r.results[0].event
	}
	if !r.wake.IsZero() && (ev == nil || r.wake.Before(at)) {
		return r.wake, response.Tick{}
	}
	switch {
	case ev == nil:
	case len(*events) > 0 && at.Equal((*events)[0].At):
		*events = (*events)[1:]
	default:
		r.results = r.results[1:]
	}
	return at, ev
}

// assumedWatchdog is the hardware watchdog of every node: recordings do not contain the nodes' own.
var assumedWatchdog = response.Watchdog{Armed: true, Timeout: 10 * time.Second, ContactWithin: 30 * time.Second, Boot: 1}

// step feeds an event to the engine, and answers its requests at once.
func (r *replay) step(at time.Time, ev response.Event) {
	r.now = at
	if f, ok := ev.(response.FaultChanged); ok {
		if f.Watchdog == (response.Watchdog{}) {
			f.Watchdog = assumedWatchdog
		}
		if f.State == fault.Failed && f.Component <= fault.ComponentDNP && f.KernelDead == 0 {
			f.KernelDead = r.o.KernelDead
		}
		ev = f
	}
	out := r.e.Step(at, ev)
	r.wake = out.Wake
	r.report.Decisions = append(r.report.Decisions, out.Decisions...)
	r.report.Most = max(r.report.Most, r.e.UnderResponse())
	for _, f := range out.Effects {
		done := at.Add(r.o.Took)
		if f.Kind.Traits().BootSettles {
			r.boots++
			r.results = append(r.results, pending{done, response.Booted{Node: f.Target.Node, Epoch: firstEpoch + r.boots}})
		}
		r.results = append(r.results, pending{done, response.Result{Attempt: f.Attempt, Outcome: response.Succeeded}})
	}
	for _, t := range out.Look {
		r.step(at, response.Seen{Target: t, Evidence: r.fresh(t)})
	}
	for _, d := range out.Decisions {
		if d.Reason != response.ReasonApproval {
			continue
		}
		for _, subject := range r.o.Approve {
			r.step(at, response.Asked{Subject: subject, Verb: response.Approve, Response: d.Response, Reason: "replay"})
		}
	}
}

// fresh returns the evidence of a fault, seen now.
func (r *replay) fresh(t response.Target) response.Evidence {
	ev, _ := r.e.Evidence(t)
	ev.At = r.now
	return ev
}

// replayLine is a line of a table: the same decision at one moment on different faults.
type replayLine struct {
	response.Decision // the first of them
	more              int
}

// lines groups equal decisions, in the order in which they began.
func (r ReplayReport) lines() []replayLine {
	type key struct {
		at                    int64
		act                   response.Act
		policy, step, subject string
		reason                response.Reason
		attempt               int
	}
	var out []replayLine
	index := map[key]int{}
	for _, d := range r.Decisions {
		k := key{d.At.UnixNano(), d.Act, d.Policy, d.Step, d.Subject, d.Reason, d.Attempt}
		if i, ok := index[k]; ok {
			out[i].more++
			continue
		}
		index[k] = len(out)
		out = append(out, replayLine{Decision: d})
	}
	return out
}

// Table formats a report for people.
func (r ReplayReport) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) } // Flush says what went wrong
	row("TIME", "WHAT", "POLICY", "FAULT", "STEP", "WHY")
	counts := map[response.Act]int{}
	for _, d := range r.lines() {
		counts[d.Act] += 1 + d.more
		what := d.Target.String()
		switch {
		case d.Target == (response.Target{}):
			what = ""
		case d.more > 0:
			what += fmt.Sprintf(" and %d more", d.more)
		}
		row(d.At.Sub(r.Start).String(), d.Act.String(), d.Policy, what, stepOf(d.Decision), why(d.Decision))
	}
	if err := w.Flush(); err != nil {
		return err.Error() // a builder accepts any input
	}
	breaker := "closed"
	if r.Breaker.Open {
		breaker = "open: " + r.Breaker.Detail
	}
	fmt.Fprintf(&b, "\nproposed %d, steps started %d, refused %d, put back %d; nodes under response at once: at most %d; breaker %s\n",
		counts[response.Proposes], counts[response.Starts], counts[response.Refuses], counts[response.StartsUndo], r.Most, breaker)
	return trimmed(b.String())
}

// trimmed removes trailing blanks from lines.
func trimmed(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func stepOf(d response.Decision) string {
	if d.Step == "" || d.Act == response.Proposes || d.Act == response.Expires {
		return ""
	}
	s := fmt.Sprintf("%s (%s)", d.Step, d.Kind)
	if d.Attempt > 1 {
		s += fmt.Sprintf(" attempt %d", d.Attempt)
	}
	return s
}

func why(d response.Decision) string {
	var parts []string
	if d.Reason != 0 {
		parts = append(parts, d.Reason.String())
	}
	if d.Subject != "" {
		parts = append(parts, "by "+d.Subject)
	}
	if d.Detail != "" {
		parts = append(parts, d.Detail)
	}
	return strings.Join(parts, ": ")
}
