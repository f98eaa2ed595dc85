package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

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

// of returns the value of remediationKey.
func (d *remediating) of() string { return fmt.Sprintf("%s/%d", d.j.Response, d.j.Step) }

// path returns the path of all objects of a kind.
func (d *remediating) path(kind string) string {
	p := d.j.Parameters
	return "/apis/" + p["apiVersion"] + "/namespaces/" + p["namespace"] + "/" + strings.ToLower(kind) + "s"
}

func (d *remediating) objects() string {
	return d.path(strings.TrimSuffix(d.j.Parameters["kind"], templateSuffix))
}

func (d *remediating) String() string {
	p := d.j.Parameters
	return fmt.Sprintf("%s %s/%s", strings.TrimSuffix(p["kind"], templateSuffix), p["namespace"], d.node)
}

// remediate creates the object, and waits for its end.
func (e *Executor) remediate(ctx context.Context, j executor.Job) executor.Result {
	d := &remediating{e: e, j: j}
	var marked, there bool
	if r := e.retry(ctx, "remediation of "+string(j.Target.Node), func(*bool) error {
		n, err := e.find(ctx, e.c.all, j.Target.Node)
		if err != nil {
			return endIfRefused(err)
		}
		d.node = n.Name
		_, marked = marks(n)[markKey(j.Response, j.Step)]
		object, err := d.read(ctx)
		switch there = object != nil; {
		case err != nil:
			return endIfRefused(err)
		case there && object.Metadata.Annotations[remediationKey] != d.of():
			return ended{executor.Unchanged("%s already exists and belongs to another program or response: wait until it is gone, or delete it", d)}
		case marked && !there:
			return ended{executor.Unchanged("%s is missing: somebody has removed it, or an earlier attempt ended before it was created. It is "+
				"not created again while annotation %s stands on the node", d, markKey(j.Response, j.Step))}
		}
		return ended{executor.Done("read")}
	}); r.Outcome != response.Succeeded {
		return r
	}
	if r := e.alter(ctx, j); r.Outcome != response.Succeeded {
		return r
	}
	if !there {
		if r := e.retry(ctx, d.String(), func(sent *bool) error { return d.create(ctx, sent) }); r.Outcome != response.Succeeded {
			return r
		}
	}
	return d.follow(ctx)
}

// endIfRefused ends the attempt if an error is permanent.
func endIfRefused(err error) error {
	var done ended
	if errors.As(err, &done) {
		return err
	}
	if errors.Is(err, errGone) || errors.Is(err, errNoName) || refused(err) {
		return ended{executor.Unchanged("%v", err)}
	}
	return err
}

// read returns the object, or nil if there is none.
func (d *remediating) read(ctx context.Context) (*remediation, error) {
	b, err := d.e.c.readRaw(ctx, d.e.c.api.Get().AbsPath(d.objects()+"/"+d.node))
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // there is none
	case err != nil:
		return nil, err
	}
	return remediationOf(b)
}

// remediationOf decodes an object.
func remediationOf(b []byte) (*remediation, error) {
	out := &remediation{}
	if err := json.Unmarshal(b, out); err != nil {
		return nil, fmt.Errorf("read a remediation: %w", err)
	}
	return out, nil
}

// specOf returns the spec of a template's objects.
func specOf(b []byte) (json.RawMessage, error) {
	var template struct {
		Spec struct {
			Template struct {
				Spec json.RawMessage `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(b, &template); err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	if len(template.Spec.Template.Spec) == 0 {
		return json.RawMessage("{}"), nil
	}
	return template.Spec.Template.Spec, nil
}

// create creates the object once. It sets sent if the outcome is unknown.
func (d *remediating) create(ctx context.Context, sent *bool) error {
	p := d.j.Parameters
	b, err := d.e.c.readRaw(ctx, d.e.c.api.Get().AbsPath(d.path(p["kind"])+"/"+p["name"]))
	var spec json.RawMessage
	if err == nil {
		spec, err = specOf(b)
	}
	if err != nil {
		if refused(err) && !*sent {
			return ended{executor.Unchanged("template %s %s/%s: %v", p["kind"], p["namespace"], p["name"], err)}
		}
		return err
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": p["apiVersion"], "kind": strings.TrimSuffix(p["kind"], templateSuffix), "spec": spec,
		"metadata": map[string]any{"name": d.node, "namespace": p["namespace"],
			"labels":      map[string]string{"app.kubernetes.io/managed-by": fieldManager},
			"annotations": map[string]string{remediationKey: d.of(), tokenKey: token(d.j)}},
	})
	if err != nil {
		return ended{executor.Unchanged("%s: %v", d, err)}
	}
	err = d.e.c.do(ctx, d.e.c.all, d.e.c.api.Post().AbsPath(d.objects()).Param("fieldManager", fieldManager).Body(body))
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
		if !wait(ctx, d.e.pacing.drain) {
			return executor.Partly("%s has not ended in time: %s", d, last)
		}
	}
}

// endRemediation removes the object, waits until it is gone, and then removes the mark.
func (e *Executor) endRemediation(ctx context.Context, j executor.Job) executor.Result {
	d := &remediating{e: e, j: j}
	gone := false
	r := e.retry(ctx, "remediation of "+string(j.Target.Node), func(sent *bool) error {
		n, err := e.find(ctx, e.c.all, j.Target.Node)
		switch {
		case err == nil:
			if r, refused := fencedNode(n, j.Token); refused {
				return ended{r}
			}
			d.node = n.Name
		case errors.Is(err, errGone) && e.cfg.NodeLabel == "": // the object may outlive its node
			d.node, gone = e.cfg.NameOf(j.Target.Node), true
		default:
			return endIfRefused(err)
		}
		return d.remove(ctx, sent)
	})
	if r.Outcome != response.Succeeded || gone {
		return r
	}
	return e.alter(ctx, j)
}

// remove deletes the object once, and ends when it is gone.
func (d *remediating) remove(ctx context.Context, sent *bool) error {
	object, err := d.read(ctx)
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
	case refused(err) && !apierrors.IsNotFound(err) && !*sent:
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
