package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// PolicyObject is an object elsewhere that asks for a policy.
type PolicyObject struct {
	Name string
	Spec []byte // JSON
	Bad  string // why it cannot be used; "": it can
}

// PolicyStanding is the state of the policy that an object asks for.
type PolicyStanding struct {
	Accepted bool
	Reason   string // one word
	Message  string
	Mode     string // of the origin's policy in force; "": none is in force
	Version  uint64
	Fired    time.Time // when its last response began; zero: unknown
}

// Reasons of a standing.
const (
	policyInForce   = "InForce"
	policyInvalid   = "Invalid"
	policyNameTaken = "NameTaken"
	policyConflict  = "Conflict"
)

// maxKept and maxKeptBytes bound one commit of Keep, so that it fits any store's transaction. The rest follows in the next commit.
const (
	maxKept      = 8
	maxKeptBytes = 4 * store.MaxPolicyJSON
)

// describeTime bounds the time in which one Keep reads changed objects, so that it withdraws policies soon. The rest follows in the next.
const describeTime = 10 * time.Second

// Sources has the service warn of policies whose outside conditions no configured source reports.
func (r *Responses) Sources(f response.Unconfigured) { r.sources = f }

// KeptBy makes Keep the only one who changes the policies of an origin, such as kubernetes/NAMESPACE.
func (r *Responses) KeptBy(origin string) { r.origin = origin }

// kept refuses a change of policies that come from elsewhere.
func (r *Responses) kept(set store.PolicySet, p plan) error {
	for _, s := range p.stored {
		if was, is := set.Of(s.Name); is && r.origin != "" && was.By == r.origin {
			return status.Errorf(codes.FailedPrecondition, "policy %s: it comes from %s: change or delete the FaultPolicy object %s there, with "+
				"kubectl: nothing was changed", s.Name, r.origin, s.Name)
		}
	}
	return nil
}

// Keep reconciles the origin's policies with the objects, in at most one commit, while this replica leads. It withdraws policies without
// an object only if the list is complete, and changes no policy of another origin. It returns the standing of each object by name, without
// those whose change is still to come; more reports that there are such changes. The objects have distinct names, in order.
func (r *Responses) Keep(ctx context.Context, objects []PolicyObject, complete bool) (_ map[string]PolicyStanding, more bool, _ error) {
	r.keeping.Lock()
	defer r.keeping.Unlock()
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	if err := r.describe(ctx, objects, time.Now().Add(describeTime)); err != nil {
		return nil, true, err
	}
	set, err := r.policies.Policies(ctx)
	if err != nil {
		return nil, false, err
	}
	docs := map[string]*policy.Document{}
	p, out := r.planKeep(set, objects, complete, time.Now(), func(o PolicyObject) (*policy.Document, error) {
		doc, err := documentOf(o)
		if err == nil {
			docs[o.Name] = doc
		}
		return doc, err
	})
	if len(p.stored) > 0 { // planned again with the policies at the time of the commit, under a lock: it parses no objects
		_, err = r.commit(ctx, r.origin, func(set store.PolicySet, _ string) (plan, error) {
			p, out = r.planKeep(set, objects, complete, time.Now(), func(o PolicyObject) (*policy.Document, error) { return docs[o.Name], nil })
			return p, nil
		})
		if errors.Is(err, engine.ErrNotLeading) { // the term has not begun yet, or is over
			return nil, true, nil
		}
		if err != nil {
			return nil, true, err
		}
	}
	r.fired(ctx, out)
	return out, len(out) < len(objects) || len(p.stored) >= maxKept, nil
}

// fired adds the times of the last responses.
func (r *Responses) fired(ctx context.Context, out map[string]PolicyStanding) {
	if r.service == nil {
		return
	}
	all, _, err := r.service.Responses(ctx)
	if err != nil {
		return // information only
	}
	for _, is := range all {
		if st, ok := out[is.Policy]; ok && st.Mode != "" && is.Proposed.After(st.Fired) {
			st.Fired = is.Proposed
			out[is.Policy] = st
		}
	}
}

// keepPlan is the changes of one commit of Keep, and the standing of the objects after it.
type keepPlan struct {
	plan
	r        *Responses
	set      store.PolicySet
	now      time.Time
	asking   map[string]PolicyObject
	document func(PolicyObject) (*policy.Document, error)
	out      map[string]PolicyStanding
	gone     map[string]bool
	together map[string]*policy.Document // the policies after the commit; nil until they are needed: they take time
	bytes    int
}

// planKeep returns the changes of one commit, and the standing of the objects after it. document returns the document of an object that
// changes a policy, or nil: the object waits for the next commit.
func (r *Responses) planKeep(set store.PolicySet, objects []PolicyObject, complete bool, now time.Time,
	document func(PolicyObject) (*policy.Document, error)) (plan, map[string]PolicyStanding) {
	k := &keepPlan{r: r, set: set, now: now, asking: map[string]PolicyObject{}, document: document, out: map[string]PolicyStanding{},
		gone: map[string]bool{}}
	for _, o := range objects {
		k.asking[o.Name] = o
	}
	for _, s := range set.Policies {
		if _, wanted := k.asking[s.Name]; complete && s.By == r.origin && !wanted && len(k.stored) < maxKept {
			k.change(set, &r.parsed, s.Name, nil, r.origin, now)
			k.bytes += len(s.JSON)
			k.gone[s.Name] = true
		}
	}
	for _, o := range objects {
		if _, settled := k.out[o.Name]; !settled {
			k.object(o)
		}
	}
	return k.plan, k.out
}

// object plans the change of an object's policy, and decides the standing of the object.
func (k *keepPlan) object(o PolicyObject) {
	was, is := k.set.Of(o.Name)
	g, described := k.r.given[o.Name]
	switch {
	case is && was.By != k.r.origin:
		k.refuse(o.Name, policyNameTaken, fmt.Sprintf("%s has put a policy of this name in force: withdraw it with lofamoctl policy delete, or "+
			"rename the object", was.By))
		return
	case !described:
		return
	case g.err != nil:
		k.refuse(o.Name, policyInvalid, g.err.Error())
		return
	case is && sha256.Sum256(was.JSON) == g.json:
		k.accept(g.doc, was.Version)
		return
	case len(k.stored) >= maxKept:
		return
	}
	if k.together == nil {
		k.together = k.r.documents(k.set, k.gone)
	}
	names, bytes, err := k.exchange(o.Name)
	if err != nil {
		k.refuse(o.Name, policyConflict, err.Error())
		return
	}
	if len(k.stored)+len(names) > maxKept || k.bytes+bytes > maxKeptBytes {
		return
	}
	var docs []*policy.Document
	for _, name := range names {
		doc, err := k.document(k.asking[name])
		if err != nil { // unreachable: it was valid when it was described
			k.refuse(name, policyInvalid, err.Error())
			return
		}
		if doc == nil {
			return
		}
		if err := policy.CheckTargets([]*policy.Document{doc}, k.r.targetNames(k.set)); err != nil {
			k.refuse(name, policyInvalid, err.Error())
			return
		}
		docs = append(docs, doc)
	}
	k.bytes += bytes
	for _, doc := range docs {
		k.change(k.set, &k.r.parsed, doc.Name, doc, k.r.origin, k.now)
		k.together[doc.Name] = k.r.given[doc.Name].doc
		k.accept(doc, k.changes[len(k.changes)-1].GetVersion())
	}
}

// accept records that the policy of an object is in force.
func (k *keepPlan) accept(doc *policy.Document, version uint64) {
	k.out[doc.Name] = PolicyStanding{Accepted: true, Reason: policyInForce, Message: "the policy is in force", Mode: modeText(modeOf(doc)),
		Version: version}
}

// refuse records why an object changes no policy.
func (k *keepPlan) refuse(name, reason, message string) {
	st := PolicyStanding{Reason: reason, Message: message}
	if was, is := k.set.Of(name); is && was.By == k.r.origin {
		d, err := k.r.parsed.of(was)
		st.Mode, st.Version = modeText(modeOf(d)), was.Version
		stays := "stays in force"
		if err != nil { // an earlier version accepted the document
			stays = "cannot be read and starts no new responses"
		}
		st.Message = fmt.Sprintf("version %d %s: %s", was.Version, stays, message)
	}
	k.out[name] = st
}

// exchange returns the named object and the objects that must change their policies in the same commit, and the bytes of these changes. An
// object may take over the condition and the steps of a policy that gets other ones in the same commit.
func (k *keepPlan) exchange(name string) (names []string, bytes int, err error) {
	after := maps.Clone(k.together)
	for {
		was, _ := k.set.Of(name)
		bytes += len(was.JSON) + k.r.given[name].size
		names, after[name] = append(names, name), k.r.given[name].doc
		first := k.r.given[names[0]].doc
		holder := holderOf(after, name)
		if holder == "" {
			return names, bytes, conflict(after, first)
		}
		was, is := k.set.Of(holder)
		g, described := k.r.given[holder]
		_, settled := k.out[holder]
		changes := is && was.By == k.r.origin && described && g.err == nil && sha256.Sum256(was.JSON) != g.json
		if !changes || settled || slices.Contains(names, holder) || len(names) == maxKept || bytes+len(was.JSON)+g.size > maxKeptBytes {
			return nil, 0, conflict(k.together, first)
		}
		name = holder
	}
}

// holderOf returns another policy with the same condition and the same steps as one, or "".
func holderOf(together map[string]*policy.Document, name string) string {
	for _, other := range slices.Sorted(maps.Keys(together)) {
		if other != name && policy.CheckSet([]*policy.Document{together[other], together[name]}) != nil {
			return other
		}
	}
	return ""
}

// documents returns the documents of the policies in force, without those that are gone and without unreadable ones.
func (r *Responses) documents(set store.PolicySet, gone map[string]bool) map[string]*policy.Document {
	out := map[string]*policy.Document{}
	for _, s := range set.Policies {
		if g := r.given[s.Name]; g.doc != nil && g.json == sha256.Sum256(s.JSON) {
			out[s.Name] = g.doc
		} else if d, err := r.parsed.of(s); err == nil && !gone[s.Name] {
			out[s.Name] = d
		}
	}
	return out
}

// conflict returns why a document cannot be in force together with the others.
func conflict(together map[string]*policy.Document, doc *policy.Document) error {
	docs := []*policy.Document{doc}
	for name, d := range together {
		if name != doc.Name {
			docs = append(docs, d)
		}
	}
	slices.SortFunc(docs[1:], func(a, b *policy.Document) int { return strings.Compare(a.Name, b.Name) })
	return policy.CheckSet(docs)
}

// given is an object's document, without its text and its compiled condition.
type given struct {
	spec [sha256.Size]byte
	doc  *policy.Document // see description
	json [sha256.Size]byte
	size int // of the JSON, in bytes
	err  error
}

// describe updates r.given from the objects. It parses only specs that have changed: each takes milliseconds, or much more with a condition
// that is hard to compile. It ends when ctx ends, so that a term ends at once. It stops parsing at the time until; objects without an entry
// follow in the next call.
func (r *Responses) describe(ctx context.Context, objects []PolicyObject, until time.Time) error {
	there, parsed := map[string]bool{}, false
	for _, o := range objects {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read FaultPolicy objects: %w", err)
		}
		there[o.Name] = true
		g := given{spec: sha256.Sum256(append([]byte(o.Bad), o.Spec...))}
		if was, ok := r.given[o.Name]; ok && was.spec == g.spec {
			continue
		}
		if delete(r.given, o.Name); parsed && time.Now().After(until) {
			continue
		}
		parsed = true
		if d, err := documentOf(o); err != nil {
			g.err = err
		} else {
			g.doc, g.json, g.size = description(d), sha256.Sum256(d.JSON), len(d.JSON)
		}
		if r.given == nil {
			r.given = map[string]given{}
		}
		r.given[o.Name] = g
	}
	maps.DeleteFunc(r.given, func(name string, _ given) bool { return !there[name] })
	return nil
}

// documentOf returns the document of an object.
func documentOf(o PolicyObject) (*policy.Document, error) {
	if o.Bad != "" {
		return nil, errors.New(o.Bad)
	}
	js, err := policy.FromSpec(o.Name, o.Spec)
	if err != nil {
		return nil, err
	}
	docs, err := policy.Parse(js)
	switch {
	case err != nil:
		return nil, err
	case len(docs) != 1 || docs[0].Name != o.Name:
		return nil, fmt.Errorf("policy %s: the object has another document", o.Name)
	case len(docs[0].JSON) > store.MaxPolicyJSON:
		return nil, fmt.Errorf("policy %s: given %d bytes: want at most %d", o.Name, len(docs[0].JSON), store.MaxPolicyJSON)
	}
	return docs[0], policy.CheckNew(docs)
}

// errorsOf splits a joined error.
func errorsOf(err error) []string {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range joined.Unwrap() {
		out = append(out, e.Error())
	}
	return out
}
