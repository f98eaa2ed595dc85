package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// Notifier is what the service needs of the executors that notify.
type Notifier struct {
	// Configured are the targets in the supervisors' configuration.
	Configured []ConfiguredTarget
	// Test sends a test message to a target. Its error says why the target does not accept the message.
	Test func(context.Context, notify.Target) error
}

// ConfiguredTarget is a target in the supervisors' configuration.
type ConfiguredTarget struct {
	Name   string
	Kinds  []response.Kind // of the steps that may name it
	URL    string
	Signed bool
}

// Notify tells the service of the targets of notifications.
func (r *Responses) Notify(n Notifier) { r.notifier = n }

// configured reports whether the configuration has a target.
func (r *Responses) configured(name string) bool {
	return slices.ContainsFunc(r.notifier.Configured, func(c ConfiguredTarget) bool { return c.Name == name })
}

// notifyKind returns the kind of the steps that notify targets of a format.
func notifyKind(f notify.Format) response.Kind {
	if f == notify.Alertmanager {
		return response.Alertmanager
	}
	return response.WebhookNotify
}

// targetNames returns a function that lists the targets which steps of a kind may name.
func (r *Responses) targetNames(set store.PolicySet) func(response.Kind) []string {
	return func(k response.Kind) []string {
		var out []string
		for _, c := range r.notifier.Configured {
			if slices.Contains(c.Kinds, k) {
				out = append(out, c.Name)
			}
		}
		for _, t := range set.Targets {
			if notifyKind(t.Format) == k && !slices.Contains(out, t.Name) {
				out = append(out, t.Name)
			}
		}
		slices.Sort(out)
		return out
	}
}

// policiesOf returns the names of the policies that AddNotifyTarget makes.
func policiesOf(target string) []string {
	return []string{"notify." + target, "notify-group." + target}
}

// notifyDocument is a policy that notifies a target of each incident and of its end. It waits as the shipped policies do.
const notifyDocument = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: %s}
spec:
  description: %s
  mode: enforce
  target: %s
  match: %s
  steps:
  - {name: tell, executor: %s, parameters: {%s}, timeout: 1m, retries: 10}
  undo: {onRecovery: true, after: 30s}
`

// notifyPolicies returns the policies that notify a target.
func notifyPolicies(t notify.Target) ([]*policy.Document, error) {
	const match = `fault.incident != "" && fault.duration >= duration("5s")`
	kind, parameters := notifyKind(t.Format), "target: "+quote(t.Name)
	if kind == response.Alertmanager {
		parameters += ", severity: critical"
	}
	names := policiesOf(t.Name)
	one := fmt.Sprintf(notifyDocument, names[0],
		"One message for each incident of a node or a part that is SICK or FAILED, and one at its end.",
		"Node", match+` && fault.state in ["SICK", "FAILED"]`, kind, parameters)
	group := fmt.Sprintf(notifyDocument, names[1], "One message for each incident of a row, plane, block or rack, and one at its end.",
		"Group", match, kind, parameters)
	return policy.Parse([]byte(one + "---" + group))
}

// quote writes a name that YAML would otherwise take for a number.
func quote(name string) string { return `"` + name + `"` }

// use is a policy in force that names a target.
type use struct {
	policy   string
	enforced bool
	kinds    []response.Kind // of the steps that name it
}

// uses returns the policies in force that name a target.
func (r *Responses) uses(set store.PolicySet, target string) []use {
	var out []use
	for _, p := range set.Policies {
		d, err := r.parsed.of(p)
		if err != nil {
			continue // it can begin nothing
		}
		u := use{policy: p.Name, enforced: d.Policy.Mode == response.Enforce}
		for _, s := range d.Policy.Steps {
			if s.Parameters["target"] == target {
				u.kinds = append(u.kinds, s.Kind)
			}
		}
		if len(u.kinds) > 0 {
			out = append(out, u)
		}
	}
	return out
}

// AddNotifyTarget implements the service.
func (r *Responses) AddNotifyTarget(ctx context.Context, req *lofamov1.AddNotifyTargetRequest) (*lofamov1.AddNotifyTargetResponse, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	format, ok := notifyFormats[cmp.Or(req.GetFormat(), lofamov1.NotifyFormat_NOTIFY_GENERIC)]
	if !ok {
		return nil, invalid("format", "given %v: want one of %s", req.GetFormat(), strings.Join(notifyFormatNames(), ", "))
	}
	t := notify.Target{Name: req.GetName(), URL: req.GetUrl(), Format: format, Secret: req.GetSecret()}
	if err := t.Validate(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return leadBy(ctx, r.s, func(ctx context.Context, by string) (*lofamov1.AddNotifyTargetResponse, error) {
		if err := roleOf(by, operators); err != nil {
			return nil, err
		}
		return r.addTarget(ctx, by, t)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.AddNotifyTargetResponse, error) {
		return lofamov1.NewResponseServiceClient(conn).AddNotifyTarget(ctx, req)
	})
}

func (r *Responses) addTarget(ctx context.Context, by string, t notify.Target) (*lofamov1.AddNotifyTargetResponse, error) {
	docs, err := notifyPolicies(t)
	if err != nil {
		return nil, fmt.Errorf("target %s: %w", t.Name, err)
	}
	out := &lofamov1.AddNotifyTargetResponse{}
	stored := store.StoredTarget{Target: t, By: by, At: time.Now()}
	var named []string // policies
	done, err := r.commit(ctx, by, func(set store.PolicySet, by string) (plan, error) {
		if r.configured(t.Name) {
			return plan{}, inConfiguration(t.Name)
		}
		_, out.Replaced = set.Target(t.Name)
		if n := len(set.Targets); n >= notify.MaxTargets && !out.GetReplaced() {
			return plan{}, status.Errorf(codes.FailedPrecondition, "targets: there are %d, which is the most: remove one first", n)
		}
		set.Targets = append(slices.DeleteFunc(slices.Clone(set.Targets), func(s store.StoredTarget) bool { return s.Name == t.Name }), stored)
		named = nil
		for _, u := range r.uses(set, t.Name) {
			named = append(named, u.policy)
		}
		p, err := r.planNotify(set, t, docs, by)
		p.targets = []store.StoredTarget{stored}
		return p, err
	})
	if err != nil {
		return nil, err
	}
	r.s.cfg.Logger.Info("target of notifications added", "by", by, "target", t.Name, "format", t.Format, "host", t.Host(), "url_fingerprint",
		t.Fingerprint())
	out.Changes = done.GetChanges()
	out.Target = protoTarget(stored)
	for _, c := range done.GetChanges() {
		named = append(named, c.GetName())
	}
	slices.Sort(named)
	out.Target.Policies = slices.Compact(named)
	return out, nil
}

// planNotify plans the policies that notify a target, unless an enforced policy names it already.
func (r *Responses) planNotify(set store.PolicySet, t notify.Target, docs []*policy.Document, by string) (plan, error) {
	named := false
	for _, u := range r.uses(set, t.Name) {
		fits := !slices.ContainsFunc(u.kinds, func(k response.Kind) bool { return k != notifyKind(t.Format) })
		if named = named || fits && u.enforced; !fits && !slices.Contains(policiesOf(t.Name), u.policy) {
			return plan{}, status.Errorf(codes.FailedPrecondition, "format: given %s: policy %s names target %s in a step of another kind: "+
				"change it first", t.Format, u.policy, t.Name)
		}
	}
	if named {
		return plan{}, nil
	}
	p, err := r.planApply(set, docs, by, time.Now())
	if err != nil {
		return plan{}, wrongDocuments(err)
	}
	return p, r.kept(set, p)
}

func inConfiguration(name string) error {
	return status.Errorf(codes.FailedPrecondition, "target %s: the supervisors' configuration has it (responses.executors.webhooks.targets): "+
		"want another name, or remove it there", name)
}

// noTarget refuses a target that does not exist.
func noTarget(set store.PolicySet, name string) error {
	var names []string
	for _, t := range set.Targets {
		names = append(names, t.Name)
	}
	return status.Errorf(codes.NotFound, "target %.63q: %v", name, response.NoTarget(names))
}

// ListNotifyTargets implements the service.
func (r *Responses) ListNotifyTargets(
	ctx context.Context, _ *lofamov1.ListNotifyTargetsRequest,
) (*lofamov1.ListNotifyTargetsResponse, error) {
	if err := r.parent(); err != nil {
		return nil, err
	}
	set, err := r.set(ctx)
	if err != nil {
		return nil, err
	}
	resp := &lofamov1.ListNotifyTargetsResponse{}
	for _, c := range r.notifier.Configured {
		t := notify.Target{URL: c.URL}
		resp.Targets = append(resp.Targets, &lofamov1.NotifyTarget{Name: c.Name, Format: lofamov1.NotifyFormat_NOTIFY_GENERIC, Host: t.Host(),
			Fingerprint: t.Fingerprint(), Signed: c.Signed, Configured: true})
	}
	for _, t := range set.Targets {
		if !r.configured(t.Name) {
			resp.Targets = append(resp.Targets, protoTarget(t))
		}
	}
	slices.SortFunc(resp.GetTargets(), func(a, b *lofamov1.NotifyTarget) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, t := range resp.GetTargets() {
		for _, u := range r.uses(set, t.GetName()) {
			t.Policies = append(t.Policies, u.policy)
		}
	}
	return resp, nil
}

// TestNotifyTarget implements the service.
func (r *Responses) TestNotifyTarget(
	ctx context.Context, req *lofamov1.TestNotifyTargetRequest,
) (*lofamov1.TestNotifyTargetResponse, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	return leadNow(ctx, r.s, changeTime, func(ctx context.Context, by string) (*lofamov1.TestNotifyTargetResponse, error) {
		if err := roleOf(by, operators); err != nil {
			return nil, err
		}
		var to notify.Target
		if _, err := r.s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) { // only the leader passes
			set, err := r.policies.PolicySet(ctx)
			if err != nil {
				return nil, storeUnread(err)
			}
			if r.configured(req.GetName()) {
				to = notify.Target{Name: req.GetName(), Format: notify.Generic}
				return nil, nil
			}
			t, is := set.Target(req.GetName())
			if to = t.Target; !is {
				return nil, noTarget(set, req.GetName())
			}
			return nil, nil
		}); err != nil {
			return nil, err
		}
		if err := r.notifier.Test(ctx, to); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "target %s: %v", to.Name, err)
		}
		return &lofamov1.TestNotifyTargetResponse{}, nil
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.TestNotifyTargetResponse, error) {
		return lofamov1.NewResponseServiceClient(conn).TestNotifyTarget(ctx, req)
	})
}

// RemoveNotifyTarget implements the service.
func (r *Responses) RemoveNotifyTarget(ctx context.Context, req *lofamov1.RemoveNotifyTargetRequest) (*lofamov1.RemoveNotifyTargetResponse,
	error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	return leadBy(ctx, r.s, func(ctx context.Context, by string) (*lofamov1.RemoveNotifyTargetResponse, error) {
		if err := roleOf(by, operators); err != nil {
			return nil, err
		}
		done, err := r.commit(ctx, by, func(set store.PolicySet, by string) (plan, error) { return r.planRemove(set, req.GetName(), by) })
		if err != nil {
			return nil, err
		}
		r.s.cfg.Logger.Info("target of notifications removed", "by", by, "target", req.GetName())
		return &lofamov1.RemoveNotifyTargetResponse{Changes: done.GetChanges()}, nil
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.RemoveNotifyTargetResponse, error) {
		return lofamov1.NewResponseServiceClient(conn).RemoveNotifyTarget(ctx, req)
	})
}

// planRemove plans the removal of a target with its policies.
func (r *Responses) planRemove(set store.PolicySet, name, by string) (plan, error) {
	if r.configured(name) {
		return plan{}, inConfiguration(name)
	}
	if _, is := set.Target(name); !is {
		return plan{}, noTarget(set, name)
	}
	var own []string
	for _, u := range r.uses(set, name) {
		if !slices.Contains(policiesOf(name), u.policy) {
			return plan{}, status.Errorf(codes.FailedPrecondition, "target %s: policy %s names it: change or delete the policy first",
				name, u.policy)
		}
		own = append(own, u.policy)
	}
	p, err := r.planDelete(set, own, by, time.Now())
	if err != nil {
		return plan{}, err
	}
	p.targets = []store.StoredTarget{{Target: notify.Target{Name: name}, Removed: true}}
	return p, r.kept(set, p)
}

var notifyFormats = map[lofamov1.NotifyFormat]notify.Format{
	lofamov1.NotifyFormat_NOTIFY_GENERIC: notify.Generic, lofamov1.NotifyFormat_NOTIFY_SLACK: notify.Slack,
	lofamov1.NotifyFormat_NOTIFY_TEAMS: notify.Teams, lofamov1.NotifyFormat_NOTIFY_ALERTMANAGER: notify.Alertmanager,
}

// notifyFormatNames lists the formats as the API names them.
func notifyFormatNames() []string {
	var out []string
	for f := range notifyFormats {
		out = append(out, f.String())
	}
	slices.Sort(out)
	return out
}

// protoTarget renders a stored target, without its URL and its secret.
func protoTarget(t store.StoredTarget) *lofamov1.NotifyTarget {
	out := &lofamov1.NotifyTarget{Name: t.Name, Host: t.Host(), Fingerprint: t.Fingerprint(), Signed: t.Secret != "", By: t.By,
		At: timestamppb.New(t.At)}
	for proto, f := range notifyFormats {
		if f == t.Format {
			out.Format = proto
		}
	}
	return out
}
