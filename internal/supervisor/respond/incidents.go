package respond

import (
	"cmp"
	"context"
	"reflect"
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
		if now := rootsOf(v.Incidents); v.Ready && (roots.Roots == nil || !reflect.DeepEqual(roots, now)) {
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

// rootsOf returns the ids of the open incidents by root cause and consequence. It leaves out components that only another
// version knows.
func rootsOf(all []*store.StoredIncident) response.IncidentsChanged {
	out := response.IncidentsChanged{
		Roots: make(map[response.Target]string), Ends: make(map[response.Target]response.Target),
		Parts: make(map[response.Target]string), Standing: make(map[string]uint32),
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *store.StoredIncident) int { // of two incidents that list a part, the OPEN one counts
		return cmp.Or(cmp.Compare(b.GetState(), a.GetState()), strings.Compare(a.GetId(), b.GetId()))
	})
	for _, in := range all {
		if in.GetState() == lofamov1.IncidentState_CLOSED {
			continue
		}
		out.Standing[in.GetId()] = 0
		if ack := in.GetAcknowledgement(); ack.GetOutdated() {
			out.Standing[in.GetId()] = ack.GetEscalations() + 1
		}
		for _, part := range in.GetConsequences() {
			if c, err := fault.ParseComponent(part.GetComponent()); err == nil {
				out.Parts[response.Target{Node: fault.NodeID(part.GetNode()), Component: c}] = in.GetId()
			}
		}
		if in.GetState() != lofamov1.IncidentState_OPEN {
			continue
		}
		if in.GetGroup() != "" {
			out.Roots[response.Target{Group: in.GetGroup()}] = in.GetId()
			continue
		}
		c, err := fault.ParseComponent(in.GetComponent())
		if err != nil {
			continue
		}
		root := response.Target{Node: fault.NodeID(in.GetNode()), Component: c}
		out.Roots[root] = in.GetId()
		if d, link := c.LinkDirection(); link && in.GetPeer() != "" {
			out.Ends[root] = response.Target{Node: fault.NodeID(in.GetPeer()), Component: fault.Link(d.Opposite())}
		}
	}
	return out
}

// onePerIncident keeps only one of the standing notifications that an incident needs once: the oldest of those with its
// newest notice.
func onePerIncident(jobs []executor.Job, records []response.Record) []executor.Job {
	type place struct {
		record *response.IncidentRecord
		at     int
	}
	of := make(map[string]place)
	for _, rec := range records {
		if rec, ok := rec.(*response.IncidentRecord); ok {
			for i := range rec.Responses {
				of[rec.Responses[i].ID] = place{rec, i}
			}
		}
	}
	type notification struct{ incident, key string }
	best := make(map[notification]int)
	named := func(i int) (n notification, p place) {
		j := &jobs[i]
		if p = of[j.Response]; p.record == nil {
			return n, p
		}
		j.Incident, j.Notice = p.record.Incident, p.record.Responses[p.at].Notice
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
		if k, ok := best[n]; !ok || cmp.Or(cmp.Compare(jobs[k].Notice, jobs[i].Notice), cmp.Compare(p.at, of[jobs[k].Response].at)) < 0 {
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
