package awareness

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Config is the configuration of a machine. The periods are those of the cluster's preset.
type Config struct {
	Dims grid.Dims
	IDs  map[grid.Coord]fault.NodeID // every node of the torus, or of the region: see Foreign
	// Foreign holds the nodes in IDs that belong to other regions and border on this one. They are witnesses and
	// forward challenges, but are never judged and have no place in the map. If it is not nil, IDs may omit
	// coordinates: those of other regions that do not border on this one. nil: the torus is one region.
	Foreign map[fault.NodeID]bool
	// Revision of the topology in the store; 0: unknown. See Wiring.Revision.
	Revision uint64
	// Known reports whether any leader has accepted reports of a node, also at a place that it has left since; nil: not known.
	Known func(fault.NodeID) bool
	// Supervisor is this replica's id, for evidence that it gathers itself.
	Supervisor string

	// Time limits for an answer to a challenge before the verdict: on a whole node, on one half, and on a whole node
	// with fewer live witnesses than the quorum.
	ChallengeNode, ChallengeHalf, ChallengeSingle time.Duration
	// After DigestMisses times DigestPeriod without a report from a half, states that depend on its statements become
	// UNKNOWN.
	DigestPeriod time.Duration
	DigestMisses int
	// Grace is how long a new leader gathers evidence before any new FAILED; one DigestPeriod.
	Grace time.Duration
	// StartGrace is how long a new leader keeps the states of nodes that it has not heard yet; 0 or less than DigestMisses
	// times DigestPeriod for that product. Nodes that start together with the supervisors need it.
	StartGrace time.Duration
	// LinkGrace is how long a DNP half waits after its start for the first frame on a link; 0 for DefaultLinkGrace.
	LinkGrace time.Duration
	// HalfBound is the guaranteed detection time for a dead half. LinkSettle is how long a silent link waits for its
	// peer's death to explain it; 0 for HalfBound. PauseSettle is how long it waits after the peer's answer, at most LinkSettle:
	// if the peer paused, its next frame and the report of it arrive within that time; 0 for a third of HalfBound.
	HalfBound, LinkSettle, PauseSettle time.Duration
	// RelinkBound is how long a link that leads to another peer since a change of places (Moved) may take until it works:
	// until then silence on it proves nothing. 0 for DefaultRelinkBound.
	RelinkBound time.Duration
	// HoldOff is the minimum time between changes of a flapping component; 0 for no limit. A component flaps from its
	// third change within HoldOff. Halves and nodes are never delayed.
	HoldOff time.Duration
	// Horizon is how far ahead the machine warns of a trend towards a threshold; 0 disables trend warnings.
	Horizon time.Duration
	// StopLimit is how long a node that announced a stop may be away without a fault; 0: stops are not excused.
	StopLimit time.Duration
	// Quiet is how long all must be well before an incident is CLOSED, at least four digest periods.
	Quiet time.Duration
	// Labels of nodes, by key; nodes without labels may be omitted. DomainLabels are the keys whose values are failure
	// domains, e.g. rack, switch, power. Nodes that share a value do not confirm one another's accusations. When all of
	// them have the same fault, they form one group fault.
	Labels       map[fault.NodeID]map[string]string
	DomainLabels []string
	// Nonce returns 16 fresh random bytes; injected, so that the machine itself is deterministic.
	Nonce func() [16]byte
}

// DefaultRelinkBound is the usual Config.RelinkBound: an order is repeated up to 10 s apart.
const DefaultRelinkBound = 15 * time.Second

// DefaultLinkGrace is the usual Config.LinkGrace.
const DefaultLinkGrace = 5 * time.Second

// Window returns how long a half's statements count without a newer report.
func (c Config) Window() time.Duration { return time.Duration(c.DigestMisses) * c.DigestPeriod }

// Validate names every bad field.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	if err := c.Dims.Validate(); err != nil && c.Dims != (grid.Dims{}) {
		errs = append(errs, err)
	} else {
		errs = append(errs, c.validateIDs()...)
	}
	for _, p := range []struct {
		name string
		d    time.Duration
	}{
		{"ChallengeNode", c.ChallengeNode}, {"ChallengeHalf", c.ChallengeHalf}, {"ChallengeSingle", c.ChallengeSingle},
		{"DigestPeriod", c.DigestPeriod}, {"HalfBound", c.HalfBound},
	} {
		if p.d <= 0 {
			bad(p.name, p.d, "more than 0s")
		}
	}
	for _, p := range []struct {
		name string
		d    time.Duration
	}{
		{"Grace", c.Grace}, {"StartGrace", c.StartGrace}, {"LinkGrace", c.LinkGrace}, {"LinkSettle", c.LinkSettle},
		{"PauseSettle", c.PauseSettle}, {"RelinkBound", c.RelinkBound}, {"HoldOff", c.HoldOff}, {"Horizon", c.Horizon},
		{"StopLimit", c.StopLimit}, {"Quiet", c.Quiet},
	} {
		if p.d < 0 {
			bad(p.name, p.d, "0s or more")
		}
	}
	if c.DigestMisses < 2 {
		bad("DigestMisses", c.DigestMisses, "2 or more")
	}
	if c.Supervisor == "" {
		bad("Supervisor", `""`, "an id")
	}
	errs = append(errs, c.validateLabels()...)
	if c.Nonce == nil {
		bad("Nonce", "nil", "a source of random bytes")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("awareness configuration: %w", err)
	}
	return nil
}

func (c Config) validateIDs() []error {
	var errs []error
	seen := make(map[fault.NodeID]grid.Coord, len(c.IDs))
	own := 0
	for at := range c.Dims.All() {
		id := c.IDs[at]
		if id == "" && c.Foreign != nil {
			continue
		}
		if id == "" {
			errs = append(errs, fmt.Errorf("IDs: no id for %s: want one for each of the %d nodes of the %s torus", at, c.Dims.Nodes(), c.Dims))
			break
		}
		if other, dup := seen[id]; dup {
			errs = append(errs, fmt.Errorf("IDs: %s and %s are both %q: want distinct ids", other, at, id))
		}
		seen[id] = at
		if !c.Foreign[id] {
			own++
		}
	}
	if c.Foreign != nil {
		errs = append(errs, c.validateForeign(seen, own)...)
	}
	if c.Foreign == nil && len(c.IDs) > c.Dims.Nodes() {
		errs = append(errs, fmt.Errorf("IDs: given %d ids: want %d, one for each node of the %s torus", len(c.IDs), c.Dims.Nodes(), c.Dims))
	}
	return errs
}

// validateForeign checks a region. seen holds the nodes in the torus; own counts those of the region.
func (c Config) validateForeign(seen map[fault.NodeID]grid.Coord, own int) []error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(c.Foreign)) {
		if _, ok := seen[id]; !ok {
			errs = append(errs, fmt.Errorf("%s: given %q: want only nodes of IDs", "Foreign", id))
		}
	}
	if own == 0 {
		errs = append(errs, fmt.Errorf("%s: given all of the %d nodes: want at least one of this region", "Foreign", len(seen)))
	}
	if n := len(c.IDs); n > len(seen) {
		errs = append(errs, fmt.Errorf("IDs: given %d ids, %d of them in the %s torus: want no other", n, len(seen), c.Dims))
	}
	return errs
}

func (c Config) validateLabels() []error {
	var errs []error
	for i, k := range c.DomainLabels {
		if k == "" || slices.Contains(c.DomainLabels[:i], k) {
			errs = append(errs, fmt.Errorf("DomainLabels: given %q: want distinct keys that are not empty", k))
		}
	}
	if len(c.Labels) == 0 {
		return errs
	}
	known := 0
	for _, id := range c.IDs {
		if c.Labels[id] != nil {
			known++
		}
	}
	if known < len(c.Labels) {
		errs = append(errs, fmt.Errorf("%s: given for %d nodes, of which %d are of the %s torus: want no others", "Labels", len(c.Labels),
			known, c.Dims))
	}
	return errs
}

// Quorum returns the number of distinct neighbours that must accuse a node: ⌊degree/2⌋+1 and never fewer than 2.
func Quorum(degree int) int { return max(2, degree/2+1) }
