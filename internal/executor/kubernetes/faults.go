package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
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
	missing map[string]time.Time // since when an object has been wanted that does not exist
	*workers
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
		missing: map[string]time.Time{}, workers: newWorkers()}
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
	defer f.stop()
	begin := time.Now()
	for ctx.Err() == nil {
		list, changed, ready := f.source()
		now := time.Now()
		if ready {
			f.pass(ctx, list, now, now.Sub(begin) < f.unknown)
		}
		f.idle(ctx, f.failing.look(now, faultsLook), changed, f.r.changed)
		executor.Wait(ctx, faultsEvery)
	}
}

// pass begins changes that bring the objects to the state of the incidents, as far as workers are free, and waits for none. In the
// beginning of a term it removes no object without an incident.
func (f *Faults) pass(ctx context.Context, list []Fault, now time.Time, beginning bool) {
	f.settleAll(ctx)
	have, over, synced := f.r.all()
	if !synced || ctx.Err() != nil {
		return
	}
	f.start(ctx, f.pending(have, list, now, beginning), now)
	f.report(over)
}

// pending returns the changes that are needed, in this order: new objects, the latest first; removals; all others, the least recently
// changed first. New objects come first so that neither a storm of changes nor hanging requests delay them.
func (f *Faults) pending(have map[string]object, list []Fault, now time.Time, beginning bool) []change {
	want := f.wanted(list, now)
	names, needed := map[string]bool{}, map[string]bool{}
	var fresh, gone, others []change
	for _, w := range want {
		names[w.Name] = true
		o, there := have[w.Name]
		if there {
			delete(f.missing, w.Name)
		} else if f.missing[w.Name].IsZero() {
			f.missing[w.Name] = now
		}
		switch do := f.change(w, o, there); {
		case do == nil:
		case there:
			others = append(others, change{w.Name, do})
		default:
			fresh = append(fresh, change{w.Name, do})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		known := slices.ContainsFunc(list, func(in Fault) bool { return in.Name == name })
		if o := have[name]; !names[name] && o.Metadata.DeletionTimestamp == nil && (known || !beginning) {
			gone = append(gone, change{name, f.removal(o)})
		}
	}
	slices.SortStableFunc(fresh, func(a, b change) int { return f.missing[b.name].Compare(f.missing[a.name]) })
	f.leastRecent(others)
	out := slices.Concat(fresh, gone, others)
	for _, c := range out {
		needed[c.name] = true
	}
	maps.DeleteFunc(f.missing, func(name string, _ time.Time) bool { return !names[name] })
	f.keepOnly(needed, names)
	return out
}

// report logs the reasons of failures that are not in the log yet.
func (f *Faults) report(over bool) {
	var err error
	if over {
		err = fmt.Errorf("there are more than %d Fault objects of cluster %s: somebody else makes them", f.r.most, f.cluster)
	}
	if news := f.failing.news(err); len(news) > 0 {
		f.log.Warn("Fault objects in Kubernetes are not up to date: trying again", "objects", len(f.failing.of), "err", listed(news))
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
func (f *Faults) change(w Fault, have object, there bool) func(context.Context) (func(), error) {
	if there && have.Metadata.DeletionTimestamp != nil {
		return nil // a finalizer holds it: a new one follows
	}
	spec, labels := FaultSpec{Cluster: f.cluster, Incident: w.Name}, map[string]string{clusterLabel: f.cluster}
	if w.Status.Node != "" {
		labels[nodeLabel] = w.Status.Node
	}
	if there && !sameJSON(have.Spec, spec) { // somebody else made it: a spec never changes
		return f.removal(have)
	}
	st := bounded(w.Status)
	identity, status := !there || !hasLabels(have, labels), !there || !sameStatus(have.Status, st)
	if there && f.repeats(w.Name, st, have.Metadata.ResourceVersion) || !identity && !status {
		return nil
	}
	return func(ctx context.Context) (_ func(), err error) {
		version := ""
		o := map[string]any{"apiVersion": objectsVersion, "kind": "Fault"}
		if identity {
			whole := maps.Clone(o)
			whole["metadata"], whole["spec"] = map[string]any{"name": w.Name, "labels": labels}, spec
			if version, err = f.r.apply(ctx, w.Name, "", whole); err != nil {
				return nil, err
			}
		}
		if status {
			o["metadata"], o["status"] = map[string]any{"name": w.Name}, st
			if version, err = f.r.apply(ctx, w.Name, "status", o); err != nil {
				return nil, err
			}
		}
		return f.wrote(w.Name, st, version), nil
	}
}

// removal returns a function that removes an object.
func (f *Faults) removal(o object) func(context.Context) (func(), error) {
	return func(ctx context.Context) (func(), error) { return nil, f.r.delete(ctx, o) }
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
