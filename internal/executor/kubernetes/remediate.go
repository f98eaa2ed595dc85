package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// A remediation hands a node to a remediator of medik8s, as a NodeHealthCheck of that project does: it creates an object
// from a template, named as the node, follows its conditions, and removes it when the step is undone. The object carries
// the response and step that have created it. A mark on the node keeps a second remediation away, of any kind.

// remediationKey is the annotation of an object that a step has created.
const remediationKey = "lofamo.io/remediation"

// templateSuffix ends the kinds of templates. The kind without it is that of the objects.
const templateSuffix = "Template"

// Conditions of remediation objects.
const (
	remediationProcessing = "Processing"
	remediationSucceeded  = "Succeeded"
)

// remediation is an object of a remediator, as far as this package reads it.
type remediation struct {
	metav1.TypeMeta
	Metadata metav1.ObjectMeta `json:"metadata"`
	Status   struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// condition returns the status of a condition and its explanation.
func (r *remediation) condition(typ string) (metav1.ConditionStatus, string) {
	for _, c := range r.Status.Conditions {
		if c.Type == typ {
			return c.Status, cut(strings.Trim(c.Reason+": "+c.Message, ": "), maxText)
		}
	}
	return metav1.ConditionUnknown, ""
}

// remediating is one attempt at a remediation.
type remediating struct {
	e    *Executor
	j    executor.Job
	node string // name in Kubernetes, and of the object
}

// marked reports whether a node has the mark of the step.
func (d *remediating) marked(n *corev1.Node) bool {
	_, marked := marks(n)[markKey(d.j.Response, d.j.Step)]
	return marked
}

// of returns the value of remediationKey.
func (d *remediating) of() string { return fmt.Sprintf("%s/%d", d.j.Response, d.j.Step) }

// path returns the path of all objects of a kind.
func (d *remediating) path(kind string) string {
	p := d.j.Parameters
	return "/apis/" + p["apiVersion"] + "/namespaces/" + p["namespace"] + "/" + plural(kind)
}

// plural returns the name of a kind in paths.
func plural(kind string) string { return strings.ToLower(kind) + "s" }

// kind returns the kind of the objects.
func (d *remediating) kind() string {
	return strings.TrimSuffix(d.j.Parameters["kind"], templateSuffix)
}

func (d *remediating) objects() string { return d.path(d.kind()) }

func (d *remediating) String() string {
	return fmt.Sprintf("%s %s/%s", d.kind(), d.j.Parameters["namespace"], d.node)
}

// remediate creates the object, and waits for its end.
func (e *Executor) remediate(ctx context.Context, j executor.Job) executor.Result {
	d := &remediating{e: e, j: j}
	var marked, there bool
	var spec json.RawMessage
	if r := e.retry(ctx, "remediation of "+string(j.Target.Node), func(*bool) error {
		n, err := e.find(ctx, e.c.all, j.Target.Node)
		if err != nil {
			return endIfRefused(err)
		}
		d.node = n.Name
		marked = d.marked(n)
		object, err := d.read(ctx)
		switch there = object != nil; {
		case err != nil:
			return endIfRefused(err)
		case there && object.Metadata.Annotations[remediationKey] != d.of():
			return ended{executor.Unchanged("%s already exists and belongs to another program or response: wait until it is gone, or delete it", d)}
		case marked && !there:
			return ended{executor.Unchanged("%s is missing: somebody has removed it, or an earlier attempt ended before it was created. It is "+
				"not created again while annotation %s stands on the node", d, markKey(j.Response, j.Step))}
		case !there:
			if spec, err = d.template(ctx); err != nil { // before the mark, which would stay
				return err
			}
		}
		return ended{executor.Done("read")}
	}); r.Outcome != response.Succeeded {
		return r
	}
	if r := e.alter(ctx, j); r.Outcome != response.Succeeded {
		return r
	}
	if !there {
		tried := false // an object may come of it
		r := e.retry(ctx, d.String(), func(sent *bool) error {
			err := d.create(ctx, spec, sent)
			tried = tried || *sent
			return err
		})
		switch {
		case r.Outcome == response.Unchanged && !tried:
			return d.unmark(ctx, r)
		case r.Outcome != response.Succeeded:
			return r
		}
	}
	return d.follow(ctx)
}

// unmark removes the mark of an attempt whose object was not created, so that the next attempt can create it. It also does so after
// the end of the attempt's time. After a loss of the lead it leaves the mark alone. r is the attempt's result.
func (d *remediating) unmark(ctx context.Context, r executor.Result) executor.Result {
	if cause := context.Cause(ctx); cause == nil || errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, executor.ErrStopped) {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.e.pacing.unmark) // keeps the fence
		defer cancel()
		ctx = last
	}
	if done := d.e.retry(ctx, "node "+d.node, func(*bool) error { return d.unmarkOnce(ctx) }); done.Outcome != response.Succeeded {
		return executor.Partly("%s; annotation %s stays on the node: %s", r.Detail, markKey(d.j.Response, d.j.Step), done.Detail)
	}
	return r
}

func (d *remediating) unmarkOnce(ctx context.Context) error {
	j := d.j
	j.Undo = true
	n, err := d.e.findUndone(ctx, j)
	if errors.Is(err, errGone) {
		return ended{d.e.undoneByDeletion(j, err)}
	}
	if err != nil {
		return endIfRefused(err)
	}
	if r, stale := fencedNode(n, j.Token); stale {
		return ended{r}
	}
	s := newStep(n, j, time.Now())
	if s.mine == nil {
		return ended{executor.Done("it has no mark")}
	}
	switch err := d.e.c.write(ctx, n.Name, s.remediation().Write); {
	case err == nil:
		return ended{executor.Done("its mark was removed")}
	case errors.Is(err, executor.ErrStale):
		return ended{executor.Stale("token %d: %v", j.Token, err)}
	default:
		return endIfRefused(err)
	}
}

// endIfRefused ends the attempt if an error is permanent.
func endIfRefused(err error) error {
	var done ended
	if errors.As(err, &done) {
		return err
	}
	if unfindable(err) {
		return ended{executor.Unchanged("%v", err)}
	}
	return err
}

// read returns the object, or nil if there is none.
func (d *remediating) read(ctx context.Context) (*remediation, error) {
	b, err := d.e.c.readRaw(ctx, d.e.c.api.Get().AbsPath(d.objects()+"/"+d.node))
	if err != nil {
		missing, err := d.missing(ctx, d.kind(), err)
		if missing {
			err = nil
		}
		return nil, err
	}
	return remediationOf(b, d.j.Parameters["apiVersion"], d.kind())
}

// missing reports whether a failed read of objects of a kind shows that there is none. It returns the given error, and
// adds the reason if it cannot find out. For a kind that is not installed the API server answers 404 with a page, as a proxy may do for
// every kind. After such an answer the lists of served kinds decide.
func (d *remediating) missing(ctx context.Context, kind string, err error) (bool, error) {
	if IsNotFound(err) || !apierrors.IsNotFound(err) {
		return IsNotFound(err), err
	}
	served, unknown := d.e.c.serves(ctx, d.j.Parameters["apiVersion"], plural(kind))
	if unknown != nil {
		return false, fmt.Errorf("%w; cannot check whether the kind %s is installed: %w", err, kind, unknown)
	}
	return !served, err
}

// remediationOf decodes an object of a kind.
func remediationOf(b []byte, apiVersion, kind string) (*remediation, error) {
	out := &remediation{}
	err := json.Unmarshal(b, out)
	if err == nil {
		err = checkObject(out.TypeMeta, out.Metadata.Name, apiVersion, kind)
	}
	if err != nil {
		return nil, fmt.Errorf("read a remediation: %w", err)
	}
	return out, nil
}

// remediationPage is a part of the list of all objects.
type remediationPage struct {
	metav1.TypeMeta
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []remediation   `json:"items"`
}

// remediationsOf decodes a part of the list of all objects of a kind. Their definition may give the list's kind any name.
func remediationsOf(b []byte, apiVersion, kind string) (page remediationPage, err error) {
	if err = json.Unmarshal(b, &page); err == nil {
		list := kind + "List"
		if strings.HasSuffix(page.Kind, "List") {
			list = page.Kind
		}
		err = checkList(page.TypeMeta, page.Metadata, apiVersion, list)
	}
	if err != nil {
		return remediationPage{}, fmt.Errorf("list remediations: %w", err)
	}
	return page, nil
}

// specOf returns the spec of the objects of a template. kind is the template's.
func specOf(b []byte, apiVersion, kind string) (json.RawMessage, error) {
	var template struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Template struct {
				Spec json.RawMessage `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	err := json.Unmarshal(b, &template)
	if err == nil {
		err = checkObject(template.TypeMeta, template.Metadata.Name, apiVersion, kind)
	}
	if err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	if len(template.Spec.Template.Spec) == 0 {
		return json.RawMessage("{}"), nil
	}
	return template.Spec.Template.Spec, nil
}

// template reads the spec of the object.
func (d *remediating) template(ctx context.Context) (json.RawMessage, error) {
	p := d.j.Parameters
	b, err := d.e.c.readRaw(ctx, d.e.c.api.Get().AbsPath(d.path(p["kind"])+"/"+p["name"]))
	if err == nil {
		return specOf(b, p["apiVersion"], p["kind"])
	}
	missing, err := d.missing(ctx, p["kind"], err)
	if missing || refused(err) {
		return nil, ended{executor.Unchanged("template %s %s/%s: %v", p["kind"], p["namespace"], p["name"], err)}
	}
	return nil, err
}

// create creates the object once. It sets sent if the outcome is unknown. The API server drops the request after the time that
// endRemediation waits for it.
func (d *remediating) create(ctx context.Context, spec json.RawMessage, sent *bool) error {
	p := d.j.Parameters
	body, err := json.Marshal(map[string]any{
		"apiVersion": p["apiVersion"], "kind": d.kind(), "spec": spec,
		"metadata": map[string]any{"name": d.node, "namespace": p["namespace"],
			"labels":      map[string]string{"app.kubernetes.io/managed-by": fieldManager},
			"annotations": map[string]string{remediationKey: d.of(), tokenKey: token(d.j)}},
	})
	if err != nil {
		return ended{executor.Unchanged("%s: %v", d, err)}
	}
	err = d.e.c.do(ctx, d.e.c.all, d.e.c.api.Post().AbsPath(d.objects()).Param("fieldManager", fieldManager).
		Timeout(d.e.c.timeout).Body(body))
	switch {
	case err == nil:
		return ended{executor.Done("created")}
	case errors.Is(err, executor.ErrStale) && !*sent:
		return ended{executor.Stale("%s: token %d: %v", d, d.j.Token, err)}
	case apierrors.IsAlreadyExists(err):
		object, err := d.read(ctx)
		if err == nil && object != nil && object.Metadata.Annotations[remediationKey] == d.of() {
			return ended{executor.Done("created by an earlier try")}
		}
		if err == nil && object != nil {
			return ended{executor.Unchanged("%s already exists and belongs to another program or response: wait until it is gone, or delete it", d)}
		}
		return errors.Join(err, errors.New("the object comes and goes"))
	case refused(err) && !*sent:
		return ended{executor.Unchanged("%s: %v", d, err)}
	case !notDone(err):
		*sent = true
	}
	return err
}

// follow waits until the remediator has ended. It changes nothing.
func (d *remediating) follow(ctx context.Context) executor.Result {
	begin := time.Now()
	last := "its remediator has not answered"
	for {
		object, err := d.read(ctx)
		switch {
		case err != nil && refused(err):
			return executor.Partly("%s was created, and cannot be followed: %v", d, err)
		case err != nil:
			if ctx.Err() == nil { // otherwise the time is over, and what was read before tells more
				last = err.Error()
			}
		case object == nil:
			return executor.Partly("%s was removed before its end: %s", d, last)
		case object.Metadata.Annotations[remediationKey] != d.of():
			return executor.Partly("%s was removed before its end, and another program or response has created one: %s", d, last)
		default:
			done, why := object.condition(remediationSucceeded)
			processing, now := object.condition(remediationProcessing)
			switch {
			case done == metav1.ConditionTrue:
				return executor.Done("node %s: %s has succeeded after %s", d.node, d, time.Since(begin).Round(time.Second/10))
			case done == metav1.ConditionFalse && processing != metav1.ConditionTrue:
				return executor.Partly("%s has failed: %s", d, why)
			case processing == metav1.ConditionTrue:
				last = "its remediator is at work"
			}
			if now != "" {
				last = now
			}
		}
		if !executor.Wait(ctx, d.e.pacing.drain) {
			return executor.Partly("%s has not ended in time: %s", d, last)
		}
	}
}

// endRemediation removes the object, waits until it is gone, and then removes the mark. If there is no object, a request that
// creates it may be on its way: of an earlier attempt, or of a former leader that was stopped. So the mark stays until no such
// request can take effect any more.
func (e *Executor) endRemediation(ctx context.Context, j executor.Job) executor.Result {
	d := &remediating{e: e, j: j}
	var gone error // the node was deleted
	ours := false
	r := e.retry(ctx, "remediation of "+string(j.Target.Node), func(sent *bool) error {
		var n *corev1.Node
		if gone == nil {
			var err error
			n, err = e.findUndone(ctx, j)
			switch {
			case errors.Is(err, errGone): // the object may outlive its node
				gone, n, d.node = err, nil, e.cfg.NameOf(j.Target.Node)
			case err != nil:
				return endIfRefused(err)
			default:
				if r, refused := fencedNode(n, j.Token); refused {
					return ended{r}
				}
				d.node = n.Name
			}
		}
		at := time.Now()
		object, err := d.own(ctx, n)
		if err == nil && object == nil && !ours {
			if err := d.late(n, at); err != nil {
				return err
			}
		}
		ours = ours || object != nil && object.Metadata.Annotations[remediationKey] == d.of()
		return d.remove(ctx, object, err, sent)
	})
	switch {
	case r.Outcome != response.Succeeded:
		return r
	case gone != nil:
		r = e.undoneByDeletion(j, gone)
	default:
		r = e.alter(ctx, j)
	}
	if r.Outcome == response.Succeeded {
		e.absent.Delete(markKey(j.Response, j.Step))
	}
	return r
}

// own returns the object that an undo removes, or nil if there is none. n is nil if the node was deleted. The object has the same name as
// the node with the mark of the step. With nodeLabel, that node may be gone, and its name unknown. Then own lists all objects, and returns
// the one whose annotation names the step.
func (d *remediating) own(ctx context.Context, n *corev1.Node) (*remediation, error) {
	if d.e.cfg.NodeLabel == "" || n != nil && d.marked(n) {
		return d.read(ctx)
	}
	for next := ""; ; {
		b, err := d.e.c.readRaw(ctx, d.e.c.api.Get().AbsPath(d.objects()).Param("limit", fmt.Sprint(nodesPage)).Param("continue", next))
		switch {
		case err == nil:
		case apierrors.IsForbidden(err) && refused(err) && n != nil: // a role of an earlier version
			return d.read(ctx)
		default:
			if missing, err := d.missing(ctx, d.kind(), err); !missing {
				return nil, fmt.Errorf("list remediations: %w", err)
			}
			return nil, nil //nolint:nilnil // the kind is gone, and so are its objects
		}
		page, err := remediationsOf(b, d.j.Parameters["apiVersion"], d.kind())
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if o := &page.Items[i]; o.Metadata.Annotations[remediationKey] == d.of() {
				d.node = o.Metadata.Name
				return o, nil
			}
		}
		if next = page.Metadata.Continue; next == "" {
			return nil, nil //nolint:nilnil // there is none
		}
	}
}

// late fails while a delayed request may still create the object after the read at the given time. Once an undo has begun, no such request
// leaves, except one that passed the token check just before. The API server drops that one after the timeout that the request names. n is
// nil if the node was deleted. Then no mark shows whether there was a request. With nodeLabel, nor does a node without the mark, because it
// may have replaced the node with the mark.
func (d *remediating) late(n *corev1.Node, at time.Time) error {
	key := markKey(d.j.Response, d.j.Step)
	if n != nil && !d.marked(n) && d.e.cfg.NodeLabel == "" {
		return nil
	}
	first, _ := d.e.absent.LoadOrStore(key, time.Now())
	if left := d.e.c.timeout + d.e.c.sure - at.Sub(first.(time.Time)); left > 0 {
		return fmt.Errorf("%s is missing, and may still be created by an earlier attempt: looked at again for %s", d, left.Round(time.Second/10))
	}
	return nil
}

// remove deletes the object once, and ends when it is gone. The object and the error are of its last read.
func (d *remediating) remove(ctx context.Context, object *remediation, err error, sent *bool) error {
	switch {
	case err != nil && !*sent:
		return endIfRefused(err)
	case err != nil:
		return err
	case object == nil:
		return ended{executor.Done("%s is gone", d)}
	case object.Metadata.Annotations[remediationKey] != d.of():
		return ended{executor.Done("%s belongs to another program or response: left alone", d)}
	case object.Metadata.DeletionTimestamp != nil:
		return fmt.Errorf("%s is being removed: its remediator has not released it", d)
	}
	body, err := json.Marshal(metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.Metadata.UID))})
	if err != nil {
		return err
	}
	err = d.e.c.do(ctx, d.e.c.all, d.e.c.api.Delete().AbsPath(d.objects()+"/"+d.node).Body(body))
	switch {
	case errors.Is(err, executor.ErrStale) && !*sent:
		return ended{executor.Stale("%s: token %d: %v", d, d.j.Token, err)}
	case err == nil, !notDone(err):
		*sent = true
	case refused(err) && !IsNotFound(err) && !*sent:
		return ended{executor.Unchanged("%s: %v", d, err)}
	}
	if err == nil {
		err = fmt.Errorf("%s is being removed", d)
	}
	return err
}

// readRaw reads an object of a type that this program does not have, as JSON.
func (c *client) readRaw(ctx context.Context, r *rest.Request) ([]byte, error) {
	if err := c.all.waitToRead(ctx); err != nil {
		return nil, unpaced{err}
	}
	one, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	res := r.SetHeader("Accept", "application/json").MaxRetries(0).Do(one)
	if err := res.Error(); err != nil { // with the server's words, which Raw leaves out
		return nil, err
	}
	return res.Raw()
}

// remediation marks the node, or removes the mark. It changes nothing else.
func (s *planned) remediation() plan {
	f, _ := s.ours()
	said := "its remediation begins"
	switch {
	case s.j.Undo:
		s.unmark()
		said = "its remediation has ended"
	case s.mine == nil:
		s.put(mark{Kind: s.j.Kind, Policy: s.j.Policy, At: s.stampTime()})
	}
	return s.applyNode(f, executor.Done("node %s: %s", s.n.Name, said))
}
