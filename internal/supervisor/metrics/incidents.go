package metrics

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxIncidents bounds the incidents by name: CRITICAL ones first. Among equally severe ones, group faults precede others, and
// incidents that no operator has acknowledged precede acknowledged ones: alerts need their series most. Then the oldest come first.
const MaxIncidents = 500

// incidentLabels are the labels of an incident by name. A changed label is another series; the id, node,
// component, peer and group change with the root cause only.
var incidentLabels = []string{"incident", "state", "severity", "node", "component", "peer", "group", "cause", "fault", "runbook",
	"acknowledged_by"}

// describeIncidents sets the descriptions of the incidents' metrics.
func (c *Collector) describeIncidents(desc func(name, help string, labels ...string) *prometheus.Desc) {
	c.incidents = desc("incidents", "OPEN incidents by severity and faulty component; all links count as link, all group faults as group.",
		"severity", "component")
	c.incidentSince = desc("incident_since_timestamp_seconds", "When the fault of an OPEN or RECOVERING incident began, in seconds since "+
		"1970; one series per incident.", incidentLabels...)
}

// groupComponent is the component of an incident of a group fault, as in the API.
const groupComponent = "group"

// kindOf returns the kind of a component: the directions of links and the numbers of peripherals are left out.
func kindOf(component string) string {
	kind, _, _ := strings.Cut(component, "/")
	return kind
}

// kinds are the kinds of all components, and of group faults, each once.
var kinds = func() []string {
	out := []string{groupComponent}
	for _, c := range fault.Components() {
		if k := kindOf(c.String()); !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	return out
}()

var severities = [...]lofamov1.IncidentSeverity{lofamov1.IncidentSeverity_CRITICAL, lofamov1.IncidentSeverity_WARNING}

// acknowledgedBy returns the operator who deals with an incident; "" for an outdated acknowledgement.
func acknowledgedBy(in *lofamov1.Incident) string {
	if in.GetAcknowledgement().GetOutdated() {
		return ""
	}
	return in.GetAcknowledgement().GetBy()
}

// standing exports the incidents that are not CLOSED.
func (s *scrape) standing(all []*lofamov1.Incident) {
	open := make(map[[2]string]int)
	var list []*lofamov1.Incident
	for _, in := range all {
		switch in.GetState() {
		case lofamov1.IncidentState_OPEN:
			open[[2]string{in.GetSeverity().String(), kindOf(in.GetComponent())}]++
		case lofamov1.IncidentState_RECOVERING:
		default:
			continue
		}
		list = append(list, in)
	}
	for _, severity := range severities {
		for _, kind := range kinds {
			s.gauge(s.incidents, float64(open[[2]string{severity.String(), kind}]), severity.String(), kind)
		}
	}
	slices.SortFunc(list, func(a, b *lofamov1.Incident) int {
		return cmp.Or(-cmp.Compare(a.GetSeverity(), b.GetSeverity()), cmp.Compare(one(a.GetGroup() == ""), one(b.GetGroup() == "")),
			cmp.Compare(one(acknowledgedBy(a) != ""), one(acknowledgedBy(b) != "")),
			a.GetSince().AsTime().Compare(b.GetSince().AsTime()), cmp.Compare(a.GetId(), b.GetId()))
	})
	for _, in := range list[:min(len(list), MaxIncidents)] {
		s.gauge(s.incidentSince, float64(in.GetSince().AsTime().UnixMilli())/1000, in.GetId(), in.GetState().String(), in.GetSeverity().String(),
			in.GetNode(), in.GetComponent(), in.GetPeer(), in.GetGroup(), in.GetCause().String(), in.GetFault().String(), in.GetRunbook(),
			acknowledgedBy(in))
	}
	s.gauge(s.leftOut, float64(max(0, len(list)-MaxIncidents)), "lofamo_incident_since_timestamp_seconds")
}
