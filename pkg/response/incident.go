package response

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of an incident's record.
const (
	MaxIncidentResponses = 16  // dispensable determines which
	maxNotified          = 16  // by one response
	maxNotifiedKey       = 128 // bytes
	maxIncidentResult    = 256 // bytes
	// maxIncidentRecords exceeds the number of incidents that the map keeps. Beyond it, records of ended incidents are
	// deleted.
	maxIncidentRecords = 2000
)

// IncidentRecord lists the responses to the faults of one incident. It is committed with the responses, and outlasts them, so
// that no leader repeats a notification of the incident.
type IncidentRecord struct {
	Incident  string             // id
	Responses []IncidentResponse // in the order in which they joined, at most MaxIncidentResponses
	Count     int                // of all; approximate if some are left out
}

// Key implements Record.
func (r *IncidentRecord) Key() string { return "incident/" + r.Incident }

// IncidentResponse is the part of a response that its incident shows.
type IncidentResponse struct {
	ID, Policy string
	Mode       Mode
	Target     Target
	Step       string // name of the next or running step, or of the last one
	Kind       Kind   // of this step
	State      State
	Since      time.Time // of the state and the step
	Result     string    // for people
	Closed     time.Time // zero: it is open
	Notified   []string  // notifications that an incident gets once: see notifications
	// Notice is the incident's notice when the response was proposed; 0 if the response belonged to another incident then: see
	// IncidentsChanged.Standing.
	Notice uint32
	Label  uint32 // notice of its alert: that of the incident in which the response was proposed
}

func (r *IncidentRecord) clone() *IncidentRecord {
	c := *r
	c.Responses = slices.Clone(r.Responses)
	return &c
}

func (r *IncidentRecord) of(id string) *IncidentResponse {
	if i := slices.IndexFunc(r.Responses, func(x IncidentResponse) bool { return x.ID == id }); i >= 0 {
		return &r.Responses[i]
	}
	return nil
}

// informs reports whether a step sends a message that an incident needs only once.
func informs(k Kind) bool { return k == Alertmanager || k == WebhookNotify || k == KubernetesEvent }

// NotificationKey names a notification by its kind and parameters. A long key is cut and ends with a hash. The key is
// "" for steps of other kinds, which every fault needs.
func NotificationKey(k Kind, parameters map[string]string) string {
	if !informs(k) {
		return ""
	}
	words := []string{string(k)}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		words = append(words, name+"="+parameters[name])
	}
	text := strings.ToValidUTF8(strings.Join(words, " "), "?")
	if len(text) <= maxNotifiedKey {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	end := " " + hex.EncodeToString(sum[:8])
	return fault.Cut(text, maxNotifiedKey-len(end)) + end
}

// notifications returns the notifications of a response that were sent. It leaves out those that failed or were undone,
// and unfinished ones: they may still fail, or never be repeated because their fault is no longer the root cause. A second
// notification is better than none.
func notifications(r *Response) (out []string) {
	for i := range r.Steps {
		s := &r.Steps[i]
		if key := NotificationKey(s.Kind, s.Parameters); key != "" && s.State == Acted && len(out) < maxNotified {
			out = append(out, key)
		}
	}
	return out
}

// standingOf returns the id of the incident that a fault belongs to, as its root cause or as a consequence; "": none is known.
func (e *Engine) standingOf(t Target) string {
	return cmp.Or(e.roots[t], e.cables[t].incident, e.parts[t])
}

// join adds a response to the record of its fault's incident. notice is the incident's notice if the response begins
// now, and otherwise 0. Its alert keeps the notice of a former incident.
func (e *Engine) join(r *Response, notice uint32) {
	id := e.standingOf(r.Target)
	if id == "" || e.joined[r.ID] == id {
		return
	}
	rec := e.incidents[id]
	if rec == nil {
		rec = &IncidentRecord{Incident: id}
		e.incidents[id] = rec
	}
	label := notice
	if old := e.incidents[e.joined[r.ID]]; old != nil { // merged into another incident, or split from it
		if x := old.of(r.ID); x != nil {
			label = x.Label
		}
		old.Responses = slices.DeleteFunc(old.Responses, func(x IncidentResponse) bool { return x.ID == r.ID })
		old.Count = max(old.Count-1, len(old.Responses))
		e.records[old.Key()] = old.clone()
	}
	e.joined[r.ID] = id
	if rec.of(r.ID) == nil {
		rec.Count++
		rec.Responses = append(rec.Responses,
			IncidentResponse{ID: r.ID, Policy: r.Policy, Mode: r.Mode, Target: r.Target, Notice: notice, Label: label})
	}
	e.note(r)
	if len(rec.Responses) > MaxIncidentResponses {
		at := e.dispensable(rec)
		rec.Responses = slices.Delete(rec.Responses, at, at+1)
		e.records[rec.Key()] = rec.clone()
	}
}

// dispensable returns the index of the response that a full record leaves out: the oldest of those whose loss does the least
// harm. The record remembers the notifications of an incident, so it first leaves out responses without any.
func (e *Engine) dispensable(rec *IncidentRecord) int {
	type sent struct {
		notice uint32
		n      int
	}
	compare := func(a, b sent) int { return cmp.Or(cmp.Compare(a.notice, b.notice), cmp.Compare(a.n, b.n)) }
	best, newest := map[string]sent{}, map[string]int{} // by policy
	for i := range rec.Responses {
		x := &rec.Responses[i]
		if s := (sent{x.Notice, len(x.Notified)}); s.n > 0 && compare(s, best[x.Policy]) >= 0 {
			best[x.Policy], newest[x.Policy] = s, i
		}
	}
	value := func(i int) int {
		x := &rec.Responses[i]
		switch {
		case len(x.Notified) == 0 && e.mayNotify(x.ID):
			return 4 // without its entry, its notification would be forgotten
		case len(x.Notified) > 0 && newest[x.Policy] == i:
			return 5
		case x.Label > 0 && e.alerts(x.ID):
			return 3 // without its entry, its alert would lose the notice
		case len(x.Notified) == 0:
			return 0
		case x.Closed.IsZero():
			return 2
		default:
			return 1
		}
	}
	at := 0
	for i := range rec.Responses {
		if value(i) < value(at) {
			at = i
		}
	}
	return at
}

// mayNotify reports whether an open response has yet to send a notification that its incident needs only once.
func (e *Engine) mayNotify(id string) bool {
	r := e.open[id]
	if r == nil || r.Mode != Enforce || r.rests() {
		return false
	}
	p := e.policyOf(r)
	return p != nil && p.Incidents && slices.ContainsFunc(r.Steps[r.Step:], func(s StepRecord) bool { return informs(s.Kind) })
}

// outlived reports whether a policy has replaced the version that a response belongs to, and notifies again of the fault that stands. This
// concerns only responses at rest that inform. Without incidents, a notification that succeeded is not repeated.
func (r *Response) outlived(p *Policy) bool {
	return r.Digest != p.Digest && r.rests() && (p.Incidents || r.State != Done) && r.onlyInforms()
}

// onlyInforms reports whether no step does more than inform.
func (r *Response) onlyInforms() bool {
	return !slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return !informs(s.Kind) })
}

// closeOutlived closes a response that its policy has outlived, unless it has to tell the end of its fault.
func (e *Engine) closeOutlived(r *Response) {
	if p := e.byName[r.Policy]; p != nil && r.outlived(p) && (!r.Undo.OnRecovery || r.toUndo() < 0) {
		e.becomeClosed(r)
	}
}

// retryNotifications retries the failed notifications to named targets that are new or changed since the last call. A leader's first call
// retries all of these, because its configuration may differ from that of the leader before.
func (e *Engine) retryNotifications() {
	failed := map[string]bool{}
	for id, r := range e.open {
		if r.State != Failed || !informs(r.Steps[r.Step].Kind) {
			continue
		}
		target := r.Steps[r.Step].Parameters["target"]
		if now, known := e.targets[target]; known && now != e.tried[target] {
			failed[id] = true
		}
	}
	for _, id := range e.sortedIDs(failed) {
		r := e.open[id]
		if act, err := e.retry(r); err == nil {
			e.sayOf(r, act, 0, "its target was added or changed")
			e.save(r)
			e.touched[id] = true
		}
	}
	e.tried = maps.Clone(e.targets)
}

// lacksTarget returns an error if the current step of a response names a target that does not exist: a retry would fail.
func (e *Engine) lacksTarget(r *Response) error {
	if r.Step == len(r.Steps) || e.targets == nil {
		return nil
	}
	name := r.Steps[r.Step].Parameters["target"]
	if _, known := e.targets[name]; name == "" || known {
		return nil
	}
	return fmt.Errorf("step %s: target %q: %w", r.Steps[r.Step].Name, name, NoTarget(slices.Sorted(maps.Keys(e.targets))))
}

// NoTarget says that a target does not exist, and which ones do.
func NoTarget(names []string) error {
	if len(names) == 0 {
		return errors.New("want the name of a target, and there is none: lofamoctl notify add adds one")
	}
	return fmt.Errorf("there is none of this name: want %s", fault.List(names))
}

// incidentOpen reports whether a notification must not tell yet that all is well: the incident of its response is OPEN. A response that
// also acts on the node undoes all when the node's own fault has ended.
func (e *Engine) incidentOpen(r *Response) bool {
	i := r.toUndo()
	return i >= 0 && r.Steps[i].Kind == WebhookNotify && r.onlyInforms() && e.opened[e.joined[r.ID]]
}

// alerts reports whether a response is open and may have an alert.
func (e *Engine) alerts(id string) bool {
	r := e.open[id]
	return r != nil && r.Mode == Enforce && slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Kind == Alertmanager })
}

// note writes the present state of a response into the record of its incident.
func (e *Engine) note(r *Response) {
	rec := e.incidents[e.joined[r.ID]]
	if rec == nil {
		return
	}
	x := rec.of(r.ID)
	if x == nil {
		return // left out
	}
	was := *x
	s := &r.Steps[min(r.Step, len(r.Steps)-1)]
	x.Step, x.Kind, x.State, x.Closed = s.Name, s.Kind, r.State, r.Closed
	x.Result = result(r)
	if p := e.policyOf(r); p != nil && p.Incidents {
		x.Notified = notifications(r)
	}
	if was.State != x.State || was.Step != x.Step || !was.Closed.Equal(x.Closed) {
		x.Since = e.now
	}
	e.records[rec.Key()] = rec.clone()
}

// result returns why a response waits or has failed, or else the executor's message about the last step.
func result(r *Response) string {
	text := r.Detail
	if r.Reason != 0 {
		text = r.Reason.String()
		if r.Detail != "" {
			text += ": " + r.Detail
		}
	}
	if text == "" {
		last := r.Step
		if last == len(r.Steps) || last > 0 && r.Steps[last].Attempt == 0 {
			last--
		}
		text = r.Steps[last].Detail
	}
	return fault.Cut(strings.ToValidUTF8(text, "?"), maxIncidentResult)
}

// covered reports whether a response's incident has already had the notification of a step, for another root cause or
// before its fault returned. The step then sends nothing. Policies may want several equal notifications of one root
// cause, such as a second one after an hour: the n-th is covered if another root cause has had n.
func (e *Engine) covered(r *Response, s *StepRecord) (incident string, covered bool) {
	key, p := NotificationKey(s.Kind, s.Parameters), e.policyOf(r)
	id := e.incidentOf(r.Target)
	if key == "" || s.Attempt > 0 || p == nil || !p.Incidents || id == "" || e.joined[r.ID] != id {
		return "", false
	}
	// A policy may have had several responses to one target. The one with the most notifications counts.
	type source struct {
		target Target
		policy string
	}
	own, of := 0, map[source]int{}
	for i := range e.incidents[id].Responses {
		x := &e.incidents[id].Responses[i]
		if x.Notice < e.standing[id] {
			continue // before the incident escalated
		}
		n := 0
		for _, k := range x.Notified {
			if k == key {
				n++
			}
		}
		if x.ID == r.ID || x.Target == r.Target && x.Closed.IsZero() && x.Policy != r.Policy {
			own += n
			continue
		}
		by := source{x.Target, x.Policy}
		of[by] = max(of[by], n)
	}
	had := map[Target]int{}
	for by, n := range of {
		if had[by.target] += n; had[by.target] > own {
			covered = true
		}
	}
	return id, covered
}

// becomeCovered skips a step whose notification the incident has already had. An alert then stands for this response
// too: it continues if the earlier response ends first.
func (e *Engine) becomeCovered(r *Response, s *StepRecord, incident string) {
	s.Ended, s.Changed = e.now, s.Kind == Alertmanager
	r.State, r.Reason, r.Detail = Waiting, 0, ""
	s.Detail = "incident " + incident + " has had this notification"
	e.becomeActed(r, s.Detail)
}

// renotify ends a response whose incident has escalated after somebody acknowledged it, so that its policy notifies
// again. It ends only responses that have done nothing but notify.
func (e *Engine) renotify(r *Response) {
	id, p := e.incidentOf(r.Target), e.policyOf(r)
	if r.State != Done || id == "" || e.joined[r.ID] != id || p == nil || !p.Incidents {
		return
	}
	x := e.incidents[id].of(r.ID)
	if x != nil && x.Notice < e.standing[id] && !slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return !informs(s.Kind) }) {
		e.becomeClosed(r)
	}
}

// restoreIncidents restores the records of incidents, and assigns the open responses to them again.
func (e *Engine) restoreIncidents(records []*IncidentRecord) {
	for _, rec := range records {
		e.incidents[rec.Incident] = rec.clone()
		for _, x := range rec.Responses {
			if e.open[x.ID] != nil && (e.joined[x.ID] == "" || e.standingOf(x.Target) == rec.Incident) {
				e.joined[x.ID] = rec.Incident
			}
		}
	}
	e.pruneIncidents()
}

// pruneIncidents deletes records of ended incidents beyond the bound: those that changed longest ago. It needs to
// know which incidents stand.
func (e *Engine) pruneIncidents() {
	over := len(e.incidents) - maxIncidentRecords
	if over <= 0 || !e.incidentsKnown {
		return
	}
	used := make(map[string]bool, len(e.open))
	for id := range e.open {
		used[e.joined[id]] = true
	}
	last := func(id string) (at time.Time) {
		for _, x := range e.incidents[id].Responses {
			at = fault.Later(at, x.Since)
		}
		return at
	}
	var ended []string
	for id := range e.incidents {
		if _, stands := e.standing[id]; !stands && !used[id] {
			ended = append(ended, id)
		}
	}
	slices.SortFunc(ended, func(a, b string) int { return cmp.Or(last(a).Compare(last(b)), strings.Compare(a, b)) })
	for _, id := range ended[:min(over, len(ended))] {
		e.release(e.incidents[id].Key())
		delete(e.incidents, id)
	}
}

// noticeOf returns the notice of a response's alert.
func (e *Engine) noticeOf(r *Response) uint32 {
	if rec := e.incidents[e.joined[r.ID]]; rec != nil {
		if x := rec.of(r.ID); x != nil {
			return x.Label
		}
	}
	return 0
}
