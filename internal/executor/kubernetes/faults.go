package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
)

// FaultSpec identifies the incident of a Fault.
type FaultSpec struct {
	Cluster  string `json:"cluster"`
	Incident string `json:"incident"`
}

// FaultStatus is the state of an incident. It has no ages, only times, so that it changes only with the incident.
type FaultStatus struct {
	State         string             `json:"state,omitempty"`    // OPEN, RECOVERING or CLOSED
	Severity      string             `json:"severity,omitempty"` // CRITICAL or WARNING
	Component     string             `json:"component,omitempty"`
	Node          string             `json:"node,omitempty"`
	Peer          string             `json:"peer,omitempty"`
	Group         string             `json:"group,omitempty"`
	Fault         string             `json:"fault,omitempty"` // the component's worst state
	Cause         string             `json:"cause,omitempty"`
	Since         metav1.Time        `json:"since,omitzero"`
	Until         metav1.Time        `json:"until,omitzero"`
	Summary       string             `json:"summary,omitempty"`
	Runbook       string             `json:"runbook,omitempty"`
	Consequences  int                `json:"consequences,omitempty"`
	NotListed     int                `json:"notListed,omitempty"` // only in the object that counts the rest
	Witnesses     []string           `json:"witnesses,omitempty"`
	Evidence      []string           `json:"evidence,omitempty"`
	SingleWitness bool               `json:"singleWitness,omitempty"`
	Conditions    []metav1.Condition `json:"conditions,omitempty"`
}

// Fault is one incident for Kubernetes. Its name is the incident's ID.
type Fault struct {
	Name   string
	Status FaultStatus
	// Grave and Closed order the faults if there are too many: open before closed ones, then the gravest, then the oldest.
	Grave  int
	Closed time.Time // zero: open
}

// Conditions of a Fault.
const (
	FaultActive       = "Active"
	FaultAcknowledged = "Acknowledged"
)

// Limits of a Fault's texts, as in the custom resource definition.
const (
	maxFaultLines = 16
	maxFaultLine  = 512 // bytes
)

// Periods of the keeper of Faults.
const (
	// faultsEvery is the shortest interval between two passes, and faultsLook the longest.
	faultsEvery, faultsLook = 500 * time.Millisecond, 10 * time.Second
	// After faultsPass, a pass ends with its next change, unless that fails for the first time. The next pass does the rest, after the
	// objects of new incidents.
	faultsPass = 2 * time.Second
	// faultsUnknown is how long an object without an incident stays after the beginning of a term: this replica's copy of the
	// incidents may be behind that of the former leader.
	faultsUnknown = 10 * time.Second
)

// Faults keeps the Fault objects of a cluster. Only the leader runs it.
type Faults struct {
	cluster string
	most    int
	keep    time.Duration
	unknown time.Duration // faultsUnknown; shorter in tests
	source  func() (list []Fault, changed <-chan struct{}, ready bool)
	r       *resource
	log     *slog.Logger
	said    string
	failed  map[string]time.Time    // objects whose last change failed, and when
	written map[string]faultWritten // the last write of each object
	first   string                  // the object of the first error of the last pass that failed
	last    string                  // the object at which faultsPass ended the last pass; "" if it did not
}

// faultWritten is the last status written, and the object's resource version after that.
type faultWritten struct {
	status  FaultStatus
	version string
}

// NewFaults returns a keeper of the objects in the configured namespace. source returns all incidents in any order, a channel
// that the next change closes, and false if they are not known yet.
func NewFaults(cfg config.KubernetesObjects, cluster string,
	source func() (list []Fault, changed <-chan struct{}, ready bool), log *slog.Logger) (*Faults, error) {
	c, err := connectObjects(cfg)
	if err != nil {
		return nil, err
	}
	return newFaults(cfg.Filled(), c, cluster, source, log), nil
}

// connectObjects returns a client with the pace of custom resources.
func connectObjects(cfg config.KubernetesObjects) (*client, error) {
	k := Config{Kubeconfig: cfg.Kubeconfig, Context: cfg.Context}.Filled()
	k.QPS, k.Burst = objectsQPS, objectsBurst
	return connect(k)
}

func newFaults(cfg config.KubernetesObjects, c *client, cluster string,
	source func() (list []Fault, changed <-chan struct{}, ready bool), log *slog.Logger) *Faults {
	// Twice the number: others may have made some with our label, and all of them must go.
	r := newResource(c, cfg.Namespace, "faults", "Fault", clusterLabel+"="+cluster, 2*cfg.MaxFaults+objectsPage, log)
	return &Faults{cluster: cluster, most: cfg.MaxFaults, keep: cfg.KeepClosed.D(), unknown: faultsUnknown, source: source, r: r, log: log,
		failed: map[string]time.Time{}, written: map[string]faultWritten{}}
}

// Run keeps the objects until ctx ends, with follow in a goroutine of its own. It never blocks the source. A replica that leads again
// runs it again.
func (f *Faults) Run(ctx context.Context) {
	f.r.reset()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.r.follow(ctx)
	}()
	defer func() { <-done }()
	begin := time.Now()
	for ctx.Err() == nil {
		list, changed, ready := f.source()
		if !ready || !f.pass(ctx, list, time.Now(), time.Since(begin) < f.unknown) {
			look := time.NewTimer(faultsLook)
			select {
			case <-ctx.Done():
			case <-changed:
			case <-f.r.changed:
			case <-look.C:
			}
			look.Stop()
		}
		wait(ctx, faultsEvery)
	}
}

// pass brings the objects to the state of the incidents. In the beginning of a term it removes no object without an incident. It ends early
// after faultsPass, because its list of incidents is out of date by then, or when failures have cost twice the request timeout, because the
// API server may be dead. A 429, or no answer, counts as a whole timeout. more asks for the next pass without waiting for a change.
func (f *Faults) pass(ctx context.Context, list []Fault, now time.Time, beginning bool) (more bool) {
	have, over, synced := f.r.all()
	if !synced {
		return false
	}
	var firstErr error
	var lost time.Duration
	all, start := f.pending(have, list, now, beginning), time.Now()
	f.last = ""
	for _, c := range all {
		begin := time.Now()
		err := c.do(ctx)
		_, before := f.failed[c.name]
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			delete(f.failed, c.name)
			if time.Since(start) >= faultsPass {
				f.last, more = c.name, true
				break
			}
			continue
		}
		f.failed[c.name] = time.Now()
		if firstErr == nil {
			firstErr, f.first = err, c.name
		}
		if _, answered := errors.AsType[*apierrors.StatusError](err); answered && !busy(err) {
			lost += time.Since(begin)
		} else {
			lost += f.r.c.timeout
		}
		if lost >= 2*f.r.c.timeout || time.Since(start) >= faultsPass && before {
			more = !before // such changes come last
			break
		}
	}
	if over && firstErr == nil {
		firstErr = fmt.Errorf("there are more than %d Fault objects of cluster %s: somebody else makes them", f.r.most, f.cluster)
	}
	f.report(firstErr)
	return more
}

// faultChange brings one object to its wanted form, or removes it.
type faultChange struct {
	name string
	do   func(context.Context) error
}

// pending returns the changes of a pass: first new objects, because a storm of changes must not delay them, then removals, then all others,
// beginning after the object at which faultsPass ended the last pass. Objects whose last change failed come after all these, the earliest
// failure first, so that they delay no other for long.
func (f *Faults) pending(have map[string]object, list []Fault, now time.Time, beginning bool) []faultChange {
	want := f.wanted(list, now)
	names := map[string]bool{}
	for _, w := range want {
		names[w.Name] = true
	}
	var out, others []faultChange
	next := 0
	for _, w := range want {
		o, there := have[w.Name]
		switch do := f.change(w, o, there); {
		case do == nil:
		case there:
			others = append(others, faultChange{w.Name, do})
		default:
			out = append(out, faultChange{w.Name, do})
		}
		if w.Name == f.last {
			next = len(others)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		known := slices.ContainsFunc(list, func(in Fault) bool { return in.Name == name })
		if o := have[name]; !names[name] && o.Metadata.DeletionTimestamp == nil && (known || !beginning) {
			out = append(out, faultChange{name, func(ctx context.Context) error { return f.r.delete(ctx, o) }})
		}
	}
	out = slices.Concat(out, others[next:], others[:next])
	maps.DeleteFunc(f.written, func(name string, _ faultWritten) bool { return !names[name] })
	maps.DeleteFunc(f.failed, func(name string, _ time.Time) bool {
		return !slices.ContainsFunc(out, func(c faultChange) bool { return c.name == name })
	})
	slices.SortStableFunc(out, func(a, b faultChange) int { return f.failed[a.name].Compare(f.failed[b.name]) })
	return out
}

// report logs the first error of a pass, unless the last logged one differs only in the object's name.
func (f *Faults) report(err error) {
	if err == nil {
		if len(f.failed) == 0 {
			f.said = ""
		}
	} else if why := withoutName(err.Error(), f.first); why != f.said {
		f.said = why
		f.log.Warn("Fault objects in Kubernetes are not up to date: trying again", "err", err)
	}
}

// wanted returns the faults that have objects, at most f.most, and one more that counts the rest.
func (f *Faults) wanted(list []Fault, now time.Time) []Fault {
	list = slices.DeleteFunc(slices.Clone(list), func(in Fault) bool { return !in.Closed.IsZero() && now.Sub(in.Closed) > f.keep })
	slices.SortFunc(list, func(a, b Fault) int {
		if d := btoi(!a.Closed.IsZero()) - btoi(!b.Closed.IsZero()); d != 0 {
			return d
		}
		return cmp.Or(b.Grave-a.Grave, a.Status.Since.Compare(b.Status.Since.Time), cmp.Compare(a.Name, b.Name))
	})
	if len(list) <= f.most {
		return list
	}
	rest := list[f.most:]
	open := 0
	for _, in := range rest {
		if in.Closed.IsZero() {
			open++
		}
	}
	list = list[:f.most:f.most]
	if open > 0 {
		list = append(list, f.more(open, rest[0].Status.Since))
	}
	return list
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// more returns the object that counts the open incidents without one.
func (f *Faults) more(n int, since metav1.Time) Fault {
	sum := sha256.Sum256([]byte(f.cluster))
	return Fault{Name: "more-" + hex.EncodeToString(sum[:4]), Status: FaultStatus{
		State: "OPEN", NotListed: n, Since: since,
		Summary: fmt.Sprintf("%d more incidents are open, and have no object here: lofamoctl get incidents", n),
	}}
}

// change returns a function that brings an object to its wanted form, with one request for its identity and one for its status, each only
// if needed. It returns nil if nothing is needed.
func (f *Faults) change(w Fault, have object, there bool) func(context.Context) error {
	if there && have.Metadata.DeletionTimestamp != nil {
		return nil // a finalizer holds it: a new one follows
	}
	spec, labels := FaultSpec{Cluster: f.cluster, Incident: w.Name}, map[string]string{clusterLabel: f.cluster}
	if w.Status.Node != "" {
		labels[nodeLabel] = w.Status.Node
	}
	if there && !sameJSON(have.Spec, spec) { // somebody else made it: a spec never changes
		return func(ctx context.Context) error { return f.r.delete(ctx, have) }
	}
	st := bounded(w.Status)
	identity, status := !there || !hasLabels(have, labels), !there || !sameStatus(have.Status, st)
	last := f.written[w.Name]
	// A server that drops a field, as with an earlier definition, gets each status once.
	same := there && last.version == have.Metadata.ResourceVersion && reflect.DeepEqual(last.status, st)
	if same || !identity && !status {
		return nil
	}
	return func(ctx context.Context) error {
		o := map[string]any{"apiVersion": objectsVersion, "kind": "Fault"}
		if identity {
			whole := maps.Clone(o)
			whole["metadata"], whole["spec"] = map[string]any{"name": w.Name, "labels": labels}, spec
			if _, err := f.r.apply(ctx, w.Name, "", whole); err != nil {
				return err
			}
		}
		if !status {
			return nil
		}
		o["metadata"], o["status"] = map[string]any{"name": w.Name}, st
		version, err := f.r.apply(ctx, w.Name, "status", o)
		if err == nil {
			f.written[w.Name] = faultWritten{st, version}
		}
		return err
	}
}

func hasLabels(o object, want map[string]string) bool {
	for k, v := range want {
		if o.Metadata.Labels[k] != v {
			return false
		}
	}
	return true
}

// sameJSON reports whether a part of an object has that value.
func sameJSON[T any](part json.RawMessage, want T) bool {
	var is T
	return json.Unmarshal(part, &is) == nil && reflect.DeepEqual(is, want)
}

// sameStatus is sameJSON for a status, without conditions of other types, which belong to others.
func sameStatus(part json.RawMessage, want FaultStatus) bool {
	var is FaultStatus
	if json.Unmarshal(part, &is) != nil {
		return false
	}
	is.Conditions = slices.DeleteFunc(is.Conditions, func(c metav1.Condition) bool {
		return c.Type != FaultActive && c.Type != FaultAcknowledged
	})
	a, err := json.Marshal(is)
	b, err2 := json.Marshal(want)
	return err == nil && err2 == nil && string(a) == string(b)
}

// bounded cuts texts to the limits of the custom resource definition.
func bounded(s FaultStatus) FaultStatus {
	s.Summary = cut(s.Summary, maxFaultLine)
	lines := func(list []string) []string {
		var out []string
		for _, line := range list[:min(len(list), maxFaultLines)] {
			out = append(out, cut(line, maxFaultLine))
		}
		return out
	}
	s.Witnesses, s.Evidence = lines(s.Witnesses), lines(s.Evidence)
	return s
}
