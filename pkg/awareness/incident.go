package awareness

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// IncidentState is the state of an incident.
//
//	OPEN ──root cause well──► RECOVERING ──all well for Quiet──► CLOSED
//	  ◄──────it returns──────────┘
//	  ◄──a consequence outlives the root cause by Recover: it becomes the root cause
type IncidentState uint8

// The states of an incident.
const (
	IncidentOpen       IncidentState = iota + 1 // the root cause stands
	IncidentRecovering                          // the root cause is well again; a consequence is not, or has only just recovered
	IncidentClosed                              // all is well, or another incident continues this one
)

var incidentStateNames = [...]string{"", "OPEN", "RECOVERING", "CLOSED"}

// Valid reports whether s is one of the states.
func (s IncidentState) Valid() bool { return s >= IncidentOpen && s <= IncidentClosed }

// String returns the state's name, as in the API.
func (s IncidentState) String() string {
	if !s.Valid() {
		return fmt.Sprintf("IncidentState(%d)", uint8(s))
	}
	return incidentStateNames[s]
}

// IncidentSeverity says how urgent an incident is.
type IncidentSeverity uint8

// The severities, the gravest last.
const (
	IncidentWarning  IncidentSeverity = iota + 1 // a part is lost, and the rest of its node goes on
	IncidentCritical                             // nodes are lost
)

// String returns the severity's name, as in the API.
func (s IncidentSeverity) String() string {
	switch s {
	case IncidentWarning:
		return "WARNING"
	case IncidentCritical:
		return "CRITICAL"
	}
	return fmt.Sprintf("IncidentSeverity(%d)", uint8(s))
}

// Part names what an incident is about: a component of a node, or a group fault. A link is named by one of its
// ends that has the fault: by the lower one, if that has it from the start.
type Part struct {
	Node      fault.NodeID
	Component fault.Component // 0: a group fault
	Group     string          // id of a group fault
}

// String returns "node/component" or the group's id. Incident IDs depend on it.
func (p Part) String() string {
	if p.Group != "" {
		return p.Group
	}
	return string(p.Node) + "/" + p.Component.String()
}

func comparePart(a, b Part) int {
	if d := strings.Compare(a.Group, b.Group); d != 0 {
		return d
	}
	if d := strings.Compare(string(a.Node), string(b.Node)); d != 0 {
		return d
	}
	return int(a.Component) - int(b.Component)
}

// IncidentVerdict is why the root cause was declared, as it stood then.
type IncidentVerdict struct {
	At            time.Time
	Rule          string // short name: docs/awareness.md
	Reason        string // the rule in words
	Evidence      []EvidenceStatus
	Witnesses     []string // observers whose statements support it, each once
	SingleWitness bool
	Supervisor    string // id of the leader
}

// Consequence is a fault, or an unknown part, that a root cause explains.
type Consequence struct {
	Node      fault.NodeID
	Component fault.Component
	State     fault.State
	Cause     fault.Cause
	Rule      string
}

// Incident is one fault with one root cause. See docs/awareness.md, "Incidents".
type Incident struct {
	ID           string
	State        IncidentState
	Severity     IncidentSeverity
	Root         Part
	Coord        grid.Coord   // of the root's node
	Peer         fault.NodeID // of a link: the node at its upper end
	Cause        fault.Cause
	Fault        fault.State // the root's worst state
	Since        time.Time
	Until        time.Time // when the last fault ended; zero: one stands
	Summary      string
	Verdict      IncidentVerdict
	Consequences []Consequence // the worst first, at most MaxConsequences
	Count        int           // of all consequences
	MergedInto   string        // id of the incident that continues this one
	Merged       []string      // ids of incidents that this one continues, at most MaxMerged
	SplitFrom    string
	Reopened     int
	Escalations  int       // how often it became graver: see escalate
	Escalated    time.Time // the last time; zero: never
	Labels       map[string]string
	Version      uint64 // from 1
	// LastWords, LastBoot and Kernel are the traces of the death of the root's machine: see MachineTrace.
	LastWords, LastBoot string
	Kernel              KernelVerdict
}

// Bounds of an incident.
const (
	MaxConsequences = 64
	MaxMerged       = 64
	maxSummary      = 512 // bytes, also of a verdict's reason
	maxWitnesses    = 16
	maxEvidence     = 16
)

// IncidentConfig is the configuration of Incidents.
type IncidentConfig struct {
	Cluster string // its name, which every ID depends on
	// Dims, IDs, Foreign, Supervisor, Labels and DomainLabels as in Config.
	Dims         grid.Dims
	IDs          map[grid.Coord]fault.NodeID
	Foreign      map[fault.NodeID]bool
	Supervisor   string
	Labels       map[fault.NodeID]map[string]string
	DomainLabels []string
	// Quiet is how long all must be well before an incident is CLOSED. A fault that returns earlier is the same incident.
	// Recover is how long a consequence may outlive the root cause before it becomes one itself.
	Quiet, Recover time.Duration
	// Settle is how long a root cause waits for others that may share its cause (incidenthold.go). It is longer than
	// the search for group faults takes.
	Settle time.Duration
	// KeepClosed and KeepFor bound the CLOSED incidents, by number and by time since Until.
	KeepClosed int
	KeepFor    time.Duration
}

// While more than manyStanding incidents stand, the next folding is put off by pausePerIncident for each of them. While
// more than manyParts parts have faults, or are hidden by one, it is put off by pausePerPart for each: see foldingPause.
const (
	manyStanding     = 128
	pausePerIncident = 100 * time.Microsecond
	manyParts        = 2000
	pausePerPart     = 10 * time.Microsecond
)

// Defaults of IncidentConfig. The least Quiet, and Recover, are in digest periods.
const (
	quietDigests   = 4
	recoverDigests = 20
	settleDigests  = 2
	keepClosed     = 1000
	keepFor        = 30 * 24 * time.Hour
)

// IncidentsOf returns the configuration of the incidents of a machine's map.
func IncidentsOf(cluster string, c Config) IncidentConfig {
	return IncidentConfig{
		Cluster: cluster, Dims: c.Dims, IDs: c.IDs, Foreign: c.Foreign, Supervisor: c.Supervisor, Labels: c.Labels,
		DomainLabels: c.DomainLabels, Quiet: max(c.Quiet, quietDigests*c.DigestPeriod), Recover: recoverDigests * c.DigestPeriod,
		Settle: max(settleDigests*c.DigestPeriod, 5*c.ChallengeNode), KeepClosed: keepClosed, KeepFor: keepFor,
	}
}

// Incidents folds the faults of the map into incidents. It is pure, like Machine. One goroutine owns it.
//
// An update folds all known faults into root causes (incidentfold.go), and then matches these with the standing
// incidents (incidentmatch.go), of which a new one may wait below another (incidenthold.go). It costs O(faults), and
// nothing while there are none. While there are many incidents or faulty parts, several updates share one folding: a
// change reaches its incident after at most foldingPause, at Wake.
type Incidents struct {
	cfg      IncidentConfig
	coords   map[fault.NodeID]grid.Coord
	ill      map[fault.NodeID]*illNode // nodes with a fault
	groups   []GroupStatus             // by ID
	standing []*incident               // OPEN and RECOVERING, the oldest first
	closed   []*Incident               // by Until
	ids      map[string]bool           // of all kept incidents
	wake     time.Time
	now      time.Time
	stale    bool      // there was an update since the last folding
	folded   time.Time // the last folding
	parts    int       // that it folded
	statuses func(fault.NodeID) (NodeStatus, bool)
	traces   map[fault.NodeID]MachineTrace

	changed   []*Incident // by the current update
	isChanged map[*Incident]bool
	gone      []string
}

// incident is a standing incident.
type incident struct {
	*Incident
	// covers holds all parts that the root cause explained. Those still faulty after it has ended stay in this incident.
	covers map[Part]bool
	// due is when a RECOVERING incident is CLOSED, or, if left is true, when a remaining fault becomes the root cause.
	due   time.Time
	left  bool
	again time.Time // when the present fault of a reopened incident began; zero: it was not reopened since the term began
	stood bool      // covers comes from a matched root cause, and not from the stored incident
	// held are the root causes that wait below this one, by key, until settles. had are those, the root cause and the members
	// of its group fault that were ever seen here: only another one restarts the wait. joined is when the last member began.
	// behind are root causes that it explained until now, with the time until which each stays: see incidenthold.go.
	held    map[Part]*cluster // nil: of a stored incident
	settles time.Time
	had     map[Part]bool
	joined  time.Time
	behind  map[Part]time.Time
}

// IncidentUpdate is the news since the last update.
type IncidentUpdate struct {
	Nodes   []NodeStatus  // of every node with changes
	Changes []Change      // in order
	Groups  []GroupStatus // all that stand, by ID
	// Status returns the present status of any other node; false: the torus has none of that ID.
	Status func(fault.NodeID) (NodeStatus, bool)
	// Traces of nodes replace the earlier ones; zero: there is none any more.
	Traces map[fault.NodeID]MachineTrace
}

// IncidentOutput is what an update changed.
type IncidentOutput struct {
	Changed []*Incident // by ID; read-only
	Gone    []string    // IDs that are no longer kept
}

// NewIncidents returns the incidents as last committed, on the map as last committed. The first Update then opens
// incidents for faults without one, and closes those whose faults have ended.
func NewIncidents(cfg IncidentConfig, now time.Time, saved []Incident, nodes []NodeStatus) (*Incidents, error) {
	if cfg.Quiet <= 0 || cfg.Recover <= 0 || cfg.Settle <= 0 || cfg.KeepClosed <= 0 || cfg.KeepFor <= 0 {
		return nil, errors.New("incidents: want Quiet, Recover, Settle, KeepClosed and KeepFor above zero")
	}
	l := &Incidents{cfg: cfg, ill: make(map[fault.NodeID]*illNode), coords: make(map[fault.NodeID]grid.Coord, len(cfg.IDs)),
		ids: make(map[string]bool, len(saved)), isChanged: make(map[*Incident]bool), now: now, wake: now, stale: true,
		traces: make(map[fault.NodeID]MachineTrace)}
	for at, id := range cfg.IDs {
		l.coords[id] = at
	}
	of := make(map[fault.NodeID]*NodeStatus, len(nodes))
	for i := range nodes {
		of[nodes[i].ID] = &nodes[i]
		l.learn(&nodes[i], nil)
	}
	for i := range saved {
		in := &saved[i]
		if in.ID == "" || l.ids[in.ID] || !in.State.Valid() {
			return nil, fmt.Errorf("restore incident %q in state %s: want a unique id and a valid state", in.ID, in.State)
		}
		l.ids[in.ID] = true
		if in.State == IncidentClosed {
			l.closed = append(l.closed, in)
			continue
		}
		s := &incident{Incident: in, covers: map[Part]bool{in.Root: true}, held: make(map[Part]*cluster),
			behind: make(map[Part]time.Time)}
		for _, c := range in.Consequences {
			if part := l.key(Part{Node: c.Node, Component: c.Component}); mayHaveWaited(in, c) {
				s.held[part] = nil // match finds out whether it is a root cause
			} else {
				s.behind[part] = now.Add(cfg.Recover)
			}
			s.covers[Part{Node: c.Node, Component: c.Component}] = true
			l.recall(of[c.Node], c)
		}
		if in.Root.Group == "" && in.State == IncidentOpen {
			l.recall(of[in.Root.Node], Consequence{in.Root.Node, in.Root.Component, in.Fault, in.Cause, in.Verdict.Rule})
		}
		if in.State == IncidentRecovering {
			s.due, s.left = now.Add(cfg.Recover), in.Until.IsZero()
			if !s.left {
				s.due = now.Add(cfg.Quiet)
			}
		}
		l.standing = append(l.standing, s)
	}
	slices.SortFunc(l.standing, older)
	slices.SortFunc(l.closed, func(a, b *Incident) int {
		if d := a.Until.Compare(b.Until); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
	return l, nil
}

// older orders standing incidents by age.
func older(a, b *incident) int {
	if d := a.Since.Compare(b.Since); d != 0 {
		return d
	}
	return strings.Compare(a.ID, b.ID)
}

// Wake returns when the next Update is due without news; zero: never.
func (l *Incidents) Wake() time.Time { return l.wake }

// Relabel replaces the nodes' labels and the keys of failure domains. Incidents keep the labels that they opened with.
func (l *Incidents) Relabel(labels map[fault.NodeID]map[string]string, domainLabels []string) {
	l.cfg.Labels, l.cfg.DomainLabels = labels, domainLabels
}

// Move follows a change of places. Faults of nodes that have left, and of links that lead to another node now, have ended
// with the next Update.
func (l *Incidents) Move(to Moved) {
	l.cfg.Dims, l.cfg.IDs, l.cfg.Labels, l.cfg.DomainLabels = to.Dims, to.IDs, to.Labels, to.DomainLabels
	coords := make(map[fault.NodeID]grid.Coord, len(to.IDs))
	for at, id := range to.IDs {
		coords[id] = at
	}
	for id, n := range l.ill {
		if at, ok := coords[id]; !ok || at != n.coord {
			delete(l.ill, id)
		}
	}
	l.coords, l.stale = coords, true
}

// All returns all kept incidents, the oldest first; read-only.
func (l *Incidents) All() []*Incident {
	out := make([]*Incident, 0, len(l.standing)+len(l.closed))
	out = append(out, l.closed...)
	for _, s := range l.standing {
		out = append(out, s.Incident)
	}
	slices.SortFunc(out, func(a, b *Incident) int {
		if d := a.Since.Compare(b.Since); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

// incidentID is the form of an ID.
var incidentID = regexp.MustCompile(`^[a-z2-7]{4}-[a-z2-7]{8}$`)

// ValidIncidentID reports whether s has the form of an incident's ID.
func ValidIncidentID(s string) bool { return incidentID.MatchString(s) }

// ClusterTag returns the part of every ID that names the cluster.
func ClusterTag(cluster string) string { return digest(cluster)[:4] }

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}

// newID returns the ID of an incident that begins. It follows from the committed state alone, so that a leader that
// finds the fault without its incident derives the same ID as the one before it.
func (l *Incidents) newID(root Part, since time.Time) string {
	for n := 0; ; n++ {
		parts := []string{l.cfg.Cluster, root.String(), since.UTC().Format(time.RFC3339Nano)}
		if n > 0 {
			parts = append(parts, fmt.Sprint(n))
		}
		id := ClusterTag(l.cfg.Cluster) + "-" + digest(parts...)[:8]
		if !l.ids[id] {
			l.ids[id] = true
			return id
		}
	}
}
