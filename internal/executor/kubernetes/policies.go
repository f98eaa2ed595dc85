package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
)

// PolicyAccepted is the condition of a FaultPolicy. It is True if the policy in force is that of the object.
const PolicyAccepted = "Accepted"

// policiesEvery is the shortest interval between two passes, and policiesLook the longest. A pass commits at most once.
const policiesEvery, policiesLook = time.Second, 10 * time.Second

const (
	// maxPolicies is the number of objects that the copy holds: more than there may be policies.
	maxPolicies = 250
	// maxPolicyText bounds the message of a condition, in bytes.
	maxPolicyText = 1000
)

// FaultPolicy is an object that asks for a policy.
type FaultPolicy struct {
	Name  string
	Spec  json.RawMessage
	Large bool // too large to be read
}

// PolicyStanding is the state of the policy that an object asks for.
type PolicyStanding struct {
	Accepted bool
	Reason   string // of the condition
	Message  string
	Mode     string // of the policy in force; "": none is in force
	Version  uint64
	Fired    time.Time // when its last response began; zero: unknown
}

// FaultPolicyStatus is the status of a FaultPolicy.
type FaultPolicyStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Mode               string             `json:"mode,omitempty"`
	Version            uint64             `json:"version,omitempty"`
	LastFired          metav1.Time        `json:"lastFired,omitzero"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// KeepPolicies reconciles the policies that come from Kubernetes with the objects, in at most one commit. It withdraws policies
// without an object only if the list is complete. It returns the standing of each object by name, without those whose change is
// still to come; more reports that there are such changes.
type KeepPolicies func(ctx context.Context, objects []FaultPolicy, complete bool) (standing map[string]PolicyStanding, more bool, err error)

// Policies takes the policies of FaultPolicy objects. Only the leader runs it.
type Policies struct {
	keep     KeepPolicies
	r        *resource
	log      *slog.Logger
	*workers // that write status
}

// NewPolicies returns the follower of all FaultPolicy objects in the configured namespace.
func NewPolicies(cfg config.KubernetesObjects, keep KeepPolicies, log *slog.Logger) (*Policies, error) {
	c, err := connectObjects(cfg)
	if err != nil {
		return nil, err
	}
	return newPolicies(cfg, c, keep, log), nil
}

func newPolicies(cfg config.KubernetesObjects, c *client, keep KeepPolicies, log *slog.Logger) *Policies {
	r := newResource(c, cfg.Namespace, "faultpolicies", "FaultPolicy", "", maxPolicies, log)
	return &Policies{keep: keep, r: r, log: log, workers: newWorkers()}
}

// Run follows the objects until ctx ends, with follow in a goroutine of its own. A replica that leads again runs it again.
func (p *Policies) Run(ctx context.Context) {
	p.r.reset()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.r.follow(ctx)
	}()
	defer func() { <-done }()
	defer p.stop()
	for ctx.Err() == nil {
		now := time.Now()
		if more := p.pass(ctx, now); !more {
			p.idle(ctx, p.failing.look(now, policiesLook), nil, p.r.changed)
		}
		executor.Wait(ctx, policiesEvery)
	}
}

// pass reconciles policies with objects, and begins to write the status of objects. It waits for no write, so that withdrawals do not wait.
// It reports whether the next pass should follow at once. An API server that does not answer leaves the copy of the objects unchanged, and
// so all policies.
func (p *Policies) pass(ctx context.Context, now time.Time) (more bool) {
	p.settleAll(ctx)
	have, over, synced := p.r.all()
	if !synced {
		return false
	}
	var list []FaultPolicy
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if o := have[name]; o.Metadata.DeletionTimestamp == nil { // if somebody deletes it, a finalizer keeps no policy in force
			list = append(list, FaultPolicy{Name: name, Spec: o.Spec, Large: o.large})
		}
	}
	standing, more, keepErr := p.keep(ctx, list, !over)
	if ctx.Err() != nil {
		return false
	}
	waiting := p.start(ctx, p.pending(have, standing, now), now)
	var overErr error
	if over {
		overErr = fmt.Errorf("there are more than %d FaultPolicy objects: some have no effect, and no policy is withdrawn", maxPolicies)
	}
	if news := p.failing.news(keepErr, overErr); len(news) > 0 {
		p.log.Warn("apply FaultPolicy objects: failed, retrying", "objects", len(p.failing.of), "err", listed(news))
	}
	return more || waiting
}

// pending returns a change for each object whose status differs from its standing, the least recently changed first.
func (p *Policies) pending(have map[string]object, standing map[string]PolicyStanding, now time.Time) (out []change) {
	needed, wanted := map[string]bool{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(standing)) {
		o := have[name]
		want, differs := pendingStatus(o, standing[name], now)
		differs = differs && !p.repeats(name, untimed(want), o.Metadata.ResourceVersion)
		wanted[name], needed[name] = true, differs
		if differs {
			out = append(out, change{name, func(ctx context.Context) (func(), error) {
				version, err := p.r.applyStatus(ctx, o, want)
				switch {
				case err == nil:
					return p.wrote(name, untimed(want), version), nil
				case apierrors.IsConflict(err), IsNotFound(err): // the watch brings the change
					return nil, nil
				default:
					return nil, err
				}
			}})
		}
	}
	p.keepOnly(needed, wanted)
	p.leastRecent(out)
	return out
}

// pendingStatus returns the wanted status of an object, and whether the present one differs.
func pendingStatus(have object, st PolicyStanding, now time.Time) (want FaultPolicyStatus, differs bool) {
	was := policyStatusOf(have.Status)
	want = wantedStatus(have, was, st, now)
	a, err := json.Marshal(was)
	b, err2 := json.Marshal(want)
	return want, err != nil || err2 != nil || string(a) != string(b)
}

// untimed returns a status without the time of its condition. An object that loses its condition would get another time at each pass.
func untimed(s FaultPolicyStatus) FaultPolicyStatus {
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return s
}

// maxAhead is how far the clocks of supervisors may differ.
const maxAhead = time.Minute

// policyStatusOf reads a status, without conditions of other types, which belong to others.
func policyStatusOf(part json.RawMessage) FaultPolicyStatus {
	var is FaultPolicyStatus
	if json.Unmarshal(part, &is) != nil {
		return FaultPolicyStatus{}
	}
	is.Conditions = slices.DeleteFunc(is.Conditions, func(c metav1.Condition) bool { return c.Type != PolicyAccepted })
	return is
}

// wantedStatus returns the status of an object. The time of its condition stays while the condition does. The time of the last response
// stays unless a later one is known, or it is in the future: somebody else has written it.
func wantedStatus(have object, was FaultPolicyStatus, st PolicyStanding, now time.Time) FaultPolicyStatus {
	c := metav1.Condition{
		Type: PolicyAccepted, Status: metav1.ConditionFalse, Reason: st.Reason, Message: cut(st.Message, maxPolicyText),
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)), ObservedGeneration: have.Metadata.Generation,
	}
	if st.Accepted {
		c.Status = metav1.ConditionTrue
	}
	if len(was.Conditions) == 1 && was.Conditions[0].Status == c.Status {
		c.LastTransitionTime = was.Conditions[0].LastTransitionTime
	}
	out := FaultPolicyStatus{ObservedGeneration: have.Metadata.Generation, Mode: st.Mode, Version: st.Version, LastFired: was.LastFired,
		Conditions: []metav1.Condition{c}}
	if out.LastFired.After(now.Add(maxAhead)) {
		out.LastFired = metav1.Time{}
	}
	if fired := metav1.NewTime(st.Fired.Truncate(time.Second)); !st.Fired.IsZero() && out.LastFired.Time.Before(fired.Time) {
		out.LastFired = fired
	}
	return out
}

// applyStatus writes the status of an object, unless somebody has changed it since, and returns the object's version. It adds no object to
// the copy: a late answer must not bring back a deleted one.
func (r *resource) applyStatus(ctx context.Context, o object, status any) (version string, _ error) {
	is, err := r.patch(ctx, o.Metadata.Name, "status", map[string]any{
		"apiVersion": objectsVersion, "kind": r.kind, "status": status,
		"metadata": map[string]any{"name": o.Metadata.Name, "resourceVersion": o.Metadata.ResourceVersion},
	})
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, there := r.objects[o.Metadata.Name]; there && was.Metadata.UID == is.Metadata.UID && is.newer(was) {
		r.objects[o.Metadata.Name] = is
	}
	return is.Metadata.ResourceVersion, nil
}
