package servicenet

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func mapOrder() *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{
		Number: &lofamov1.OrderNumber{Term: 7, Count: 2}, Node: "n0-0-1", Region: []uint32{0, 5, maxRank}, ReplyTo: "127.0.0.1:9"}}}
}

func mapFindings() *lofamov1.Message {
	f := &lofamov1.MapFindings{Number: &lofamov1.OrderNumber{Term: 7, Count: 2}, Node: "n0-0-1", Epoch: 3, Part: 1, Parts: 2}
	for i := range MaxMapNodes {
		f.Nodes = append(f.Nodes, &lofamov1.MappedNode{
			Rank: uint32(maxRank - MaxMapNodes + i), Dnp: lofamov1.MapKnowledge_MAP_GOOD, Host: lofamov1.MapKnowledge_MAP_BAD, LinksGood: 0x38,
			LinksBad: 7, RoundTripUs: maxTripUs,
		})
	}
	return &lofamov1.Message{Body: &lofamov1.Message_MapFindings{MapFindings: f}}
}

func TestCheckMap(t *testing.T) {
	for _, c := range []struct {
		want  string // in the error; "" passes
		order func(*lofamov1.MapOrder)
		found func(*lofamov1.MapFindings)
	}{
		{want: "", order: func(*lofamov1.MapOrder) {}},
		{want: "map_order.number.term", order: func(o *lofamov1.MapOrder) { o.Number = nil }},
		{want: "map_order.node", order: func(o *lofamov1.MapOrder) { o.Node = "n/0" }},
		{want: "map_order.region", order: func(o *lofamov1.MapOrder) { o.Region = nil }},
		{want: "map_order.region", order: func(o *lofamov1.MapOrder) { o.Region = make([]uint32, MaxMapRegion+1) }},
		{want: "map_order.region", order: func(o *lofamov1.MapOrder) { o.Region = []uint32{4, 4} }},
		{want: "map_order.region", order: func(o *lofamov1.MapOrder) { o.Region = []uint32{maxRank + 1} }},
		{want: "map_order.reply_to", order: func(o *lofamov1.MapOrder) { o.ReplyTo = "s0:7" }},
		{want: "", found: func(*lofamov1.MapFindings) {}},
		{want: "", found: func(f *lofamov1.MapFindings) { f.Nodes, f.Part, f.Parts, f.Error = nil, 0, 1, "region: given 0 nodes" }},
		{want: "map_findings.number.count", found: func(f *lofamov1.MapFindings) { f.Number.Count = 0 }},
		{want: "map_findings.node", found: func(f *lofamov1.MapFindings) { f.Node = "" }},
		{want: "map_findings.epoch", found: func(f *lofamov1.MapFindings) { f.Epoch = 0 }},
		{want: "map_findings.part", found: func(f *lofamov1.MapFindings) { f.Part = 2 }},
		{want: "map_findings.part", found: func(f *lofamov1.MapFindings) { f.Parts = MaxMapParts + 1 }},
		{want: "map_findings.nodes", found: func(f *lofamov1.MapFindings) { f.Nodes = append(f.Nodes, f.GetNodes()[0]) }},
		{want: "map_findings.nodes.rank", found: func(f *lofamov1.MapFindings) { f.Nodes[3].Rank = 0 }},
		{want: "map_findings.nodes.rank", found: func(f *lofamov1.MapFindings) { f.Nodes[MaxMapNodes-1].Rank = maxRank + 1 }},
		{want: "map_findings.nodes.dnp", found: func(f *lofamov1.MapFindings) { f.Nodes[0].Dnp = 0 }},
		{want: "map_findings.nodes.host", found: func(f *lofamov1.MapFindings) { f.Nodes[0].Host = 4 }},
		{want: "map_findings.nodes.links_good", found: func(f *lofamov1.MapFindings) { f.Nodes[0].LinksGood = 64 }},
		{want: "map_findings.nodes.links_bad", found: func(f *lofamov1.MapFindings) { f.Nodes[0].LinksBad = 8 }},
		{want: "map_findings.nodes.round_trip_us", found: func(f *lofamov1.MapFindings) { f.Nodes[0].RoundTripUs = maxTripUs + 1 }},
		{want: "map_findings.error", found: func(f *lofamov1.MapFindings) { f.Error = strings.Repeat("x", fault.MaxDetail+1) }},
	} {
		m := mapOrder()
		if c.found != nil {
			m = mapFindings()
			c.found(m.GetMapFindings())
		} else {
			c.order(m.GetMapOrder())
		}
		_, err := checkMessage(m)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: want an error with %q, got %v", m, c.want, err)
		}
	}
}

// Findings of as many nodes as one message may have fit a relayed message: a half does not split them.
func TestMapFindingsFitRelayed(t *testing.T) {
	m := mapFindings()
	f := m.GetMapFindings()
	f.Node, f.Epoch, f.Number = strings.Repeat("n", MaxNodeID), uint64(MaxEpoch), &lofamov1.OrderNumber{Term: 1 << 62, Count: 1 << 40}
	if _, err := checkMessage(m); err != nil {
		t.Fatal(err)
	}
	if n := proto.Size(m); n > MaxReportSize+8 {
		t.Errorf("findings of %d bytes: want at most %d", n, MaxReportSize+8)
	}
}
