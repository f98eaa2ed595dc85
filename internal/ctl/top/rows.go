package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// topRow is a row of one of the lists.
type topRow struct {
	key    string // identity, so that it can stay chosen
	open   string // page that enter opens: "node/ID", "group/ID", "response/ID"; empty: none
	node   string // id of the node that it is about; empty: none
	state  lofamov1.State
	cells  []string
	since  time.Time // for the order
	search string    // text for the filter, in lower case
}

// severity orders states: the gravest is the greatest.
func severity(s lofamov1.State) int {
	switch s {
	case lofamov1.State_FAILED:
		return 3
	case lofamov1.State_SICK:
		return 2
	case lofamov1.State_UNKNOWN:
		return 1
	default:
		return 0
	}
}

// topRows returns the rows of abnormal nodes and groups: the gravest first, of equal gravity the newest, a group before
// its members. NORMAL nodes that have warnings or are starved come last.
func (m *topModel) topRows() []topRow {
	if m.rowsHold {
		return m.rows
	}
	m.rowsHold = true
	m.rows = m.rows[:0]
	if m.torus != nil {
		m.planes = make([]lofamov1.State, m.torus.Dims.Z)
		for z := range m.planes {
			m.planes[z] = lofamov1.State_NORMAL
		}
	}
	for id, g := range m.groups {
		m.rows = append(m.rows, topRow{key: "group/" + id, open: "group/" + id, state: g.GetState(), since: g.GetSince().AsTime()})
	}
	for id, n := range m.odd {
		if at, err := grid.ParseCoord(n.GetCoord()); err == nil {
			m.planes[at.Z] = get.Worse(m.planes[at.Z], n.GetState())
		}
		since := n.GetSince()
		if w := n.GetWarnings(); n.GetState() == lofamov1.State_NORMAL && len(w) > 0 {
			since = w[0].GetSince()
		}
		m.rows = append(m.rows, topRow{key: "node/" + id, open: "node/" + id, node: id, state: n.GetState(), since: since.AsTime()})
	}
	slices.SortFunc(m.rows, func(a, b topRow) int {
		return cmp.Or(severity(b.state)-severity(a.state), strings.Compare(kindOf(a.key), kindOf(b.key)), b.since.Compare(a.since),
			strings.Compare(a.key, b.key))
	})
	return m.rows
}

// worded adds its words to a row of an abnormal node or group. Only visible rows, and those that a filter searches,
// need words.
func (m *topModel) worded(r topRow) topRow {
	if r.cells != nil {
		return r
	}
	kind, id, _ := strings.Cut(r.key, "/")
	var more []string
	if kind == "group" {
		g := m.groups[id]
		name, size := m.app.Words().Group(id), fault.Plural(int(g.GetSize()), "node")
		if name == id {
			size = g.GetKind().String() + ", " + size
		}
		r.cells, more = []string{name, command.StateName(g.GetState()), command.CauseName(g.GetCause()), size}, g.GetMembers()
	} else {
		n := m.nodes[id]
		r.cells, more = []string{id, nodeStateName(n), command.CauseName(n.GetCause()), m.oddWhat(n)}, []string{n.GetCoord(), n.GetRegion(),
			command.LabelText(n.GetLabels())}
	}
	r.search = strings.ToLower(strings.Join(append(more, r.cells...), " "))
	return r
}

func kindOf(key string) string { kind, _, _ := strings.Cut(key, "/"); return kind } // "group" comes before "node"

func nodeStateName(n *lofamov1.Node) string {
	switch {
	case n.GetState() != lofamov1.State_NORMAL:
		return command.StateName(n.GetState())
	case len(n.GetWarnings()) > 0:
		return "warning"
	}
	return "starved"
}

// oddWhat describes a node's problems in one line.
func (m *topModel) oddWhat(n *lofamov1.Node) string {
	var parts []string
	if w := get.Worst(n); w != "-" {
		parts = append(parts, w)
	}
	for _, w := range n.GetWarnings() {
		parts = append(parts, command.Warning(w))
	}
	for _, f := range []struct {
		is   bool
		text string
	}{
		{n.GetMaintenance() != nil, "under maintenance"},
		{n.GetRestarting() != nil, "restarting, as announced: " + command.Restarting(n.GetRestarting())},
		{n.GetStopped() != nil, "stopped, as announced: " + n.GetStopped().GetReason()}, {n.GetInferred(), "taken for dead"},
		{n.GetUnreachable(), "no living path leads to it"}, {n.GetStarved() != nil, "starved of processor time"},
		{n.GetSingleWitness(), "single witness"}, {len(n.GetGroups()) > 0, "in " + strings.Join(m.app.Words().Groups(n.GetGroups()), ", ")},
	} {
		if f.is {
			parts = append(parts, f.text)
		}
	}
	return command.Printable(strings.Join(parts, "; "))
}

// eventRow is the row of an event, including those without a component.
func (m *topModel) eventRow(e *lofamov1.Event) topRow {
	node, component := m.app.Words().Subject(e)
	from, to := command.Change(e)
	open := ""
	switch {
	case e.GetNode() != "":
		open = "node/" + e.GetNode()
	case e.GetGroup() != nil:
		open = "group/" + e.GetGroup().GetId()
	}
	what := node
	if component != "node" {
		what += " " + component
	}
	var more []string
	if c := command.CauseName(e.GetCause()); c != "-" {
		more = append(more, c)
	}
	if e.GetAwarenessLatency() != nil {
		more = append(more, "after "+command.ProtoDuration(e.GetAwarenessLatency()))
	}
	more = append(more, command.EventNotes(&m.app, e)...)
	cells := []string{m.app.Clock(e.GetTime()), command.Printable(what), from + " → " + to, command.Printable(strings.Join(more, ", "))}
	// Two events of one revision may be of one component: their texts distinguish them.
	key := strconv.FormatUint(e.GetRevision(), 10) + " " + strings.Join(cells, " ")
	return topRow{key: key, open: open, node: e.GetNode(), state: e.GetTo(), cells: cells, search: strings.ToLower(key)}
}

func (m *topModel) responseRow(r *lofamov1.Response) topRow {
	s := lofamov1.State_UNKNOWN
	switch {
	case r.GetMode() == lofamov1.PolicyMode_OBSERVE_ONLY: // nothing to do
	case r.GetState() == lofamov1.ResponseState_RESPONSE_FAILED:
		s = lofamov1.State_FAILED
	case r.GetState() == lofamov1.ResponseState_RESPONSE_WAITING:
		s = lofamov1.State_SICK
	case r.GetState() == lofamov1.ResponseState_RESPONSE_RUNNING, r.GetState() == lofamov1.ResponseState_RESPONSE_DONE:
		s = lofamov1.State_NORMAL
	}
	cells := []string{r.GetId(), m.app.Words().ResponseTarget(r), command.ResponseState(r), command.ResponseStep(r),
		r.GetPolicy() + ": " + command.ResponseWhy(&m.app, r)}
	key := "response/" + r.GetId()
	return topRow{key: key, open: key, node: r.GetNode(), state: s, since: r.GetProposed().AsTime(), cells: cells,
		search: strings.ToLower(strings.Join(cells, " "))}
}

// waits reports whether a response waits for a person.
func waits(r *lofamov1.Response) bool {
	return r.GetState() == lofamov1.ResponseState_RESPONSE_WAITING && r.GetAsked() != nil &&
		uint32(len(r.GetApprovals())) < r.GetApprovalsWanted()
}

// shown returns the rows of a pane that pass the filter.
func (m *topModel) shown(p topPane) []topRow {
	var all []topRow
	switch p {
	case paneOdd:
		all = m.topRows()
	case paneEvents:
		all = m.events
	case paneResponses:
		for _, r := range m.responses {
			all = append(all, m.responseRow(r))
		}
		slices.SortFunc(all, func(a, b topRow) int {
			// Those that wait for a person first, then the newest.
			return cmp.Or(weight(waits(m.response(b)))-weight(waits(m.response(a))), b.since.Compare(a.since), strings.Compare(a.key, b.key))
		})
	default:
		return nil
	}
	if m.filter == "" {
		return all
	}
	var out []topRow
	filter := strings.ToLower(m.filter)
	for _, r := range all {
		if r = m.worded(r); strings.Contains(r.search, filter) {
			out = append(out, r)
		}
	}
	return out
}

func (m *topModel) response(r topRow) *lofamov1.Response {
	return m.responses[strings.TrimPrefix(r.key, "response/")]
}

func weight(is bool) int {
	if is {
		return 1
	}
	return 0
}
