package top

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// topHelp is the help for the readers of a torus, or of an ordinary cluster.
func topHelp(torus bool) string {
	planes, cables := "", "links               below the nodes, if they are SICK or FAILED between two nodes that live"
	next := "the next node with a fault, the one before"
	if torus {
		planes = "  [ ]                 the plane of Z before, the next one\n"
		next, cables = "the next plane with a fault, the one before", "cables              ─ │  NORMAL   ~  SICK   ╳  FAILED   ?  UNKNOWN"
	}
	return fmt.Sprintf(topHelpText, planes, next, cables)
}

const topHelpText = `Panes
  tab, shift+tab      the next pane, the one before
  1 2 3 4             what is not normal, the map, events, responses
  z                   the pane alone on the screen, and back
  arrows, h j k l     move; also page up and down, home (g) and end (G)
  enter               why the chosen node, group or response is as it is
  /                   only rows with this text: a name, a state, rack=r7
  esc                 leave a page, a question or the filter

Map
%s  n N                 %s
  nodes               [ ] ·  NORMAL   [!] !  SICK   [X] X  FAILED
                      [?] ?  UNKNOWN  ( ) m  under maintenance
  %s

Responses
  a                   approve the chosen response: it asks first
  d                   deny it: it wants a reason, and asks first

  q, ctrl+c           leave`

// key takes a key that was pressed.
func (m *topModel) key(k topKey) []any {
	switch {
	case k.name == "ctrl+c":
		return []any{topQuit{}}
	case m.typing != nil:
		return m.typed(k)
	case m.confirm != nil:
		w := *m.confirm
		if m.confirm = nil; k.name != "y" {
			m.notice = "no decision sent for " + w.id
			return nil
		}
		m.notice = "..."
		return []any{sayWord{w}}
	case m.page != nil:
		return m.pageKey(k)
	}
	m.notice = ""
	switch k.name {
	case "q":
		return []any{topQuit{}}
	case "?":
		m.page = &topPage{key: "help", title: "Help", lines: strings.Split(topHelp(m.app.Words().Torus()), "\n")}
	case "/":
		m.typing = &topTyping{prompt: "/", text: m.filter, before: m.filter}
	case "esc":
		m.filter, m.zoom = "", false
	case "z":
		m.zoom = !m.zoom
	case "tab":
		m.focus = (m.focus + 1) % topPanes
	case "shift+tab":
		m.focus = (m.focus + topPanes - 1) % topPanes
	case "1", "2", "3", "4":
		m.focus = topPane(k.name[0] - '1')
	case "[", "]", "n", "N":
		m.turn(k.name)
	case "a", "d":
		m.word(k.name == "a")
	case "enter":
		return m.enter()
	default:
		if m.focus == paneMap {
			m.moveInMap(k.name)
			return nil
		}
		m.moveInList(k.name)
	}
	return nil
}

func (m *topModel) pageKey(k topKey) []any {
	step, all := 0, len(m.wrapped())
	switch k.name {
	case "q", "esc", "enter", "?":
		m.page = nil
		return nil
	case "up", "k":
		step = -1
	case "down", "j":
		step = 1
	case "pgup":
		step = -m.pageRows()
	case "pgdown", "space":
		step = m.pageRows()
	case "home", "g":
		step = -all
	case "end", "G":
		step = all
	}
	m.page.scroll = max(0, min(m.page.scroll+step, all-m.pageRows()))
	return nil
}

// maxReason is the most bytes that a reason may have.
const maxReason = 256

func (m *topModel) typed(k topKey) []any {
	t := m.typing
	switch k.name {
	case "esc":
		if m.typing = nil; t.word == nil {
			m.filter = t.before
		} else {
			m.notice = "no decision sent for " + t.word.id
		}
		return nil
	case "enter":
		if t.word != nil {
			if strings.TrimSpace(t.text) == "" {
				return nil // a denial needs a reason
			}
			t.word.reason = t.text
			m.confirm = t.word
		}
		m.typing = nil
		return nil
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(t.text)
		t.text = t.text[:len(t.text)-n]
	case "ctrl+u":
		t.text = ""
	default:
		if k.text == "" || len(t.text)+len(k.text) > maxReason {
			return nil
		}
		t.text += command.Printable(k.text)
	}
	if t.word == nil {
		m.filter = t.text
	}
	return nil
}

// turn goes to another plane of Z.
func (m *topModel) turn(key string) {
	if m.torus == nil {
		return
	}
	n, by := m.torus.Dims.Z, 1
	if key == "[" || key == "N" {
		by = -1
	}
	if !m.app.Words().Torus() {
		m.turnTile(key, by)
		return
	}
	if key == "[" || key == "]" {
		m.at.Z = (m.at.Z + by + n) % n
		return
	}
	m.topRows()
	for i := 1; i <= n; i++ {
		z := ((m.at.Z+by*i)%n + n) % n
		if m.planes[z] != lofamov1.State_NORMAL {
			m.at.Z = z
			return
		}
	}
	m.notice = "every plane is NORMAL"
}

// turnTile goes to another node that is not NORMAL.
func (m *topModel) turnTile(key string, by int) {
	if key == "[" || key == "]" {
		return
	}
	all := m.torus.InTiles(m.cluster)
	at := m.tile(all)
	for i := 1; i <= len(all); i++ {
		if n := all[((at+by*i)%len(all)+len(all))%len(all)]; n.GetState() != lofamov1.State_NORMAL {
			m.lookAt(n.GetId())
			return
		}
	}
	m.notice = "every node is NORMAL"
}

// tile returns the index of the chosen node, 0 if none is chosen.
func (m *topModel) tile(all []*lofamov1.Node) int {
	return max(0, slices.IndexFunc(all, func(n *lofamov1.Node) bool { return n.GetCoord() == m.at.String() }))
}

// moveInTiles goes to the node before or behind the chosen one, or to the first or last.
func (m *topModel) moveInTiles(key string) {
	all := m.torus.InTiles(m.cluster)
	at := m.tile(all)
	switch key {
	case "left", "h", "up", "k":
		at += len(all) - 1
	case "right", "l", "down", "j":
		at++
	case "home", "g":
		at = 0
	case "end", "G":
		at = len(all) - 1
	}
	m.lookAt(all[at%len(all)].GetId())
}

func (m *topModel) moveInMap(key string) {
	if m.torus == nil {
		return
	}
	if !m.app.Words().Torus() {
		m.moveInTiles(key)
		return
	}
	d := m.torus.Dims
	wrap := func(v, n int) int { return (v%n + n) % n }
	switch key {
	case "left", "h":
		m.at.X = wrap(m.at.X-1, d.X)
	case "right", "l":
		m.at.X = wrap(m.at.X+1, d.X)
	case "up", "k":
		m.at.Y = wrap(m.at.Y-1, d.Y)
	case "down", "j":
		m.at.Y = wrap(m.at.Y+1, d.Y)
	case "pgup":
		m.at.Z = wrap(m.at.Z-1, d.Z)
	case "pgdown":
		m.at.Z = wrap(m.at.Z+1, d.Z)
	case "home", "g":
		m.at = grid.Coord{}
	}
}

func (m *topModel) moveInList(key string) {
	rows := m.shown(m.focus)
	if len(rows) == 0 {
		return
	}
	i, page := m.row(m.focus, rows), max(1, m.paneRows(m.focus)-1)
	switch key {
	case "up", "k":
		i--
	case "down", "j":
		i++
	case "pgup":
		i -= page
	case "pgdown", "space":
		i += page
	case "home", "g":
		i = 0
	case "end", "G":
		i = len(rows) - 1
	default:
		return
	}
	i = max(0, min(i, len(rows)-1))
	m.chosen[m.focus] = topChoice{rows[i].key, i}
	if m.focus == paneOdd { // the map follows
		m.lookAt(rows[i].node)
	}
}

// lookAt goes to a node in the map.
func (m *topModel) lookAt(id string) {
	n := m.nodes[id]
	if n == nil || n.GetSpare() {
		return
	}
	if at, err := grid.ParseCoord(n.GetCoord()); err == nil {
		m.at = at
	}
}

// row returns the present index of the chosen row. Without a choice it is the first: the gravest or newest row stays in
// sight.
func (m *topModel) row(p topPane, rows []topRow) int {
	c := m.chosen[p]
	if c.key == "" {
		return 0
	}
	if i := slices.IndexFunc(rows, func(r topRow) bool { return r.key == c.key }); i >= 0 {
		return i
	}
	return max(0, min(c.row, len(rows)-1))
}

// enter opens the chosen row.
func (m *topModel) enter() []any {
	var key string
	if m.focus == paneMap {
		if m.torus == nil {
			return nil
		}
		n := m.torus.Nodes[m.torus.Dims.Rank(m.at)]
		if n == nil {
			m.notice = fmt.Sprintf("no node is at %s", m.at)
			return nil
		}
		key = "node/" + n.GetId()
	} else {
		rows := m.shown(m.focus)
		if len(rows) == 0 {
			return nil
		}
		if key = rows[m.row(m.focus, rows)].open; key == "" {
			m.notice = "there is no more to it"
			return nil
		}
	}
	_, name, _ := strings.Cut(key, "/")
	m.page = &topPage{key: key, title: name, lines: []string{"asking ..."}}
	return []any{askDetail{key}}
}

// word asks the person to confirm the decision about the chosen response.
func (m *topModel) word(approve bool) {
	if m.focus != paneResponses {
		m.notice = "choose a response first (4)"
		return
	}
	rows := m.shown(paneResponses)
	if len(rows) == 0 {
		m.notice = "there is no response"
		return
	}
	r := m.responses[strings.TrimPrefix(rows[m.row(paneResponses, rows)].open, "response/")]
	w := &topWord{approve: approve, id: r.GetId(), what: fmt.Sprintf("%s: %s, policy %s, step %s", r.GetId(), m.app.Words().ResponseTarget(r),
		r.GetPolicy(), command.ResponseStep(r))}
	if approve {
		m.confirm = w
		return
	}
	m.typing = &topTyping{prompt: "deny " + r.GetId() + ", because: ", word: w}
}
