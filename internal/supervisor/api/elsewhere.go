package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// A parent of regions has no state of its own that an operator could change. It refers callers to a region.

// reasonAskRegion refers the caller to the supervisors of a region. Metadata holds their addresses by region,
// separated by commas.
const reasonAskRegion = "ASK_REGION"

// maxRegionsNamed bounds the regions that a refusal names.
const maxRegionsNamed = 8

// elsewhere refuses a change of nodes at a parent of regions. It returns nil on other supervisors.
func (s *Server) elsewhere(nodes []fault.NodeID) error {
	if s.cfg.RegionSupervisors == nil {
		return nil
	}
	concerned := make(map[string]bool)
	for _, id := range nodes {
		if name := s.cfg.RegionOf(id); s.cfg.RegionSupervisors[name] != nil {
			concerned[name] = true
		}
	}
	names := slices.Sorted(maps.Keys(concerned))
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(s.cfg.RegionSupervisors))
	}
	more := ""
	if n := len(names) - maxRegionsNamed; n > 0 {
		names, more = names[:maxRegionsNamed], fmt.Sprintf(", or of %d more", n)
	}
	info := make(map[string]string, len(names))
	texts := make([]string, len(names))
	for i, name := range names {
		info[name] = strings.Join(s.cfg.RegionSupervisors[name], ",")
		texts[i] = fmt.Sprintf("%s (%s)", name, strings.Join(s.cfg.RegionSupervisors[name], ", "))
	}
	one := ""
	if len(names) > 1 {
		one = ", each for its own nodes"
	}
	return withInfo(codes.FailedPrecondition, reasonAskRegion,
		fmt.Sprintf("a parent of regions changes nothing: ask the supervisors of region %s%s%s (lofamoctl --region NAME, or --server ADDRESS)",
			strings.Join(texts, ", "), more, one), info)
}

// markElsewhere is elsewhere for maintenance marks. It reports errors in the names first.
func (s *Server) markElsewhere(nodes []string) error {
	if s.cfg.RegionSupervisors == nil {
		return nil
	}
	ids, err := s.marked(nodes)
	return cmp.Or(err, s.elsewhere(ids))
}

// applyElsewhere is elsewhere for a topology. It names the regions of the nodes that would change.
func (s *Server) applyElsewhere(p *lofamov1.Topology) error {
	if s.cfg.RegionSupervisors == nil {
		return nil
	}
	to, err := topology.FromProto(p)
	if err != nil {
		return invalidTopology(err)
	}
	var nodes []fault.NodeID
	if to.Region == "" {
		for _, c := range topology.Diff(s.cfg.Names.Topology(), to) {
			nodes = append(nodes, c.Node)
		}
	} else {
		for _, n := range to.Placed() {
			nodes = append(nodes, n.ID)
		}
	}
	return s.elsewhere(nodes)
}
