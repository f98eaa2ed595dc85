package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor/kubernetes"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// objectsPart keeps custom resources in Kubernetes while this replica leads.
type objectsPart struct {
	faults    *kubernetes.Faults   // nil: none
	policies  *kubernetes.Policies // nil: none
	responses *api.Responses       // knows the origin of the policies
}

// newObjects creates the clients. They connect when this replica leads.
func (s *Supervisor) newObjects() (err error) {
	c := s.cfg.Kubernetes
	if c.Faults && !s.cfg.Parent() {
		if s.objects.faults, err = kubernetes.NewFaults(c, s.cfg.Cluster, s.faultObjects, s.logger); err != nil {
			return fmt.Errorf("kubernetes: %w", err)
		}
	}
	if c.Policies && !s.cfg.Parent() {
		if s.objects.policies, err = kubernetes.NewPolicies(c, s.keepPolicies, s.logger); err != nil {
			return fmt.Errorf("kubernetes: %w", err)
		}
	}
	return nil
}

// leadObjects keeps the objects until ctx ends.
func (s *Supervisor) leadObjects(ctx context.Context, wg *sync.WaitGroup) {
	if s.objects.faults != nil {
		wg.Go(func() { s.objects.faults.Run(ctx) })
	}
	if s.objects.policies != nil {
		wg.Go(func() { s.objects.policies.Run(ctx) })
	}
}

// keepPolicies brings policies to the objects that ask for them.
func (s *Supervisor) keepPolicies(ctx context.Context, objects []kubernetes.FaultPolicy, complete bool) (
	map[string]kubernetes.PolicyStanding, bool, error) {
	var given []api.PolicyObject
	for _, o := range objects {
		g := api.PolicyObject{Name: o.Name, Spec: o.Spec}
		if o.Large {
			g.Bad = "the object is too large"
		}
		given = append(given, g)
	}
	standing, more, err := s.objects.responses.Keep(ctx, given, complete)
	out := map[string]kubernetes.PolicyStanding{}
	for name, st := range standing {
		out[name] = kubernetes.PolicyStanding(st)
	}
	return out, more, err
}

// faultObjects returns this replica's copy of the incidents as Faults.
func (s *Supervisor) faultObjects() (list []kubernetes.Fault, changed <-chan struct{}, ready bool) {
	v := s.store.incidents.View()
	for _, in := range v.Incidents {
		if len(in.GetMergedInto()) == 0 { // another incident continues it
			list = append(list, faultOf(in.Incident))
		}
	}
	return list, v.Changed, v.Ready
}

// faultOf renders an incident for Kubernetes.
func faultOf(in *lofamov1.Incident) kubernetes.Fault {
	at := func(t interface{ AsTime() time.Time }) metav1.Time {
		return metav1.NewTime(t.AsTime().Truncate(time.Second))
	}
	st := kubernetes.FaultStatus{
		State: in.GetState().String(), Severity: in.GetSeverity().String(), Component: in.GetComponent(), Node: in.GetNode(),
		Peer: in.GetPeer(), Group: in.GetGroup(), Fault: in.GetFault().String(), Cause: in.GetCause().String(), Since: at(in.GetSince()),
		Summary: in.GetSummary(), Runbook: in.GetRunbook(), Consequences: int(in.GetConsequenceCount()),
		Witnesses: in.GetVerdict().GetWitnesses(), SingleWitness: in.GetVerdict().GetSingleWitness(),
	}
	for _, e := range in.GetVerdict().GetEvidence() {
		st.Evidence = append(st.Evidence, evidenceText(e, in.GetVerdict().GetTime().AsTime()))
	}
	st.Evidence = append(servicenet.DeathNotes(in), st.Evidence...) // first: the list is bounded
	active := metav1.Condition{Type: kubernetes.FaultActive, Status: metav1.ConditionTrue, Reason: "Open", Message: "the fault stands",
		LastTransitionTime: st.Since}
	out := kubernetes.Fault{Name: in.GetId(), Grave: int(in.GetSeverity())}
	if in.GetUntil() != nil {
		st.Until = at(in.GetUntil())
	}
	switch in.GetState() {
	case lofamov1.IncidentState_RECOVERING:
		active.Reason, active.Message = "Recovering", "the fault has gone, and may come back"
	case lofamov1.IncidentState_CLOSED:
		active.Status, active.Reason, active.Message, active.LastTransitionTime = metav1.ConditionFalse, "Closed", "the fault has gone", st.Until
		out.Closed = st.Until.Time
	default:
	}
	acknowledged := metav1.Condition{Type: kubernetes.FaultAcknowledged, Status: metav1.ConditionFalse, Reason: "NotAcknowledged",
		Message: "lofamoctl acknowledge takes charge of the incident", LastTransitionTime: st.Since}
	if by := in.GetAcknowledgement(); by != nil && !by.GetOutdated() {
		acknowledged.Status, acknowledged.Reason, acknowledged.Message = metav1.ConditionTrue, "Acknowledged", "by "+by.GetBy()
		acknowledged.LastTransitionTime = at(by.GetTime())
	}
	st.Conditions = []metav1.Condition{active, acknowledged}
	out.Status = st
	return out
}

// evidenceText renders a piece of evidence in words, with its time instead of its age.
func evidenceText(e *lofamov1.Evidence, verdict time.Time) string {
	text := fmt.Sprintf("%s of %s: %s", e.GetKind(), e.GetObserver(), e.GetState())
	if e.GetAge() != nil {
		text += " since " + verdict.Add(-e.GetAge().AsDuration()).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if e.GetDetail() != "" {
		text += ": " + e.GetDetail()
	}
	return text
}
