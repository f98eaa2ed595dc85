package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// maxErrorText bounds the errors about invalid documents, in bytes: they travel in a trailer.
const maxErrorText = 4 << 10

// documents caches descriptions of stored policies: compiling a condition is expensive, and every change reads all
// policies in force. It is safe for concurrent use.
type documents struct {
	mu  sync.Mutex
	all map[version]parsed
}

// version is one version of a policy. A restored store may have another document under the same number.
type version struct {
	name   string
	number uint64
	json   [sha256.Size]byte
}

type parsed struct {
	doc *policy.Document // nil: unreadable
	err error
}

// maxParsed bounds the cache: all policies that may be in force, and some former ones.
const maxParsed = 3 * policy.MaxDocuments

// of returns the document of a stored policy, without its text and its compiled condition. A document written by an older or
// newer version may be unreadable.
func (d *documents) of(p store.StoredPolicy) (*policy.Document, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := version{p.Name, p.Version, sha256.Sum256(p.JSON)}
	if is, ok := d.all[key]; ok {
		return is.doc, is.err
	}
	var is parsed
	switch docs, err := policy.Parse(p.JSON); {
	case err != nil:
		is.err = err
	case len(docs) != 1 || docs[0].Name != p.Name:
		is.err = fmt.Errorf("policy %s: the document that is stored is another one", p.Name)
	default:
		is.doc = description(docs[0])
	}
	if d.all == nil || len(d.all) >= maxParsed {
		d.all = map[version]parsed{}
	}
	maps.DeleteFunc(d.all, func(v version, _ parsed) bool { return v.name == p.Name && v.number+store.MaxFormer < p.Version })
	d.all[key] = is
	return is.doc, is.err
}

// description returns a document without its text and its compiled condition, which takes some 50 kB.
func description(d *policy.Document) *policy.Document {
	short, bare := *d, *d.Policy
	bare.Match = nil
	short.JSON, short.Policy = nil, &bare
	return &short
}

// plan is a validated change of policies and targets.
type plan struct {
	changes []*lofamov1.PolicyChange
	stored  []store.StoredPolicy
	targets []store.StoredTarget
	events  []*lofamov1.Event
}

// change adds the change of one policy. doc is nil for a withdrawn policy.
func (p *plan) change(set store.PolicySet, docs *documents, name string, doc *policy.Document, by string, now time.Time) {
	was, before := set.Of(name)
	c := &lofamov1.PolicyChange{Name: name, Version: set.Next(name)}
	var old *policy.Document
	if before {
		old, _ = docs.of(was) // an unreadable document counts as different
		c.From = modeOf(old)
	}
	c.To = modeOf(doc)
	switch {
	case doc == nil:
		c.Kind = lofamov1.PolicyChangeKind_POLICY_DELETED
	case !before:
		c.Kind = lofamov1.PolicyChangeKind_POLICY_CREATED
	case string(was.JSON) == string(doc.JSON):
		c.Kind, c.Version = lofamov1.PolicyChangeKind_POLICY_UNCHANGED, was.Version
	case old != nil && old.Policy.Digest == doc.Policy.Digest:
		c.Kind = lofamov1.PolicyChangeKind_POLICY_RELABELLED
	default:
		c.Kind = lofamov1.PolicyChangeKind_POLICY_REPLACED
	}
	p.changes = append(p.changes, c)
	if c.GetKind() == lofamov1.PolicyChangeKind_POLICY_UNCHANGED {
		return
	}
	s := store.StoredPolicy{Name: name, By: by, At: now, Deleted: doc == nil}
	if doc != nil {
		s.JSON = doc.JSON
	}
	p.stored = append(p.stored, s)
	p.events = append(p.events, view.PolicyEvent(name, changeText(c), doc == nil, by, now))
}

// changeText describes the change of a policy.
func changeText(c *lofamov1.PolicyChange) string {
	mode := modeText(c.GetTo())
	switch c.GetKind() {
	case lofamov1.PolicyChangeKind_POLICY_CREATED:
		return fmt.Sprintf("policy %s put in force, %s, version %d", c.GetName(), mode, c.GetVersion())
	case lofamov1.PolicyChangeKind_POLICY_DELETED:
		return fmt.Sprintf("policy %s withdrawn", c.GetName())
	case lofamov1.PolicyChangeKind_POLICY_RELABELLED:
		return fmt.Sprintf("policy %s: labels or annotations changed, version %d", c.GetName(), c.GetVersion())
	default:
	}
	if c.GetFrom() != c.GetTo() {
		mode = modeText(c.GetFrom()) + " before, " + mode + " now"
	}
	return fmt.Sprintf("policy %s replaced, %s, version %d", c.GetName(), mode, c.GetVersion())
}

func modeText(m lofamov1.PolicyMode) string {
	if m == lofamov1.PolicyMode_POLICY_MODE_UNSPECIFIED {
		return "of unknown mode"
	}
	return modeNames[m].String()
}

var modeNames = map[lofamov1.PolicyMode]response.Mode{lofamov1.PolicyMode_OBSERVE_ONLY: response.ObserveOnly,
	lofamov1.PolicyMode_ENFORCE: response.Enforce}

func modeOf(d *policy.Document) lofamov1.PolicyMode {
	if d == nil {
		return lofamov1.PolicyMode_POLICY_MODE_UNSPECIFIED
	}
	return protoMode(d.Policy.Mode)
}

func protoMode(m response.Mode) lofamov1.PolicyMode {
	for p, is := range modeNames {
		if is == m {
			return p
		}
	}
	return lofamov1.PolicyMode_POLICY_MODE_UNSPECIFIED
}

// newSpec reports whether a change puts another spec in force.
func newSpec(k lofamov1.PolicyChangeKind) bool {
	return k != lofamov1.PolicyChangeKind_POLICY_UNCHANGED && k != lofamov1.PolicyChangeKind_POLICY_RELABELLED
}

// planApply returns the changes that put documents in force.
func (r *Responses) planApply(set store.PolicySet, docs []*policy.Document, by string, now time.Time) (plan, error) {
	var p plan
	var fresh []*policy.Document // documents with a new spec: CheckNew may refuse a spec that an earlier version stored
	together := slices.Clone(docs)
	names := map[string]bool{}
	for _, d := range docs {
		if n := len(d.JSON); n > store.MaxPolicyJSON {
			return p, fmt.Errorf("policy %s: given %d bytes: want at most %d", d.Name, n, store.MaxPolicyJSON)
		}
		names[d.Name] = true
		p.change(set, &r.parsed, d.Name, d, by, now)
		c := p.changes[len(p.changes)-1]
		c.Warnings = d.Policy.Warnings(r.sources)
		if newSpec(c.GetKind()) {
			fresh = append(fresh, d)
		}
	}
	for _, s := range set.Policies {
		if d, err := r.parsed.of(s); err == nil && !names[s.Name] {
			together = append(together, d)
		}
	}
	if err := errors.Join(policy.CheckNew(fresh), policy.CheckTargets(fresh, r.targetNames(set))); err != nil {
		return p, err
	}
	return p, policy.CheckSet(together)
}

// planDelete returns the changes that withdraw policies.
func (r *Responses) planDelete(set store.PolicySet, names []string, by string, now time.Time) (plan, error) {
	var p plan
	var missing []string
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		if _, ok := set.Of(name); !ok {
			missing = append(missing, fmt.Sprintf("%.63q", name))
			continue
		}
		p.change(set, &r.parsed, name, nil, by, now)
	}
	if len(missing) > 0 {
		return p, status.Errorf(codes.NotFound, "names: there is no policy %s: nothing was changed", strings.Join(missing, ", "))
	}
	return p, nil
}

// expect refuses policies whose versions differ from those that the caller has seen.
func expect(set store.PolicySet, names []string, expected map[string]uint64) error {
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		if !slices.Contains(names, name) {
			return invalid("expected", "given %.63q: want names of policies that the request is about", name)
		}
		is, _ := set.Of(name) // version 0: none
		if want := expected[name]; is.Version != want {
			return status.Errorf(codes.Aborted, "policy %s: it is at version %d and %d is expected, where 0 is none: nothing was changed",
				name, is.Version, want)
		}
	}
	return nil
}

// wrongDocuments returns the caller's error for invalid documents.
func wrongDocuments(err error) error {
	text := err.Error()
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + " … (lofamoctl policy check says all)"
	}
	return status.Error(codes.InvalidArgument, text)
}

// CheckPolicies implements the service.
func (r *Responses) CheckPolicies(ctx context.Context, req *lofamov1.CheckPoliciesRequest) (*lofamov1.CheckPoliciesResponse, error) {
	if err := r.parent(); err != nil {
		return nil, err
	}
	by, err := subject(ctx)
	if err != nil {
		return nil, err
	}
	set, err := r.set(ctx)
	if err != nil {
		return nil, err
	}
	end, err := r.checks.begin(ctx, by)
	if err != nil {
		return nil, err
	}
	defer end()
	docs, err := policy.ParseWhile([]byte(req.GetDocuments()), ctx.Err)
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return &lofamov1.CheckPoliciesResponse{Errors: errorsOf(err)}, nil
	}
	p, err := r.planApply(set, docs, "", time.Time{})
	if err == nil {
		err = r.kept(set, p)
	}
	if err != nil {
		if st, is := status.FromError(err); is {
			err = errors.New(st.Message())
		}
		return &lofamov1.CheckPoliciesResponse{Errors: errorsOf(err)}, nil
	}
	r.countOpen(ctx, p.changes)
	return &lofamov1.CheckPoliciesResponse{Changes: p.changes}, nil
}

// ApplyPolicies implements the service.
func (r *Responses) ApplyPolicies(ctx context.Context, req *lofamov1.ApplyPoliciesRequest) (*lofamov1.ApplyPoliciesResponse, error) {
	if err := r.parent(); err != nil {
		return nil, err
	}
	docs, err := policy.Parse([]byte(req.GetDocuments()))
	if err != nil {
		return nil, wrongDocuments(err)
	}
	var names []string
	for _, d := range docs {
		names = append(names, d.Name)
	}
	prepare := func(set store.PolicySet, by string) (plan, error) {
		if err := expect(set, names, req.GetExpected()); err != nil {
			return plan{}, err
		}
		p, err := r.planApply(set, docs, by, time.Now())
		if err != nil {
			return plan{}, wrongDocuments(err)
		}
		return p, r.kept(set, p)
	}
	changes, revision, err := r.change(ctx, req.GetDryRun(), prepare,
		func(ctx context.Context, c lofamov1.ResponseServiceClient) (changed, error) {
			return c.ApplyPolicies(ctx, req)
		})
	if err != nil {
		return nil, err
	}
	return &lofamov1.ApplyPoliciesResponse{Changes: changes, Revision: revision}, nil
}

// maxPolicyNames bounds the names of one request.
const maxPolicyNames = policy.MaxDocuments

// DeletePolicies implements the service.
func (r *Responses) DeletePolicies(ctx context.Context, req *lofamov1.DeletePoliciesRequest) (*lofamov1.DeletePoliciesResponse, error) {
	if err := r.parent(); err != nil {
		return nil, err
	}
	if n := len(req.GetNames()); n == 0 || n > maxPolicyNames {
		return nil, invalid("names", "given %d: want 1 to %d", n, maxPolicyNames)
	}
	prepare := func(set store.PolicySet, by string) (plan, error) {
		if err := expect(set, req.GetNames(), req.GetExpected()); err != nil {
			return plan{}, err
		}
		p, err := r.planDelete(set, req.GetNames(), by, time.Now())
		if err != nil {
			return plan{}, err
		}
		return p, r.kept(set, p)
	}
	changes, revision, err := r.change(ctx, req.GetDryRun(), prepare,
		func(ctx context.Context, c lofamov1.ResponseServiceClient) (changed, error) {
			return c.DeletePolicies(ctx, req)
		})
	if err != nil {
		return nil, err
	}
	return &lofamov1.DeletePoliciesResponse{Changes: changes, Revision: revision}, nil
}

// changed is the common part of the answers to changes.
type changed interface {
	GetChanges() []*lofamov1.PolicyChange
	GetRevision() uint64
}

// change makes the leader commit the result of prepare for the policies at that time. A dry run only returns it.
func (r *Responses) change(ctx context.Context, dry bool, prepare func(store.PolicySet, string) (plan, error),
	ask func(context.Context, lofamov1.ResponseServiceClient) (changed, error),
) ([]*lofamov1.PolicyChange, uint64, error) {
	if dry {
		set, err := r.set(ctx)
		if err != nil {
			return nil, 0, err
		}
		p, err := prepare(set, "")
		if err != nil {
			return nil, 0, err
		}
		r.countOpen(ctx, p.changes)
		return p.changes, set.Revision, nil
	}
	resp, err := leadBy(ctx, r.s, func(ctx context.Context, by string) (changed, error) {
		if err := roleOf(by, operators); err != nil {
			return nil, err
		}
		return r.commit(ctx, by, prepare)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (changed, error) {
		return ask(ctx, lofamov1.NewResponseServiceClient(conn))
	})
	if err != nil {
		return nil, 0, err
	}
	return resp.GetChanges(), resp.GetRevision(), nil
}

// commit writes the result of prepare for the policies, while this replica leads.
func (r *Responses) commit(ctx context.Context, by string, prepare func(store.PolicySet, string) (plan, error)) (changed, error) {
	var p plan
	revision, err := r.s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) {
		set, err := r.policies.PolicySet(ctx)
		if err != nil {
			return nil, storeUnread(err)
		}
		if p, err = prepare(set, by); err != nil || len(p.stored)+len(p.targets) == 0 {
			return nil, err
		}
		w, err := set.Write(p.stored, p.targets...)
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		w.Events = p.events
		return r.fits(w, len(p.stored))
	})
	if err != nil {
		return nil, err
	}
	r.countOpen(ctx, p.changes)
	for _, c := range p.changes {
		r.s.cfg.Logger.Info("policy applied or withdrawn", "by", by, "policy", c.GetName(), "change", c.GetKind(), "version",
			c.GetVersion(), "mode", c.GetTo(), "revision", revision)
	}
	return &lofamov1.ApplyPoliciesResponse{Changes: p.changes, Revision: revision}, nil
}

// fits refuses a write that does not fit one transaction of the store.
func (r *Responses) fits(w store.Write, policies int) ([]store.Write, error) {
	size := 0
	for _, kv := range w.Puts {
		size += len(kv.Key) + len(kv.Value)
	}
	most := r.s.cfg.MaxOps - otherOps
	if ops := w.Batch().Ops(); r.s.cfg.MaxOps > 0 && ops > most || size > maxMarkBytes {
		return nil, status.Errorf(codes.InvalidArgument,
			"policies: given %d that change, which take %d operations and %d bytes of the store: want at most %d and %d in one change: apply them "+
				"in parts",
			policies, ops, size, most, maxMarkBytes)
	}
	return []store.Write{w}, nil
}

// countOpen adds to the changes the number of responses in progress that they stop.
func (r *Responses) countOpen(ctx context.Context, changes []*lofamov1.PolicyChange) {
	if r.service == nil {
		return
	}
	all, _, err := r.service.Responses(ctx)
	if err != nil {
		return // information only: the change must not fail because of it
	}
	under := map[string]uint32{}
	for _, is := range all {
		if is.Closed.IsZero() && is.Mode == response.Enforce {
			under[is.Policy]++
		}
	}
	for _, c := range changes {
		if k := c.GetKind(); k == lofamov1.PolicyChangeKind_POLICY_REPLACED || k == lofamov1.PolicyChangeKind_POLICY_DELETED {
			c.Open = under[c.GetName()]
		}
	}
}

// set reads the policies with a quorum, or without one from this replica's copy.
func (r *Responses) set(ctx context.Context) (store.PolicySet, error) {
	asked, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	set, err := r.policies.PolicySet(asked)
	if err == nil {
		return set, nil
	}
	if set, err = r.policies.Policies(ctx); err != nil {
		return set, status.Error(codes.Unavailable, err.Error())
	}
	return set, nil
}

// ListPolicies implements the service.
func (r *Responses) ListPolicies(ctx context.Context, _ *lofamov1.ListPoliciesRequest) (*lofamov1.ListPoliciesResponse, error) {
	if err := r.parent(); err != nil {
		return nil, err
	}
	set, err := r.set(ctx)
	if err != nil {
		return nil, err
	}
	resp := &lofamov1.ListPoliciesResponse{Revision: set.Revision}
	for _, p := range set.Policies {
		resp.Policies = append(resp.Policies, r.policy(p))
	}
	return resp, nil
}

// GetPolicy implements the service.
func (r *Responses) GetPolicy(ctx context.Context, req *lofamov1.GetPolicyRequest) (*lofamov1.GetPolicyResponse, error) {
	if err := r.parent(); err != nil {
		return nil, err
	}
	if req.GetName() == "" {
		return nil, invalid("name", "given nothing: want the name of a policy")
	}
	set, err := r.set(ctx)
	if err != nil {
		return nil, err
	}
	history, err := r.policies.PolicyHistory(ctx, req.GetName())
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	resp := &lofamov1.GetPolicyResponse{}
	now, is := set.Of(req.GetName())
	if is && (req.GetVersion() == 0 || req.GetVersion() == now.Version) {
		resp.Policy = r.policy(now)
	}
	for _, p := range history {
		former := r.policy(p)
		if p.Version == req.GetVersion() {
			resp.Policy = r.policy(p)
		}
		former.Document = ""
		resp.Former = append(resp.Former, former)
	}
	switch {
	case resp.GetPolicy() != nil:
		return resp, nil
	case req.GetVersion() > 0:
		return nil, status.Errorf(codes.NotFound, "policy %.63q: version %d: there is none, or it is no longer kept", req.GetName(),
			req.GetVersion())
	case len(history) > 0:
		return nil, status.Errorf(codes.NotFound, "policy %.63q: it was withdrawn: version %d was the last", req.GetName(), history[0].Version)
	}
	return nil, status.Errorf(codes.NotFound, "policy %.63q: there is none", req.GetName())
}

// policy renders a stored policy for the API.
func (r *Responses) policy(p store.StoredPolicy) *lofamov1.ResponsePolicy {
	out := &lofamov1.ResponsePolicy{Name: p.Name, Version: p.Version, Document: string(p.JSON), By: p.By, At: timestamppb.New(p.At),
		Deleted: p.Deleted}
	if p.Deleted {
		return out
	}
	d, err := r.parsed.of(p)
	if err != nil {
		out.Description = "this supervisor cannot read the policy, and ignores it: " + err.Error()
		return out
	}
	out.Digest, out.Mode, out.Groups, out.Match, out.Description = d.Policy.Digest, modeOf(d), d.Policy.Groups, d.Match, d.Description
	out.Warnings = d.Policy.Warnings(r.sources)
	for _, s := range d.Policy.Steps {
		out.Steps = append(out.Steps, string(s.Kind))
	}
	return out
}
