package awareness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// GroupKind says what the members of a group fault have in common.
type GroupKind uint8

// The kinds of groups.
const (
	GroupRow       GroupKind = iota + 1 // a line of the torus
	GroupPlane                          // a plane of it, or the bundle of links that leaves one
	GroupBlock                          // a connected set of dead nodes, or one that fills a box
	GroupLabel                          // all nodes of a failure domain: rack, switch, power
	GroupPartition                      // a part of the torus to which no living way leads
)

var groupKindNames = [...]string{"", "ROW", "PLANE", "BLOCK", "LABEL", "PARTITION"}

// String returns the kind's name, as in the API.
func (k GroupKind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("GroupKind(%d)", uint8(k))
	}
	return groupKindNames[k]
}

// Valid says whether k is one of the kinds.
func (k GroupKind) Valid() bool { return k >= GroupRow && k <= GroupPartition }

// ParseGroupKind reads a kind's name as String prints it.
func ParseGroupKind(s string) (GroupKind, error) {
	if i := slices.Index(groupKindNames[1:], s); i >= 0 {
		return GroupKind(i + 1), nil
	}
	return 0, fmt.Errorf("group kind %q: want one of %s", s, strings.Join(groupKindNames[1:], ", "))
}

// GroupStatus is one fault that stands above the faults of its members.
type GroupStatus struct {
	// ID stays the same while the group lasts: "row/Y=1,Z=2", "plane/X=3", "block/0,0,0..9,9,9" (as it
	// was when it was found), "label/rack=r7", "partition/0,0,4"; of another cause than NODE with that
	// after it, "label/rack=r7/SERVICE_NETWORK".
	ID    string
	Kind  GroupKind
	State fault.State // FAILED; UNKNOWN for a partition; NORMAL only in the Output that ends it
	Cause fault.Cause // what of the members is at fault; NONE for a partition
	// Members are the nodes whose fault it explains, by rank, all of them. They are shared: not to be changed.
	Members []fault.NodeID
	// Of is how many nodes the row, plane or label has; for a block the most that it ever had.
	Of       int
	Inferred int       // members that no living witness sees: UNKNOWN, inferred dead
	Since    time.Time // when it was found
	Rule     string    // short name of the rule: docs/awareness.md
}

// Groups returns the group faults that stand, by ID.
func (m *Machine) Groups() []GroupStatus {
	return slices.Clone(m.groups)
}

// RestoreGroups puts back the group faults that were committed last; to be called before the first
// Step. They stand until the evidence no longer bears them out.
func (m *Machine) RestoreGroups(saved []GroupStatus) error {
	seen := map[string]bool{}
	for _, g := range saved {
		switch {
		case g.ID == "" || seen[g.ID]:
			return fmt.Errorf("restore group faults: given id %q: want distinct ids that are not empty", g.ID)
		case !g.Kind.Valid() || !g.State.Valid() || g.State == fault.Normal:
			return fmt.Errorf("restore group fault %s: given kind %s and state %s: want a kind and a state other than NORMAL", g.ID, g.Kind, g.State)
		}
		for _, id := range g.Members {
			if _, ok := m.ranks[id]; !ok {
				return fmt.Errorf("restore group fault %s: member %q: want one of the nodes of the %s torus", g.ID, id, m.cfg.Dims)
			}
		}
		seen[g.ID] = true
		m.groups = append(m.groups, g)
	}
	slices.SortFunc(m.groups, func(a, b GroupStatus) int { return strings.Compare(a.ID, b.ID) })
	return nil
}
