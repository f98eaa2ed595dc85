package respond

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// followIncidents gives the engine the root causes of the open incidents, now and after each change.
func (r *Responder) followIncidents(ctx context.Context) error {
	var roots response.IncidentsChanged
	for {
		v := r.cfg.Incidents.Standing()
		if now := rootsOf(v.Incidents); v.Ready && (roots.Roots == nil || !sameRoots(roots, now)) {
			roots = now
			r.queue.put(input{event: roots})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-v.Changed:
		}
	}
}

func sameRoots(a, b response.IncidentsChanged) bool {
	return maps.Equal(a.Roots, b.Roots) && maps.Equal(a.Ends, b.Ends) && maps.Equal(a.Parts, b.Parts) && maps.Equal(a.Standing, b.Standing)
}

// rootsOf indexes the incidents that are not closed by root cause and consequence. It leaves out components that only another
// version knows. Only OPEN incidents have roots. If several incidents list one consequence, an OPEN one counts rather than one that
// recovers, and then the one with the greatest id. So the incidents need no sorting: in a storm, thousands are open and each
// commit changes some.
func rootsOf(all []*store.StoredIncident) response.IncidentsChanged {
	out := response.IncidentsChanged{
		Roots: make(map[response.Target]string, len(all)), Ends: make(map[response.Target]response.Target),
		Parts: make(map[response.Target]string), Standing: make(map[string]uint32, len(all)),
	}
	recovering := make(map[response.Target]string) // consequences of incidents that recover, which count where no OPEN incident lists them
	for _, in := range all {
		if in.GetState() == lofamov1.IncidentState_CLOSED {
			continue
		}
		out.Standing[in.GetId()] = 0
		if ack := in.GetAcknowledgement(); ack.GetOutdated() {
			out.Standing[in.GetId()] = ack.GetEscalations() + 1
		}
		parts := recovering
		if in.GetState() == lofamov1.IncidentState_OPEN {
			parts = out.Parts
			addRoot(&out, in)
		}
		for _, part := range in.GetConsequences() {
			if c, err := fault.ParseComponent(part.GetComponent()); err == nil {
				t := response.Target{Node: fault.NodeID(part.GetNode()), Component: c}
				parts[t] = max(parts[t], in.GetId())
			}
		}
	}
	for t, id := range recovering {
		if _, open := out.Parts[t]; !open {
			out.Parts[t] = id
		}
	}
	return out
}

// addRoot adds the root cause of an OPEN incident, unless an incident with a greater id has the same.
func addRoot(out *response.IncidentsChanged, in *store.StoredIncident) {
	if in.GetGroup() != "" {
		root := response.Target{Group: in.GetGroup()}
		out.Roots[root] = max(out.Roots[root], in.GetId())
		return
	}
	c, err := fault.ParseComponent(in.GetComponent())
	if err != nil {
		return
	}
	root := response.Target{Node: fault.NodeID(in.GetNode()), Component: c}
	if out.Roots[root] > in.GetId() {
		return
	}
	out.Roots[root] = in.GetId()
	if d, link := c.LinkDirection(); link && in.GetPeer() != "" {
		out.Ends[root] = response.Target{Node: fault.NodeID(in.GetPeer()), Component: fault.Link(d.Opposite())}
	} else {
		delete(out.Ends, root)
	}
}

// incidentPlace is the place of a response in its incident's record; without a record there is none.
type incidentPlace struct {
	record *response.IncidentRecord
	at     int
}

// notice returns the incident's notice with which the response began.
func (p incidentPlace) notice() uint32 {
	if p.record == nil {
		return 0
	}
	return p.record.Responses[p.at].Notice
}

// onePerIncident keeps only one of the standing notifications that an incident needs once: the oldest of those with its
// newest notice.
func onePerIncident(jobs []executor.Job, records []response.Record) []executor.Job {
	of := make(map[string]incidentPlace)
	for _, rec := range records {
		if rec, ok := rec.(*response.IncidentRecord); ok {
			for i := range rec.Responses {
				of[rec.Responses[i].ID] = incidentPlace{rec, i}
			}
		}
	}
	type notification struct{ incident, key string }
	best := make(map[notification]int)
	named := func(i int) (n notification, p incidentPlace) {
		j := &jobs[i]
		if p = of[j.Response]; p.record == nil {
			return n, p
		}
		j.Incident, j.Notice = p.record.Incident, p.record.Responses[p.at].Label
		if key := response.NotificationKey(j.Kind, j.Parameters); slices.Contains(p.record.Responses[p.at].Notified, key) {
			n = notification{j.Incident, key}
		}
		return n, p
	}
	for i := range jobs {
		n, p := named(i)
		if n.key == "" {
			continue
		}
		k, ok := best[n]
		if q := of[jobs[k].Response]; !ok || cmp.Or(cmp.Compare(q.notice(), p.notice()), cmp.Compare(p.at, q.at)) < 0 {
			best[n] = i
		}
	}
	out := jobs[:0]
	for i := range jobs {
		if n, _ := named(i); n.key == "" || best[n] == i {
			out = append(out, jobs[i])
		}
	}
	return out
}

// standing returns the incidents that are not CLOSED.
func (r *Responder) standing() []*store.StoredIncident { return r.cfg.Incidents.Standing().Incidents }

// deathOf describes the death of a target's machine for people, from the incident of the node or half: whether its kernel
// is dead, its last words, and how the boot ended. Empty: nothing is known, or the target is another part.
func deathOf(standing []*store.StoredIncident, t response.Target) string {
	if t.Group != "" || t.Component > fault.ComponentDNP {
		return ""
	}
	var words []string
	for _, in := range standing {
		c, err := fault.ParseComponent(in.GetComponent())
		if err != nil || c > fault.ComponentDNP || in.GetNode() != string(t.Node) {
			continue
		}
		if c != t.Component && c != fault.ComponentNode && t.Component != fault.ComponentNode {
			continue // of the other half
		}
		if own := servicenet.DeathNotes(in.Incident); words == nil || c == t.Component {
			words = own
		}
	}
	return strings.Join(words, "; ")
}
