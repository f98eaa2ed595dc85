package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	lipgloss "charm.land/lipgloss/v2"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The screen, from the top: two lines with the cluster's name and condition, one with the open incidents if there are any,
// one with the connection to the supervisors; faults beside the map; events or responses; a line for the keys, a question or
// an answer.

// The least screen that holds the panes.
const (
	topLeastWidth  = 60
	topLeastHeight = 16
)

// headerRows returns the number of lines of header.
func (m *topModel) headerRows() int {
	if m.incidentLine() == "" {
		return 3
	}
	return 4
}

// topSilence is the maximum time without an answer before the screen counts as stale: the shell polls every
// topPollEvery.
const topSilence = 2*topPollEvery + time.Second/2

// fit pads or cuts a text to an exact width in columns.
func fit(s string, columns int) string {
	if columns <= 0 {
		return ""
	}
	w := lipgloss.Width(s)
	switch {
	case w > columns && columns == 1:
		return "…"
	case w > columns:
		s = lipgloss.NewStyle().Inline(true).MaxWidth(columns-1).Render(s) + "…"
		w = lipgloss.Width(s) // narrower if a wide character would have been cut in two
	}
	return s + strings.Repeat(" ", columns-w)
}

// view draws the screen: as many lines as fit, all of the same width.
func (m *topModel) view() string {
	w, h := m.size.width, m.size.height
	if w < topLeastWidth || h < topLeastHeight {
		lines := append(m.header(), fmt.Sprintf("%dx%d is too small for more: want %dx%d", w, h, topLeastWidth, topLeastHeight))
		return m.lines(lines, w, h)
	}
	lines := m.header()
	body := h - m.headerRows() - 1
	switch {
	case m.page != nil:
		lines = append(lines, m.pageView(w, body)...)
	case m.zoom:
		lines = append(lines, m.pane(m.focus, w, body)...)
	default:
		up, left := m.split()
		below := paneEvents
		if m.focus == paneResponses {
			below = paneResponses
		}
		lines = append(lines, beside(m.pane(paneOdd, left, up), m.pane(paneMap, w-left-1, up))...)
		if left, right, two := m.below(); two {
			lines = append(lines, beside(m.pane(paneEvents, left, body-up), m.pane(paneResponses, right, body-up))...)
		} else {
			lines = append(lines, m.pane(below, w, body-up)...)
		}
	}
	return m.lines(append(lines, m.footer()), w, h)
}

// lines makes a screen of lines: as many as fit, all of the same width.
func (m *topModel) lines(lines []string, w, h int) string {
	for len(lines) < h {
		lines = append(lines, "")
	}
	for i := range lines {
		lines[i] = fit(lines[i], w)
	}
	return strings.Join(lines[:max(0, h)], "\n")
}

// split returns the rows of the upper panes and the columns of the left one.
func (m *topModel) split() (up, left int) {
	body := m.size.height - m.headerRows() - 1
	right := min(max(34, m.size.width*2/5), m.mapWidth()+1)
	return body - max(5, body*2/5), m.size.width - right - 1
}

// below returns the widths of events and responses, and whether they are side by side.
func (m *topModel) below() (left, right int, two bool) {
	w := m.size.width
	return w / 2, w - w/2 - 1, w >= 140
}

func beside(left, right []string) []string {
	out := make([]string, len(left))
	for i := range left {
		out[i] = left[i] + "│" + right[i]
	}
	return out
}

// paneRows returns the number of list rows that fit in a pane.
func (m *topModel) paneRows(p topPane) int {
	body := m.size.height - m.headerRows() - 1
	up, _ := m.split()
	switch {
	case m.zoom:
	case p == paneOdd || p == paneMap:
		body = up
	default:
		body -= up
	}
	return max(0, body-1) // its title
}

func (m *topModel) pageRows() int { return max(1, m.size.height-m.headerRows()-2) }

// wrapped returns the lines of the page as shown: a long line continues on the next one, indented.
func (m *topModel) wrapped() []string {
	const indent = "    "
	var out []string
	for _, l := range m.page.lines {
		for i, part := range strings.Split(lipgloss.Wrap(l, m.size.width-len(indent), ""), "\n") {
			if i > 0 {
				part = indent + strings.TrimLeft(part, " ")
			}
			out = append(out, part)
		}
	}
	return out
}

func (m *topModel) pageView(w, h int) []string {
	p, text := m.page, m.wrapped()
	lines := []string{m.title(fmt.Sprintf("%s (esc leaves)", p.title), w, true)}
	scroll := max(0, min(p.scroll, len(text)-(h-1))) // the screen may have grown
	end := min(len(text), scroll+h-1)
	for _, l := range text[scroll:end] {
		lines = append(lines, fit(l, w))
	}
	for len(lines) < h {
		lines = append(lines, strings.Repeat(" ", w))
	}
	if end < len(text) {
		lines[0] = m.title(fmt.Sprintf("%s (esc leaves; %d more lines below)", p.title, len(text)-end), w, true)
	}
	return lines
}

func (m *topModel) title(text string, w int, chosen bool) string {
	mark := "─ "
	if chosen {
		mark = "▶ "
	}
	text = fit(mark+text+" ", min(w, lipgloss.Width(text)+3))
	line := text + strings.Repeat("─", max(0, w-lipgloss.Width(text)))
	if chosen {
		return m.paint.Bold(line)
	}
	return line
}

// pane draws one pane: exactly h lines of w columns.
func (m *topModel) pane(p topPane, w, h int) []string {
	if p == paneMap {
		return m.mapPane(w, h)
	}
	rows := m.shown(p)
	lines := []string{m.title(m.paneTitle(p, len(rows)), w, m.focus == p)}
	if why := m.emptiness(p, len(rows)); why != "" {
		lines = append(lines, fit("  "+why, w))
	}
	at, room := m.row(p, rows), h-1
	from := max(0, min(at-room/2, len(rows)-room))
	rows, at = slices.Clone(rows[from:min(len(rows), from+room)]), at-from
	for i, r := range rows {
		rows[i] = m.worded(r)
	}
	widths := columnWidths(rows)
	for i, r := range rows {
		lines = append(lines, m.listLine(p, r, widths, w, i == at && m.focus == p))
	}
	for len(lines) < h {
		lines = append(lines, strings.Repeat(" ", w))
	}
	return lines[:h]
}

func (m *topModel) paneTitle(p topPane, shown int) string {
	var text string
	var all int
	switch p {
	case paneOdd:
		text, all = "1 Not normal", len(m.topRows())
	case paneEvents:
		text, all = "3 Events", len(m.events)
	default:
		text, all = "4 Responses", len(m.responses)
	}
	if m.filter != "" {
		return fmt.Sprintf("%s: %d of %d with %q", text, shown, all, m.filter)
	}
	return fmt.Sprintf("%s: %d", text, shown)
}

// emptiness returns the reason for an empty list.
func (m *topModel) emptiness(p topPane, rows int) string {
	switch {
	case p == paneResponses && m.responsesErr != nil:
		return "not known: " + command.Printable(m.responsesErr.Error())
	case rows > 0:
		return ""
	case m.filter != "":
		return "nothing has this text; esc shows all"
	case p == paneOdd:
		return "all is NORMAL"
	case p == paneEvents:
		return "no changes are kept"
	default:
		return "nothing is being done"
	}
}

// columnWidths returns the widths of all cells but the last, which takes the rest.
func columnWidths(rows []topRow) []int {
	var out []int
	for _, r := range rows {
		for i, c := range r.cells[:len(r.cells)-1] {
			if len(out) <= i {
				out = append(out, 0)
			}
			out[i] = max(out[i], lipgloss.Width(c))
		}
	}
	return out
}

func (m *topModel) listLine(p topPane, r topRow, widths []int, w int, chosen bool) string {
	mark := " "
	if chosen {
		mark = ">"
	}
	var b strings.Builder
	b.WriteString(mark)
	if p != paneResponses {
		b.WriteString(get.NodeMark(r.state))
	}
	cells := r.cells
	if p == paneOdd { // its age moves on by itself
		cells = append(append([]string{}, cells[:3]...), command.Duration(m.now.Sub(r.since)), cells[3])
		widths = append(append([]int{}, widths...), 7)
		cells[3] = fit(cells[3], 7)
	}
	for i, c := range cells {
		b.WriteByte(' ')
		if i < len(cells)-1 {
			c = fit(c, min(widths[i], max(8, w/3)))
		}
		b.WriteString(c)
	}
	line := fit(b.String(), w)
	if chosen {
		return m.paint.Chosen(line)
	}
	return m.paint.State(r.state, line)
}

// header returns the lines above the panes.
func (m *topModel) header() []string {
	c := m.cluster
	name := "lofamo"
	if c.GetCluster() != "" {
		name += " " + command.Printable(c.GetCluster())
	}
	leader := command.Leader(c)
	if c.GetLeader() == "" || c.GetStale() { // a stale answer has the last leader
		leader = m.paint.State(lofamov1.State_FAILED, "NO LEADER")
	}
	breaker := "breaker closed"
	if m.responsesErr != nil && m.breaker == nil {
		breaker = "breaker not known"
	}
	if m.breaker.GetOpen() {
		breaker = m.paint.State(lofamov1.State_FAILED, "BREAKER OPEN")
	}
	first := fmt.Sprintf("%s  %s  %s  revision %d  %s", m.paint.Bold(name), command.Size(c, m.placed), leader, m.revision, breaker)
	second := fmt.Sprintf("nodes %s  links %s", get.Counts(m.placed, m.nodeCounts, m.paint), get.Counts(m.links(), m.linkCounts, m.paint))
	if n := len(m.groups); n > 0 {
		second += "  " + fault.Plural(n, "group")
	}
	if n := len(m.marked); n > 0 {
		second += fmt.Sprintf("  %d under maintenance", n)
	}
	w, clock := m.size.width, m.now.In(m.app.Env.Location).Format("15:04:05")
	lines := []string{fit(first, w-len(clock)-1) + " " + clock, fit(second, w)}
	if text := m.incidentLine(); text != "" {
		lines = append(lines, fit(text, w))
	}
	return append(lines, fit(m.status(), w))
}

// incidentLine counts the OPEN incidents and describes the worst one; empty: there is none.
func (m *topModel) incidentLine() string {
	if len(m.incidents) == 0 {
		return ""
	}
	worst := slices.MinFunc(slices.Collect(maps.Values(m.incidents)), get.CompareIncidents)
	state := lofamov1.State_SICK
	if worst.GetSeverity() == lofamov1.IncidentSeverity_CRITICAL {
		state = lofamov1.State_FAILED
	}
	of := "worst: "
	if len(m.incidents) == 1 {
		of = ""
	}
	root := get.Where(worst, m.app.Words())
	if c := worst.GetComponent(); c != "node" && c != "group" {
		root = c + " of " + root
	}
	text := fmt.Sprintf("%s open  %s%s %s for %s", fault.Plural(len(m.incidents), "incident"), of, command.Printable(root),
		command.StateName(worst.GetFault()), m.app.Since(worst.GetSince()))
	return m.paint.State(state, text)
}

func (m *topModel) links() int {
	n := 0
	for _, of := range m.linkCounts {
		n += of
	}
	return n
}

// status describes the connection to the supervisors, and the gravest reason why the picture is incomplete.
func (m *topModel) status() string {
	alarm := func(format string, args ...any) string {
		return m.paint.State(lofamov1.State_FAILED, fmt.Sprintf(format, args...))
	}
	c := m.cluster
	waiting := 0
	for _, r := range m.responses {
		waiting += weight(waits(r))
	}
	var cutOff []string
	for _, r := range c.GetRegions() {
		if r.GetState() != lofamov1.State_NORMAL {
			cutOff = append(cutOff, command.Printable(r.GetName()))
		}
	}
	switch {
	case m.pollErr != nil:
		return alarm("LOST: no supervisor answers, this view is %s old; %s", command.Duration(m.now.Sub(m.heard)),
			command.Printable(command.Plain(m.pollErr).Error()))
	case m.watchErr != nil:
		return alarm("LOST the supervisor, trying the others: %s", command.Printable(command.Plain(m.watchErr).Error()))
	case m.now.Sub(m.heard) > topSilence:
		return alarm("STALE: nothing heard of the supervisor for %s, trying the others", command.Duration(m.now.Sub(m.heard)))
	case c.GetStale() && c.GetStaleAge() != nil:
		return alarm("STALE: no leader is reached, this view may be %s old", command.ProtoDuration(c.GetStaleAge()))
	case c.GetStale():
		return alarm("STALE: no leader was reached since this supervisor started, this view may be older")
	case len(cutOff) > 0:
		return alarm("CUT OFF: %s not heard, nodes there are shown as UNKNOWN", command.Some(cutOff, 4))
	case waiting > 0:
		return m.paint.State(lofamov1.State_SICK, fmt.Sprintf("live from %s  %s for a person (4)", m.watched,
			fault.Plural(waiting, "response")+" waiting"))
	case m.watched == "":
		return "not watched yet"
	}
	return "live from " + m.watched
}

// footer is the last line: a question, an answer, or the keys.
func (m *topModel) footer() string {
	switch {
	case m.typing != nil:
		return m.typing.prompt + m.typing.text + "▏"
	case m.confirm != nil:
		verb, because := "approve", ""
		if !m.confirm.approve {
			verb, because = "deny", ", because "+m.confirm.reason
		}
		return m.paint.Bold(fmt.Sprintf("y, and nothing else, to %s %s%s", verb, m.confirm.what, because))
	case m.notice != "":
		return m.notice
	}
	keys := "q quit  ? help  tab pane  z alone  / filter  enter why  [ ] plane  n next fault"
	if !m.app.Words().Torus() {
		keys = strings.Replace(keys, "[ ] plane  ", "", 1)
	}
	if m.focus == paneResponses {
		keys = "q quit  ? help  tab pane  z alone  / filter  enter steps  a approve  d deny"
	}
	return keys
}
