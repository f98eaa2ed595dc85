package orders

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// report draws everything together.
func (r *diagnosisRun) report() *lofamov1.DiagnosisReport {
	all := make([]diagnosis.NodeFindings, 0, len(r.order))
	for _, id := range r.order {
		n := r.nodes[id]
		all = append(all, diagnosis.NodeFindings{Node: n.coord, DNP: n.known != 0, Links: n.found, OwnHost: n.own, Host: n.host})
	}
	c := diagnosis.Collate(r.topo.Dims, all)
	out := &lofamov1.DiagnosisReport{
		Started: timestamppb.New(r.started), TookMs: uint32(time.Since(r.started).Milliseconds()), Scope: r.req.String(), Subject: r.req.Subject,
		Nodes: uint32(len(r.order)), Supervisor: r.m.cfg.Self,
	}
	for _, at := range c.Silent {
		out.Silent = append(out.Silent, r.name(at))
	}
	now := r.m.cfg.Names.Topology()
	for i := range c.Found {
		if f := &c.Found[i]; !r.doubtful(now, f) {
			out.Faults = append(out.Faults, r.fault(f))
		}
	}
	for _, o := range c.Open {
		out.Open = append(out.Open, &lofamov1.DiagnosisQuestion{Node: r.name(o.Node), Explanation: o.Explanation})
	}
	for _, id := range r.order {
		if r.changed(now, r.nodes[id].coord) {
			out.Open = append(out.Open, &lofamov1.DiagnosisQuestion{Node: string(id), Explanation: changedMeanwhile})
		}
		if why := r.nodes[id].refused; why != "" {
			out.Open = append(out.Open, &lofamov1.DiagnosisQuestion{Node: string(id), Explanation: "it tested nothing: " + why})
		}
	}
	for i := range c.Links {
		l := &c.Links[i]
		if r.relinked(now, l.Node, l.Dir) {
			l.Verdict, l.Explanation = diagnosis.Inconclusive, changedMeanwhile
		}
		out.Links = append(out.Links, &lofamov1.DiagnosedLink{
			Node: r.name(l.Node), Direction: l.Dir.String(), Peer: r.name(l.Peer), Verdict: verdictOf(l), Explanation: l.Explanation,
			Here: encodeFinding(l.Here), There: encodeFinding(l.There),
		})
	}
	return out
}

// changedMeanwhile is the explanation for findings about a part of the torus that has changed during the tests.
const changedMeanwhile = "the torus has changed meanwhile: test again"

// doubtful reports whether the torus has changed around a part that was found dead. A half that follows the change tests another link.
func (r *diagnosisRun) doubtful(now *topology.Topology, f *diagnosis.Found) bool {
	if f.Part == diagnosis.PartLink {
		return r.relinked(now, f.Node, f.Dir)
	}
	return r.changed(now, f.Node)
}

// changed reports whether a node has another place now, or one of its tested links leads to another node.
func (r *diagnosisRun) changed(now *topology.Topology, at grid.Coord) bool {
	if r.moved(now, at) {
		return true
	}
	n := r.nodes[r.at[at]]
	for _, d := range r.topo.Dims.LinksOf(at) {
		if (n == nil || n.links>>d.Index()&1 != 0) && r.relinked(now, at, d) {
			return true
		}
	}
	return false
}

// relinked reports whether a link leads to another node now.
func (r *diagnosisRun) relinked(now *topology.Topology, at grid.Coord, d grid.Direction) bool {
	was, had := r.topo.Dims.Neighbour(at, d)
	if !had || r.moved(now, at) || r.moved(now, was) {
		return had
	}
	is, has := now.Dims.Neighbour(at, d)
	return !has || is != was
}

// moved reports whether the node of a place has another place now, or none. A place in another region never changes.
func (r *diagnosisRun) moved(now *topology.Topology, at grid.Coord) bool {
	id, ok := r.at[at]
	if !ok {
		return false
	}
	n, known := now.Node(id)
	return !known || n.Spare || n.Coord != at
}

// name returns the id of the node at a place, or its coordinates if there is none.
func (r *diagnosisRun) name(at grid.Coord) string {
	if id, ok := r.at[at]; ok {
		return string(id)
	}
	return at.String()
}

func (r *diagnosisRun) fault(f *diagnosis.Found) *lofamov1.DiagnosisFault {
	out := &lofamov1.DiagnosisFault{Node: r.name(f.Node), OutDead: f.OutDead, InDead: f.InDead, Explanation: f.Explanation}
	switch f.Part {
	case diagnosis.PartHost:
		out.Part = lofamov1.DiagnosisPart_PART_HOST_HALF
	case diagnosis.PartDNP:
		out.Part = lofamov1.DiagnosisPart_PART_DNP_HALF
	case diagnosis.PartNode:
		out.Part = lofamov1.DiagnosisPart_PART_NODE
	case diagnosis.PartLink:
		out.Part, out.Direction = lofamov1.DiagnosisPart_PART_LINK, f.Dir.String()
		if peer, ok := r.topo.Dims.Neighbour(f.Node, f.Dir); ok {
			out.Peer = r.name(peer)
		}
	}
	return out
}

// verdictOf returns the verdict to show for a link. For a working link with a silent host half at one end, the
// verdict says so.
func verdictOf(l *diagnosis.LinkResult) lofamov1.LinkVerdict {
	switch l.Verdict {
	case diagnosis.Good:
		for _, f := range [...]*diagnosis.Finding{l.Here, l.There} {
			if f != nil && diagnosis.Judge(*f, nil) == diagnosis.HostSilent {
				return lofamov1.LinkVerdict_LINK_HOST_SILENT
			}
		}
		return lofamov1.LinkVerdict_LINK_GOOD
	case diagnosis.Slow:
		return lofamov1.LinkVerdict_LINK_SLOW
	case diagnosis.HostSilent:
		return lofamov1.LinkVerdict_LINK_HOST_SILENT
	case diagnosis.Lossy:
		return lofamov1.LinkVerdict_LINK_LOSSY
	case diagnosis.Corrupt:
		return lofamov1.LinkVerdict_LINK_CORRUPT
	case diagnosis.Dead:
		return lofamov1.LinkVerdict_LINK_DEAD
	case diagnosis.NothingAnswers:
		return lofamov1.LinkVerdict_LINK_NOTHING_ANSWERS
	case diagnosis.Inconclusive:
		return lofamov1.LinkVerdict_LINK_INCONCLUSIVE
	}
	return lofamov1.LinkVerdict_LINK_VERDICT_UNSPECIFIED
}

func findingOf(l *lofamov1.LinkFinding) diagnosis.Finding {
	return diagnosis.Finding{
		Dir: grid.Direction(l.GetDirection()), DNP: testOf(l.GetDnp()), Host: testOf(l.GetHost()), Through: testOf(l.GetThrough()),
		Heard: l.GetHeard(), Missed: l.GetMissed(), Damaged: l.GetDamaged(),
	}
}

func testOf(t *lofamov1.DiagnosisTest) diagnosis.Test {
	us := func(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
	return diagnosis.Test{
		Sent: t.GetSent(), Answered: t.GetAnswered(), Altered: t.GetAltered(), Late: t.GetLate(),
		Min: us(t.GetMinUs()), Median: us(t.GetMedianUs()), Max: us(t.GetMaxUs()),
	}
}

func encodeFinding(f *diagnosis.Finding) *lofamov1.LinkFinding {
	if f == nil {
		return nil
	}
	return &lofamov1.LinkFinding{
		Direction: uint32(f.Dir), Dnp: encodeTest(f.DNP), Host: encodeTest(f.Host), Through: encodeTest(f.Through),
		Heard: f.Heard, Missed: f.Missed, Damaged: f.Damaged,
	}
}

func encodeTest(t diagnosis.Test) *lofamov1.DiagnosisTest {
	return &lofamov1.DiagnosisTest{
		Sent: t.Sent, Answered: t.Answered, Altered: t.Altered, Late: t.Late,
		MinUs: uint32(t.Min.Microseconds()), MedianUs: uint32(t.Median.Microseconds()), MaxUs: uint32(t.Max.Microseconds()),
	}
}
