package nodeplan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/executor"
)

// Drain is what a drain's parameters ask for.
type Drain struct {
	Grace    *int64 // seconds that every pod gets to end; nil: as many as it asks for itself
	Force    bool   // pods are ended too that nobody starts elsewhere
	EmptyDir bool   // and those whose data on the node are lost with them
}

// DrainOf reads the parameters of a job.
func DrainOf(j executor.Job) (Drain, error) {
	d := Drain{Force: j.Parameters["force"] == "true", EmptyDir: j.Parameters["deleteEmptyDirData"] == "true"}
	if v := j.Parameters["gracePeriod"]; v != "" {
		g, err := time.ParseDuration(v)
		if err != nil || g < 0 {
			return Drain{}, fmt.Errorf("parameter gracePeriod: given %q: want a duration from 0s on", v)
		}
		s := int64((g + time.Second - 1) / time.Second)
		d.Grace = &s
	}
	return d, nil
}

// Pods are those of a node that a drain is about, each list by namespace and name. Those of daemon sets, which nothing keeps from
// the node, static ones, which the API server only mirrors, and those that have ended are in none.
type Pods struct {
	Evict   []*corev1.Pod // to be evicted
	Leaving []*corev1.Pod // that are ending
	Blocked []string      // that the parameters do not allow to end, each with why
}

// Left is how many are still there.
func (p Pods) Left() int { return len(p.Evict) + len(p.Leaving) + len(p.Blocked) }

// Sort says what is to become of each pod.
func (d Drain) Sort(pods []corev1.Pod) Pods {
	var out Pods
	for i := range pods {
		p := &pods[i]
		owner := metav1.GetControllerOfNoCopy(p)
		_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
		switch {
		case static, p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed:
		case owner != nil && owner.Kind == "DaemonSet" && strings.HasPrefix(owner.APIVersion, "apps/"):
		case p.DeletionTimestamp != nil:
			out.Leaving = append(out.Leaving, p)
		case owner == nil && !d.Force:
			out.Blocked = append(out.Blocked, PodName(p)+" has no controller that would start it elsewhere (force: true ends it)")
		case !d.EmptyDir && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }):
			out.Blocked = append(out.Blocked, PodName(p)+" has data in an emptyDir (deleteEmptyDirData: true gives them up)")
		default:
			out.Evict = append(out.Evict, p)
		}
	}
	byName := func(a, b *corev1.Pod) int { return strings.Compare(PodName(a), PodName(b)) }
	slices.SortFunc(out.Evict, byName)
	slices.SortFunc(out.Leaving, byName)
	slices.Sort(out.Blocked)
	return out
}

// PodName is namespace and name.
func PodName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
