package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// event creates an event on the node, or for a group fault one event on its first managed member. Its name derives from the response
// and the step, so retries create no second one.
func (e *Executor) event(ctx context.Context, j executor.Job) executor.Result {
	return e.retry(ctx, fmt.Sprintf("event on the node of %s", j.Target), func(sent *bool) error { return e.eventOnce(ctx, j, sent) })
}

func (e *Executor) eventOnce(ctx context.Context, j executor.Job, sent *bool) error {
	failpoint.Hit(failpoint.KubernetesRead)
	id := j.Target.Node
	if j.Target.Group != "" {
		if len(j.Members) == 0 {
			return ended{executor.Unchanged("event on a node of %s: no managed member is known any longer", j.Target)}
		}
		id = j.Members[0]
	}
	n, err := e.find(ctx, e.c.events, id)
	switch {
	case err == nil:
	case unfindable(err) && !*sent:
		return ended{executor.Unchanged("%v", err)}
	default:
		return err
	}
	if r, stale := fencedNode(n, j.Token); stale {
		return ended{r}
	}
	ev := eventOf(n, j, time.Now())
	failpoint.Hit(failpoint.KubernetesWrite)
	err = e.c.createEvent(ctx, ev)
	failpoint.Hit(failpoint.KubernetesWritten)
	switch {
	case err == nil:
		return ended{executor.Done("event %s/%s", ev.Namespace, ev.Name)}
	case apierrors.IsAlreadyExists(err):
		return ended{executor.Done("event %s/%s was written by an earlier attempt", ev.Namespace, ev.Name)}
	case errors.Is(err, executor.ErrStale) && *sent:
		return ended{executor.NotKnown("event on node %s: one was sent, with unknown outcome: %v", n.Name, err)}
	case errors.Is(err, executor.ErrStale):
		return ended{executor.Stale("event on node %s: token %d: %v", n.Name, j.Token, err)}
	case refused(err) && !*sent:
		return ended{executor.Unchanged("event on node %s: %v", n.Name, err)}
	case !notDone(err):
		*sent = true
	default:
	}
	return err
}

// eventOf returns the event of a job. Like the kubelet's events, it is in the namespace default, as required for
// objects without a namespace. Its involved object has the node's name as UID, by which kubectl describe finds it.
func eventOf(n *corev1.Node, j executor.Job, now time.Time) *corev1.Event {
	at := metav1.NewTime(now)
	sum := sha256.Sum256([]byte(j.Cluster + "\x00" + j.IdempotencyKey))
	name := n.Name
	if j.Target.Group != "" {
		name = "group" // at a retry another member may be the first one
	}
	if len(name) > 200 { // names have at most 253 characters
		name = strings.TrimRight(name[:200], ".-")
	}
	by := fmt.Sprintf("policy %s, response %s", j.Policy, j.Response)
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("%s.%s", name, hex.EncodeToString(sum[:8])), Namespace: metav1.NamespaceDefault}
	if j.Incident != "" {
		by += ", incident " + j.Incident
		meta.Annotations = map[string]string{incidentKey: j.Incident}
	}
	return &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     meta,
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.Name)},
		Reason:         conditionReason(j),
		Message:        fmt.Sprintf("%s (%s)", conditionText(j), by),
		Source:         corev1.EventSource{Component: component},
		FirstTimestamp: at, LastTimestamp: at, Count: 1, Type: corev1.EventTypeWarning,
		ReportingController: component, ReportingInstance: j.Cluster, Action: string(response.KubernetesEvent),
	}
}

const (
	component   = "lofamo"             // source of our events
	incidentKey = "lofamo.io/incident" // annotation of an event: the ID of the fault's incident
)
