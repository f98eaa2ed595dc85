package get

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// DefaultWidth is used if the terminal's width is unknown.
const DefaultWidth = 100

// MapCommand returns `lofamoctl map`.
func MapCommand(a *command.App) *cobra.Command {
	var colour, past string
	var width int
	cmd := &cobra.Command{
		Use:   "map",
		Short: "All nodes in the terminal",
		Long: `Draws an ordinary cluster as nodes in brackets, by racks if they have labels. It draws a torus of cables one plane of Z
after the other: nodes in brackets, the cables between them, and at the edges the cables that wrap around. A cable shows
the worse of its two ends; 'lofamoctl get links' tells them apart. Everything that is not NORMAL is listed below with its
evidence.

With --at it draws the nodes at that time, from the changes that the supervisors keep: states, causes and maintenance
marks, without evidence. Places and names are the present ones.`,
		Example: "  lofamoctl map\n  lofamoctl map --at 10m\n  lofamoctl map --at 2026-03-01T04:10:00Z",
		Args:    command.Exactly(),
	}
	command.AddColorFlag(cmd, &colour)
	cmd.Flags().StringVar(&past, "at", "", "as it was then: "+momentForms)
	cmd.Flags().IntVar(&width, "width", 0, fmt.Sprintf("columns to draw in, 20 to 1000 (default: the terminal's, else %d)", DefaultWidth))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := a.Painter(colour)
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("width") && (width < 20 || width > 1000) {
			return command.Usagef("--width %d: want 20 to 1000", width)
		}
		if width == 0 {
			width = a.Env.Width
		}
		if width == 0 {
			width = DefaultWidth
		}
		var at time.Time
		rewind := cmd.Flags().Changed("at")
		if rewind {
			if at, err = moment(a, "--at", past); err != nil {
				return err
			}
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			nodes, err := s.ListNodes(ctx, &lofamov1.ListNodesRequest{})
			if err != nil {
				return fmt.Errorf("map: %w", command.Plain(err))
			}
			links, err := s.ListLinks(ctx, &lofamov1.ListLinksRequest{})
			if err != nil {
				return fmt.Errorf("map: %w", command.Plain(err))
			}
			if rewind {
				if err := rewound(a, ctx, s, at, nodes, links); err != nil {
					return fmt.Errorf("map: %w", command.Plain(err))
				}
			}
			m, err := NewMap(nodes, links)
			if err != nil {
				return fmt.Errorf("map: %w", err)
			}
			command.WarnCluster(a, nodes.GetCluster())
			a.Printf("%s", m.picture(nodes.GetCluster(), p, width))
			a.Printf("%s", summary(a, nodes, links, p))
			if rewind {
				a.Printf("\nAs it was at %s, %s ago.\n", a.Clock(timestamppb.New(at)), a.Since(timestamppb.New(at)))
			}
			return nil
		})
	}
	return cmd
}

// summary counts states and lists nodes that are not normal.
func summary(a *command.App, nodes *lofamov1.ListNodesResponse, links *lofamov1.ListLinksResponse, p command.Painter) string {
	var b strings.Builder
	nodeStates, placed, spares := map[lofamov1.State]int{}, 0, []string{}
	for _, n := range nodes.GetNodes() {
		if n.GetSpare() {
			spares = append(spares, n.GetId())
			continue
		}
		nodeStates[n.GetState()]++
		placed++
	}
	linkStates := map[lofamov1.State]int{}
	for _, l := range links.GetLinks() {
		linkStates[l.GetState()]++
	}
	c := nodes.GetCluster()
	fmt.Fprintf(&b, "nodes:     %s\nlink ends: %s\n", Counts(placed, nodeStates, p), Counts(len(links.GetLinks()), linkStates, p))
	size := command.Size(c, placed)
	if !c.GetOrdinary() {
		size += " torus"
	}
	fmt.Fprintf(&b, "%s at revision %d, %s, preset %s\n", size, nodes.GetRevision(), command.Leader(c), command.Dash(c.GetPreset()))

	if len(spares) > 0 {
		fmt.Fprintf(&b, "spares:    %s\n", command.Some(spares, 8))
	}
	rows := [][]string{}
	for _, n := range nodes.GetNodes() {
		if n.GetState() == lofamov1.State_NORMAL || n.GetSpare() {
			continue
		}
		rows = append(rows, []string{"  " + n.GetId(), command.StateName(n.GetState()), command.CauseName(n.GetCause()),
			a.Since(n.GetSince()), Worst(n)})
	}
	list := func(head string, rows [][]string) {
		if len(rows) > 0 {
			b.WriteString("\n" + head + ":\n")
			_ = command.Table(&b, rows) // a strings.Builder does not fail
		}
	}
	list("Not normal", rows)
	marked, restarting, stopped := [][]string{}, [][]string{}, [][]string{}
	for _, n := range nodes.GetNodes() {
		if m := n.GetMaintenance(); m != nil {
			marked = append(marked, []string{"  " + n.GetId(), command.Maintenance(a, m)})
		}
		if r := n.GetRestarting(); r != nil {
			restarting = append(restarting, []string{"  " + n.GetId(), command.Restarting(r),
				a.Until(r.GetUntil()) + " at most"})
		}
		if s := n.GetStopped(); s != nil {
			stopped = append(stopped, []string{"  " + n.GetId(), command.Printable(s.GetReason()), a.Until(s.GetUntil()) + " at most"})
		}
	}
	list("Under maintenance, drawn in round brackets", marked)
	list("Restarting, as announced", restarting)
	list("Stopped, as announced", stopped)
	return b.String()
}

// Counts prints the number of parts in each state.
func Counts(total int, states map[lofamov1.State]int, p command.Painter) string {
	parts := []string{}
	for _, s := range []lofamov1.State{lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.State_FAILED, lofamov1.State_UNKNOWN} {
		if states[s] > 0 {
			parts = append(parts, p.State(s, fmt.Sprintf("%d %s", states[s], s)))
		}
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

// Worst lists a node's components that are not normal, gravest first, each with its newest evidence.
func Worst(n *lofamov1.Node) string {
	var parts []string
	for _, s := range []lofamov1.State{lofamov1.State_FAILED, lofamov1.State_SICK, lofamov1.State_UNKNOWN} {
		for _, c := range n.GetComponents() {
			if c.GetState() != s {
				continue
			}
			part := c.GetName() + " " + command.StateName(s)
			if e := command.Deciding(c.GetEvidence(), s); e != nil && e.GetState() == s {
				part += fmt.Sprintf(" (%s by %s)", e.GetKind(), command.Dash(e.GetObserver()))
			}
			parts = append(parts, part)
		}
	}
	const most = 3
	if len(parts) > most {
		parts = append(parts[:most], fmt.Sprintf("and %d more", len(parts)-most))
	}
	return command.Dash(strings.Join(parts, ", "))
}

// Map is the drawing's subject: the state of every node and of every cable.
type Map struct {
	Dims  grid.Dims
	Nodes []*lofamov1.Node // by rank
	// ends holds the state of each link end, by rank and direction.
	Ends map[int]map[grid.Direction]lofamov1.State
	// possible drawings, computed at the first use: they depend on the names, not on the states
	styles []Style
}

// NewMap builds the map from the lists of nodes and links.
func NewMap(nodes *lofamov1.ListNodesResponse, links *lofamov1.ListLinksResponse) (*Map, error) {
	dims, err := grid.ParseDims(nodes.GetCluster().GetDims())
	if err != nil {
		return nil, err
	}
	m := &Map{Dims: dims, Nodes: make([]*lofamov1.Node, dims.Places()), Ends: map[int]map[grid.Direction]lofamov1.State{}}
	rankOf := func(coord string) (int, error) {
		at, err := grid.ParseCoord(coord)
		if err != nil {
			return 0, err
		}
		return dims.Rank(at), dims.Check(at)
	}
	for _, n := range nodes.GetNodes() {
		if n.GetSpare() {
			continue // it has no place
		}
		r, err := rankOf(n.GetCoord())
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.GetId(), err)
		}
		m.Nodes[r] = n
	}
	for _, l := range links.GetLinks() {
		r, err := rankOf(l.GetCoord())
		if err != nil {
			return nil, fmt.Errorf("link %s of node %s: %w", l.GetDirection(), l.GetNode(), err)
		}
		d, err := grid.ParseDirection(l.GetDirection())
		if err != nil {
			return nil, fmt.Errorf("link of node %s: %w", l.GetNode(), err)
		}
		if m.Ends[r] == nil {
			m.Ends[r] = map[grid.Direction]lofamov1.State{}
		}
		m.Ends[r][d] = l.GetState()
	}
	return m, nil
}

// Cable returns the worse state of the two ends of the cable that leaves c in direction d, or that passes an empty place c
// in that direction. false: there is no cable.
func (m *Map) Cable(c grid.Coord, d grid.Direction) (lofamov1.State, bool) {
	ok := true
	if !m.Dims.Contains(c) {
		c, ok = m.Dims.Neighbour(c, d.Opposite())
	}
	n, to := m.Dims.Neighbour(c, d)
	if !ok || !to {
		return lofamov1.State_UNKNOWN, false
	}
	return Worse(m.Ends[m.Dims.Rank(c)][d], m.Ends[m.Dims.Rank(n)][d.Opposite()]), true
}

// Worse returns the worse of two states.
func Worse(a, b lofamov1.State) lofamov1.State {
	// UNKNOWN is no fault, but less than NORMAL; a missing state is unknown.
	order := func(s lofamov1.State) int {
		switch s {
		case lofamov1.State_FAILED:
			return 3
		case lofamov1.State_SICK:
			return 2
		case lofamov1.State_NORMAL:
			return 0
		default:
			return 1
		}
	}
	if order(b) > order(a) {
		a = b
	}
	if a == lofamov1.State_STATE_UNSPECIFIED {
		return lofamov1.State_UNKNOWN
	}
	return a
}
