package halfcore

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/config"
)

// StateOf is the state that a field of a watchdog word stands for.
func StateOf(h watchdog.Health) fault.State {
	switch h {
	case watchdog.HealthNormal:
		return fault.Normal
	case watchdog.HealthSick:
		return fault.Sick
	default:
		return fault.Failed
	}
}

// HealthOf is the field for a state. No field has a word for unknown.
func HealthOf(s fault.State) watchdog.Health {
	switch s {
	case fault.Sick:
		return watchdog.HealthSick
	case fault.Failed:
		return watchdog.HealthBroken
	default:
		return watchdog.HealthNormal
	}
}

type ledgerKey struct {
	node      fault.NodeID
	component fault.Component
}

type ledgerEntry struct {
	ledgerKey
	state   fault.State
	kind    fault.Kind
	detail  string
	ended   bool
	why     string    // of Because
	told    string    // the last reported why
	whyAt   time.Time // until then another why is held
	since   time.Time
	at      time.Time // of the last change of state, kind or why
	changed bool
	held    bool
}

// WhyEvery is the shortest interval between two reports of a component in which only why changed. A self-test may
// find another fault each time, and on many nodes at once when all are busy: exactly then reports are expensive.
const WhyEvery = 2 * time.Second

// Ledger is one half's. Entries keep the order of their first statement, so that a digest reads
// the same every time.
type Ledger struct {
	entries []ledgerEntry
	index   map[ledgerKey]int
	changes int
	held    int // entries of which why alone has changed
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{index: map[ledgerKey]int{}} }

// State returns the stated state of a component, or 0 if there is none.
func (l *Ledger) State(node fault.NodeID, c fault.Component) fault.State {
	if i, ok := l.index[ledgerKey{node, c}]; ok {
		return l.entries[i].state
	}
	return 0
}

// Absent reports whether this half has stated that the node does not have the component.
func (l *Ledger) Absent(node fault.NodeID, c fault.Component) bool {
	i, ok := l.index[ledgerKey{node, c}]
	return ok && l.entries[i].kind == fault.KindAbsent
}

// Set states o; o.Age is the age of its first sign now. A different state or kind is a change, because the kind
// decides the weight of an observation. A new detail alone is no change, because details hold measured values.
func (l *Ledger) Set(now time.Time, o fault.Observation) { l.Because(now, o, "") }

// Because is Set for details that also name the fault. why is the part of the detail without measured values, and a
// different why is also a change. Otherwise new faults of a component that was already sick would never be reported.
// Such a change waits until the previous one is WhyEvery old. It is dropped if why is again the one reported last.
func (l *Ledger) Because(now time.Time, o fault.Observation, why string) {
	o.Detail = fault.Cut(o.Detail, fault.MaxDetail)
	k := ledgerKey{o.Node, o.Component}
	i, ok := l.index[k]
	if !ok {
		i = len(l.entries)
		l.index[k] = i
		l.entries = append(l.entries, ledgerEntry{ledgerKey: k})
	}
	e := &l.entries[i]
	e.detail, e.ended = o.Detail, o.Ended
	same := e.state == o.State && e.kind == o.Kind
	if same && e.why == why {
		return
	}
	e.at = now
	if e.why = why; same {
		if !e.held {
			e.held = true
			l.held++
		}
		return
	}
	e.state, e.kind, e.since, e.whyAt = o.State, o.Kind, now.Add(-o.Age), time.Time{}
	if !e.changed {
		e.changed = true
		l.changes++
	}
}

// Changes returns the changes since the last call, as of now, or nil if there are none. A component that changed back
// and forth has its present state.
func (l *Ledger) Changes(now time.Time) []fault.Observation {
	l.release(now)
	if l.changes == 0 {
		return nil
	}
	out := make([]fault.Observation, 0, l.changes)
	for i := range l.entries {
		if e := &l.entries[i]; e.changed {
			e.changed, e.told = false, e.why
			out = append(out, e.observation(now))
		}
	}
	l.changes = 0
	return out
}

// Forget drops the changes from before t, as if Changes had returned them.
func (l *Ledger) Forget(now, t time.Time) {
	l.release(now)
	for i := range l.entries {
		if e := &l.entries[i]; e.changed && e.at.Before(t) {
			e.changed, e.told = false, e.why
			l.changes--
		}
	}
}

// release turns held reasons into changes once they may be reported.
func (l *Ledger) release(now time.Time) {
	if l.held == 0 {
		return
	}
	for i := range l.entries {
		e := &l.entries[i]
		if !e.held || now.Before(e.whyAt) {
			continue
		}
		e.held = false
		l.held--
		if !e.changed && e.why != e.told {
			e.changed, e.whyAt = true, now.Add(WhyEvery)
			l.changes++
		}
	}
}

// NeedDigest reports whether changes contain a silence that is too old for supervisors to accept as a change. They ignore old changes
// because these may be replays, but accept any age in a digest. A new silence is that old if it is first reported when a link's grace
// period ends, or when the announced time of a neighbour's restart ends.
func NeedDigest(changes []fault.Observation, p config.Periods) bool {
	window := time.Duration(p.DigestMisses-1) * p.DigestPeriod // a digest period less than theirs: reports take time
	return slices.ContainsFunc(changes, func(o fault.Observation) bool { return o.Kind == fault.KindSilence && o.Age > window })
}

// Digest returns all known states and all absent components as of now. It leaves out other unknown ones, because a digest
// makes no statement about components that it does not mention. Changes stay pending until Changes takes them.
func (l *Ledger) Digest(now time.Time) []fault.Observation {
	out := make([]fault.Observation, 0, len(l.entries))
	for i := range l.entries {
		switch e := &l.entries[i]; {
		case e.state != fault.Unknown:
			out = append(out, e.observation(now))
		case e.kind == fault.KindAbsent: // the report of the change had the detail
			o := e.observation(now)
			o.Detail = ""
			out = append(out, o)
		}
	}
	return out
}

func (e *ledgerEntry) observation(now time.Time) fault.Observation {
	return fault.Observation{
		Node: e.node, Component: e.component, State: e.state, Kind: e.kind,
		Age: max(now.Sub(e.since), 0), Detail: e.detail, Ended: e.ended,
	}
}
