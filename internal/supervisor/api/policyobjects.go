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
	policies, _, err := r.policies.Policies(ctx)
	if err != nil {
		return nil, false, err
	}
	docs := map[string]*policy.Document{}
	p, out := r.planKeep(store.PolicySet{Policies: policies}, objects, complete, time.Now(), func(o PolicyObject) (*policy.Document, error) {
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

// planKeep returns the changes of one commit, and the standing of the objects after it. document returns the document of an object that
// changes a policy, or nil: the object waits for the next commit.
func (r *Responses) planKeep(set store.PolicySet, objects []PolicyObject, complete bool, now time.Time,
	document func(PolicyObject) (*policy.Document, error)) (plan, map[string]PolicyStanding) {
	var p plan
	out := map[string]PolicyStanding{}
	wanted, gone := map[string]bool{}, map[string]bool{}
	for _, o := range objects {
		wanted[o.Name] = true
	}
	var together map[string]*policy.Document // made when it is needed: it takes time
	bytes, full := 0, func() bool { return len(p.stored) >= maxKept }
	for _, s := range set.Policies {
		if complete && s.By == r.origin && !wanted[s.Name] && !full() {
			p.change(set, &r.parsed, s.Name, nil, r.origin, now)
			bytes += len(s.JSON)
			gone[s.Name] = true
		}
	}
	for _, o := range objects {
		was, is := set.Of(o.Name)
		refuse := func(reason, message string) {
			st := PolicyStanding{Reason: reason, Message: message}
			if is && was.By == r.origin {
				d, _ := r.parsed.of(was) // an unreadable document has an unknown mode
				st.Mode, st.Version = modeText(modeOf(d)), was.Version
				st.Message = fmt.Sprintf("version %d stays in force: %s", was.Version, message)
			}
			out[o.Name] = st
		}
		g, described := r.given[o.Name]
		switch {
		case is && was.By != r.origin:
			refuse(policyNameTaken, fmt.Sprintf("%s has put a policy of this name in force: withdraw it with lofamoctl policy delete, or rename "+
				"the object", was.By))
			continue
		case !described:
			continue
		case g.err != nil:
			refuse(policyInvalid, g.err.Error())
			continue
		}
		if !is || sha256.Sum256(was.JSON) != g.json {
			if full() || bytes+len(was.JSON)+g.size > maxKeptBytes {
				continue
			}
			if together == nil {
				together = r.documents(set, gone)
			}
			if err := conflict(together, g.doc); err != nil {
				refuse(policyConflict, err.Error())
				continue
			}
			doc, err := document(o)
			if err != nil { // unreachable: it was valid when it was described
				refuse(policyInvalid, err.Error())
				continue
			}
			if doc == nil {
				continue
			}
			bytes += len(was.JSON) + g.size
			p.change(set, &r.parsed, o.Name, doc, r.origin, now)
			was.Version, together[o.Name] = p.changes[len(p.changes)-1].GetVersion(), g.doc
		}
		out[o.Name] = PolicyStanding{Accepted: true, Reason: policyInForce, Message: "the policy is in force", Mode: modeText(modeOf(g.doc)),
			Version: was.Version}
	}
	return p, out
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
