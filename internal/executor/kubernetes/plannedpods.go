package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lofamo/lofamo/internal/executor"
)

// drainSettings holds the parameters of a drain.
type drainSettings struct {
	Grace    *int64 // seconds for every pod to end; nil for the pod's own value
	Force    bool   // also end pods without a controller that would replace them
	EmptyDir bool   // also end pods that lose their data on the node
}

// drainSettingsOf reads the parameters of a job.
func drainSettingsOf(j executor.Job) (drainSettings, error) {
	d := drainSettings{Force: j.Parameters["force"] == "true", EmptyDir: j.Parameters["deleteEmptyDirData"] == "true"}
	if v := j.Parameters["gracePeriod"]; v != "" {
		g, err := time.ParseDuration(v)
		if err != nil || g < 0 {
			return drainSettings{}, fmt.Errorf("parameter gracePeriod: given %q: want a duration of 0s or more", v)
		}
		s := int64((g + time.Second - 1) / time.Second)
		d.Grace = &s
	}
	return d, nil
}

// podsToEvict are the pods of a node that a drain handles, each list sorted by namespace and name. They do not include pods of
// daemon sets, which tolerate the cordon, static pods, which the API server only mirrors, and pods that have ended.
type podsToEvict struct {
	Evict   []*corev1.Pod // pods to evict
	Leaving []*corev1.Pod // pods that are terminating
	Blocked []string      // pods that the parameters do not allow to end, with reasons
}

// Left returns the number of pods still there.
func (p podsToEvict) Left() int { return len(p.Evict) + len(p.Leaving) + len(p.Blocked) }

// Sort assigns each pod to one of the lists.
func (d drainSettings) Sort(pods []corev1.Pod) podsToEvict {
	var out podsToEvict
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
			out.Blocked = append(out.Blocked, podName(p)+" has no controller that would start it elsewhere (force: true ends it)")
		case !d.EmptyDir && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }):
			out.Blocked = append(out.Blocked, podName(p)+" has data in an emptyDir (deleteEmptyDirData: true gives them up)")
		default:
			out.Evict = append(out.Evict, p)
		}
	}
	byName := func(a, b *corev1.Pod) int { return strings.Compare(podName(a), podName(b)) }
	slices.SortFunc(out.Evict, byName)
	slices.SortFunc(out.Leaving, byName)
	slices.Sort(out.Blocked)
	return out
}

// podName returns namespace and name.
func podName(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }
