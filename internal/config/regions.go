package config

import (
	"fmt"
	"slices"
)

// validateReport checks where agents send to: to a parent they do not.
func (s Supervisor) validateReport(p *problems, udp taken) {
	if s.Parent() {
		if s.Report != "" || len(s.ReportAlternates) > 0 {
			p.bad("report", s.Report, "none: a parent of regions has no nodes of its own")
		}
		if s.GossipListen != "" {
			p.bad("gossipListen", s.GossipListen, "none: a parent of regions has no nodes of its own")
		}
		return
	}
	p.listen("report", s.Report)
	udp.add(p, "report", s.Report)
	p.alternates("report", s.Report, "reportAlternates", s.ReportAlternates)
}

// validateRegions checks the assignment of members to regions.
func (s Supervisor) validateRegions(p *problems) {
	nodes, ids := make(map[string]int), make(map[string]string)
	others := func(field string, list []UpstreamEntry) {
		if len(list) == 0 {
			p.bad(field, "", "at least one supervisor")
		}
		for i, u := range list {
			at := fmt.Sprintf("%s[%d]", field, i)
			p.name(at+".id", u.ID)
			if first, ok := ids[u.ID]; ok {
				p.bad(at+".id", u.ID, "each supervisor once: %s has it", first)
			}
			ids[u.ID] = at
			p.remote(at+".grpc", u.GRPC)
		}
	}
	for i, r := range s.Regions {
		field := fmt.Sprintf("regions[%d]", i)
		p.name(field+".name", r.Name)
		if _, ok := nodes[r.Name]; ok {
			p.bad(field+".name", r.Name, "each region once")
		}
		nodes[r.Name] = 0
		others(field+".supervisors", r.Supervisors)
	}
	for i, n := range s.Nodes {
		_, ok := nodes[n.Region]
		switch {
		case ok:
			nodes[n.Region]++
		case n.Region != "" || len(s.Regions) > 0:
			p.bad(fmt.Sprintf("nodes[%d].region", i), n.Region, "one of regions where there are any, else nothing")
		}
	}
	for i, r := range s.Regions {
		if nodes[r.Name] == 0 {
			p.bad(fmt.Sprintf("regions[%d]", i), r.Name, "a region of at least one node")
		}
	}
	if s.Region != "" {
		if !slices.ContainsFunc(s.Regions, func(r RegionEntry) bool { return r.Name == s.Region }) {
			p.bad("region", s.Region, "one of regions")
		}
	} else if len(s.Upstream) > 0 {
		p.bad("upstream", len(s.Upstream), "none without region")
	}
	if len(s.Upstream) > 0 {
		others("upstream", s.Upstream)
	}
}
