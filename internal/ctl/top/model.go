package top

import (
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// topModel is the whole state of `lofamoctl top`. It is a function of its messages: it makes no calls and has no clock.
// update takes a message and returns effects; view draws. The cost grows with the number of faults and the size of the
// screen, not with the number of nodes.
type topModel struct {
	app   command.App // formats names and times: its clock is fixed at now
	paint command.Painter
	now   time.Time
	size  topSize

	// The map, and its faults.
	torus      *get.Map
	nodes      map[string]*lofamov1.Node
	odd        map[string]*lofamov1.Node // nodes that isOdd selects
	groups     map[string]*lofamov1.Group
	nodeCounts map[lofamov1.State]int // without spares
	linkCounts map[lofamov1.State]int // link ends
	placed     int                    // nodes that are no spares
	marked     map[string]bool        // nodes under maintenance
	events     []topRow               // newest first, at most topEvents
	responses  map[string]*lofamov1.Response
	breaker    *lofamov1.ResponseBreaker
	incidents  map[string]*lofamov1.Incident // OPEN ones
	cluster    *lofamov1.ClusterInfo
	revision   uint64 // up to which changes were seen

	// How the supervisors are reached.
	watched      string // supervisor of the watch; empty: none
	watchErr     error  // why it failed, until it is restored
	pollErr      error  // error of the last poll, until one succeeds
	responsesErr error
	heard        time.Time // time of the supervisors' last answer
	elsewhere    int       // answers one after the other that came from another supervisor than is watched

	// Nodes to fetch because something changed. One query is in progress at a time.
	dirty  map[string]bool
	asking bool

	// The person's view.
	focus   topPane
	zoom    bool
	filter  string
	typing  *topTyping // a line that is being typed
	confirm *topWord   // decision that waits for yes or no
	page    *topPage   // over everything else
	notice  string     // result of the person's last decision
	chosen  [topPanes]topChoice
	at      grid.Coord // node chosen in the map; its plane is the one that is shown

	// rows of abnormal nodes and the worst state of each plane, as long as rowsHold.
	rowsHold bool
	rows     []topRow
	planes   []lofamov1.State
}

// The maximum number of kept events, and of nodes to fetch one by one.
const (
	topEvents  = 500
	topSingles = 16
)

// topPane is a part of the screen that can be chosen.
type topPane int

const (
	paneOdd topPane = iota
	paneMap
	paneEvents
	paneResponses
	topPanes
)

// topChoice is the chosen row of a list: its key, so that it stays chosen when others come and go, and its last index,
// for when it is gone.
type topChoice struct {
	key string
	row int
}

// topPage is a text over the panes: help, an explanation, a response.
type topPage struct {
	key    string // subject of the request: an answer for another one is dropped
	title  string
	lines  []string
	scroll int
}

// topTyping is a line during input: a filter, or the reason of a decision.
type topTyping struct {
	prompt string
	text   string
	word   *topWord // absent: it is the filter
	before string   // filter to go back to
}

// topWord is a person's decision about a response.
type topWord struct {
	approve bool // else deny
	id      string
	what    string // description of the response, for the question
	reason  string
}

// The messages.
type (
	topSize   struct{ width, height int }
	topTick   struct{ now time.Time }
	topKey    struct{ name, text string } // name such as "enter", "a" or "ctrl+c"; text is its character
	topLoaded struct {
		nodes  *lofamov1.ListNodesResponse // all, brief
		odd    []*lofamov1.Node            // those that are not normal, in full
		links  *lofamov1.ListLinksResponse
		groups []*lofamov1.Group
		events []*lofamov1.Event // oldest first
	}
	topWatched struct{ resp *lofamov1.WatchResponse }
	// topProgress reports that the watch is connected to a supervisor, or why it failed.
	topProgress struct {
		target string
		err    error
	}
	topPolled struct {
		target   string // supervisor that answered last
		cluster  *lofamov1.ClusterInfo
		revision uint64
		err      error
	}
	// topNodes answers askNodes or askOdd; a node missing in the answer to askOdd is normal.
	topNodes struct {
		asked []string
		odd   bool
		nodes []*lofamov1.Node
		err   error
	}
	topResponses struct {
		resp *lofamov1.WatchResponsesResponse
		anew bool // another stream begins: discard all earlier responses
		err  error
	}
	topIncidents struct {
		changed []*lofamov1.Incident
		gone    []string // ids of incidents that are no longer kept
		anew    bool     // another stream begins: discard all earlier incidents
	}
	topDetail struct {
		key, text string
		err       error
	}
	topActed struct {
		text string
		err  error
	}
)

// The effects: requests to the shell.
type (
	askNodes struct{ ids []string }
	askOdd   struct{ dirty []string }
	// askAgain asks to list everything again, askElsewhere to move the watch to the supervisor that answered last.
	askAgain     struct{}
	askElsewhere struct{}
	askDetail    struct{ key string } // "node/ID", "group/ID" or "response/ID"
	sayWord      struct{ word topWord }
	topQuit      struct{}
)

func newTopModel(a *command.App, p command.Painter, size topSize) *topModel {
	m := &topModel{app: *a, paint: p, now: a.Env.Now(), size: size, dirty: make(map[string]bool),
		responses: make(map[string]*lofamov1.Response)}
	m.app.Env.Now = func() time.Time { return m.now }
	m.heard = m.now
	return m
}

// update takes a message and returns the effects that it asks for.
func (m *topModel) update(msg any) []any {
	switch msg := msg.(type) {
	case topSize:
		m.size = msg
	case topTick:
		m.now = msg.now
		return m.ask()
	case topKey:
		return m.key(msg)
	case topLoaded:
		m.load(msg)
	case topWatched:
		return m.watch(msg.resp)
	case topProgress:
		m.progress(msg)
	case topPolled:
		return m.polled(msg)
	case topNodes:
		m.refresh(msg)
	case topResponses:
		m.respond(msg)
	case topIncidents:
		m.takeIncidents(msg)
	case topDetail:
		m.detail(msg)
	case topActed:
		if m.notice = msg.text; msg.err != nil {
			m.notice = "NOT DONE: " + command.Printable(msg.err.Error())
		}
	}
	return nil
}

// isOdd reports whether a node belongs in the list of abnormal nodes. A NORMAL node beside a dead one has dead links,
// but the fault is the neighbour's.
func isOdd(n *lofamov1.Node) bool {
	return !n.GetSpare() && (n.GetState() != lofamov1.State_NORMAL || len(n.GetWarnings()) > 0 || n.GetStarved() != nil)
}

func (m *topModel) load(l topLoaded) {
	torus, err := get.NewMap(l.nodes, l.links)
	if err != nil { // the supervisors contradict themselves: keep the old map, and show the reason
		m.notice = "the map cannot be drawn: " + command.Printable(err.Error())
		return
	}
	if m.torus = torus; torus.Dims.Places() == 0 { // no node has joined yet
		m.torus = nil
	}
	m.app.Learn(l.nodes.GetCluster())
	m.nodes, m.odd, m.groups, m.marked = make(map[string]*lofamov1.Node,
		len(l.nodes.GetNodes())), make(map[string]*lofamov1.Node), make(map[string]*lofamov1.Group), make(map[string]bool)
	m.nodeCounts, m.linkCounts, m.placed = make(map[lofamov1.State]int), make(map[lofamov1.State]int), 0
	m.dirty, m.rowsHold = make(map[string]bool), false
	for _, n := range l.nodes.GetNodes() {
		m.nodes[n.GetId()] = n
		if !n.GetSpare() {
			m.placed++
			m.nodeCounts[n.GetState()]++
		}
		m.noteNode(n)
	}
	for _, link := range l.links.GetLinks() {
		m.linkCounts[link.GetState()]++
	}
	for _, n := range l.odd {
		m.replace(n)
	}
	for _, g := range l.groups {
		m.groups[g.GetId()] = g
	}
	m.events = nil
	m.addEvents(l.events)
	m.cluster, m.revision, m.heard = l.nodes.GetCluster(), l.nodes.GetRevision(), m.now
	if m.torus == nil || m.torus.Dims.Box().Check(m.at) != nil {
		m.at = grid.Coord{}
	}
	if m.torus != nil && !m.app.Words().Torus() { // which has a node chosen, never an empty place
		all := m.torus.InTiles(m.cluster)
		m.lookAt(all[m.tile(all)].GetId())
	}
}

// noteNode updates the data derived from a node.
func (m *topModel) noteNode(n *lofamov1.Node) {
	if delete(m.odd, n.GetId()); isOdd(n) {
		m.odd[n.GetId()] = n
	}
	if delete(m.marked, n.GetId()); n.GetMaintenance() != nil {
		m.marked[n.GetId()] = true
	}
	m.rowsHold = false
}

// replace replaces a node by a supervisor's answer. The answer may be older than a change that was seen already: then
// the newer state stays, and the node is fetched again.
func (m *topModel) replace(n *lofamov1.Node) {
	old := m.nodes[n.GetId()]
	if old == nil || old.GetSpare() != n.GetSpare() || old.GetCoord() != n.GetCoord() {
		return // the topology has changed: everything will be listed again
	}
	if n.GetRevision() < old.GetRevision() {
		n.State, n.Cause, n.Since, n.Revision = old.State, old.Cause, old.Since, old.Revision
		m.dirty[n.GetId()] = true
	}
	m.setState(old, n.GetState())
	m.nodes[n.GetId()] = n
	if at, err := grid.ParseCoord(n.GetCoord()); err == nil && !n.GetSpare() && m.torus != nil {
		m.torus.Nodes[m.torus.Dims.Rank(at)] = n // that it is within the torus was seen when all were listed
	}
	m.noteNode(n)
}

func (m *topModel) setState(n *lofamov1.Node, to lofamov1.State) {
	if !n.GetSpare() {
		m.nodeCounts[n.GetState()]--
		m.nodeCounts[to]++
	}
	n.State = to
}

func (m *topModel) addEvents(events []*lofamov1.Event) {
	rows := make([]topRow, 0, len(events)+len(m.events))
	for _, e := range slices.Backward(events) {
		rows = append(rows, m.eventRow(e))
	}
	m.events = append(rows, m.events...)
	if len(m.events) > topEvents {
		m.events = m.events[:topEvents:topEvents]
	}
}

// watch takes the changes of one revision.
func (m *topModel) watch(r *lofamov1.WatchResponse) []any {
	m.heard = m.now
	if r.GetRevision() > m.revision {
		m.revision = r.GetRevision()
	}
	if len(r.GetEvents()) == 0 {
		return nil
	}
	again := false
	for _, e := range r.GetEvents() {
		again = m.apply(e) || again
	}
	m.addEvents(r.GetEvents())
	if again {
		return []any{askAgain{}}
	}
	return m.ask()
}

// apply makes one change, and reports whether everything must be listed again.
func (m *topModel) apply(e *lofamov1.Event) (again bool) {
	n := m.nodes[e.GetNode()]
	switch e.GetKind() {
	case lofamov1.EventKind_TOPOLOGY_CHANGED:
		return true
	case lofamov1.EventKind_GROUP_CHANGED:
		if g := e.GetGroup(); e.GetTo() == lofamov1.State_NORMAL {
			delete(m.groups, g.GetId())
		} else {
			m.groups[g.GetId()] = g
		}
		m.rowsHold = false
	case lofamov1.EventKind_MAINTENANCE_CHANGED:
		if n == nil {
			return false
		}
		if n.Maintenance = e.GetMaintenance(); e.GetEnded() {
			n.Maintenance = nil
		}
		m.noteNode(n)
	case lofamov1.EventKind_COMPONENT_CHANGED:
		if n == nil {
			return true
		}
		m.component(n, e)
	case lofamov1.EventKind_WARNING_CHANGED:
		if n != nil {
			m.dirty[n.GetId()] = true
		}
	case lofamov1.EventKind_STARVATION_CHANGED:
		if n == nil {
			return false
		}
		m.dirty[n.GetId()] = true // for the lateness, and for the other half
		switch {
		case !e.GetEnded():
			n.Starved = &lofamov1.Starved{Half: e.GetComponent()}
		case n.GetStarved().GetHalf() == e.GetComponent():
			n.Starved = nil
		}
		m.noteNode(n)
	default: // they do not change the map
	}
	return false
}

// component makes a change of a node or of a part of one, and fetches its evidence.
func (m *topModel) component(n *lofamov1.Node, e *lofamov1.Event) {
	m.dirty[n.GetId()] = true
	if e.GetComponent() == "node" {
		m.setState(n, e.GetTo())
		n.Cause, n.Since, n.Revision, n.SingleWitness = e.GetCause(), e.GetTime(), e.GetRevision(), e.GetSingleWitness()
		m.noteNode(n)
		return
	}
	name, link := strings.CutPrefix(e.GetComponent(), "link/")
	dir, err := grid.ParseDirection(name)
	at, err2 := grid.ParseCoord(n.GetCoord())
	if !link || err != nil || err2 != nil || m.torus == nil {
		return
	}
	ends := m.torus.Ends[m.torus.Dims.Rank(at)]
	if old, there := ends[dir]; there {
		m.linkCounts[old]--
		m.linkCounts[e.GetTo()]++
		ends[dir] = e.GetTo()
	}
}

// ask fetches changed nodes: one by one if they are few, else all that are not normal.
func (m *topModel) ask() []any {
	if m.asking || len(m.dirty) == 0 || m.watchErr != nil {
		return nil
	}
	ids := make([]string, 0, len(m.dirty))
	for id := range m.dirty {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	m.asking, m.dirty = true, make(map[string]bool)
	if len(ids) > topSingles {
		return []any{askOdd{ids}}
	}
	return []any{askNodes{ids}}
}

// refresh takes the fetched nodes. Nodes that changed meanwhile are fetched with the next change or tick, not at once,
// so that a lagging supervisor gets at most one query a second.
func (m *topModel) refresh(r topNodes) {
	m.asking = false
	if r.err != nil { // other messages show the connection's state; fetch these nodes again
		for _, id := range r.asked {
			m.dirty[id] = true
		}
		return
	}
	m.heard = m.now
	here := make(map[string]bool, len(r.nodes))
	for _, n := range r.nodes {
		here[n.GetId()] = true
		m.replace(n)
	}
	if !r.odd {
		return
	}
	for _, id := range r.asked {
		if n := m.nodes[id]; n != nil && !here[id] && n.GetState() == lofamov1.State_NORMAL {
			n.Components, n.Warnings = nil, nil
			m.noteNode(n)
		}
	}
}

func (m *topModel) progress(p topProgress) {
	if m.watchErr = p.err; p.err != nil {
		m.watched = ""
		return
	}
	m.watched, m.heard, m.elsewhere = p.target, m.now, 0
}

// polled takes the regular poll's result: the leader, and the age of the data. When another supervisor than the watched
// one answers twice in a row, the watch moves there: the watched one may be cut off from the others, and stay silent
// for ever.
func (m *topModel) polled(p topPolled) []any {
	if m.pollErr = p.err; p.err != nil {
		return nil
	}
	m.cluster, m.heard = p.cluster, m.now
	if p.target == m.watched || m.watched == "" {
		m.elsewhere = 0
		return nil
	}
	if m.elsewhere++; m.elsewhere < 2 {
		return nil
	}
	m.elsewhere = 0
	return []any{askElsewhere{}}
}

func (m *topModel) respond(r topResponses) {
	m.responsesErr = r.err
	if r.anew {
		m.responses = make(map[string]*lofamov1.Response)
	}
	if b := r.resp.GetBreaker(); b != nil {
		m.breaker = b
	}
	for _, x := range r.resp.GetResponses() {
		if x.GetClosed() != nil { // sent one last time, in its final form
			delete(m.responses, x.GetId())
		} else {
			m.responses[x.GetId()] = x
		}
	}
	for _, id := range r.resp.GetGone() {
		delete(m.responses, id)
	}
}

// takeIncidents keeps the OPEN incidents.
func (m *topModel) takeIncidents(r topIncidents) {
	if m.incidents == nil || r.anew {
		m.incidents = make(map[string]*lofamov1.Incident)
	}
	for _, in := range r.changed {
		if in.GetState() == lofamov1.IncidentState_OPEN {
			m.incidents[in.GetId()] = in
		} else {
			delete(m.incidents, in.GetId())
		}
	}
	for _, id := range r.gone {
		delete(m.incidents, id)
	}
}

func (m *topModel) detail(d topDetail) {
	if m.page == nil || m.page.key != d.key {
		return // the person has moved on
	}
	text := d.text
	if d.err != nil {
		text = "No answer: " + command.Printable(d.err.Error())
	}
	m.page.lines = strings.Split(strings.TrimRight(text, "\n"), "\n")
}
