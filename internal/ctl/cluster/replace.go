package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A node is replaced in steps (seed 003 §5.2.3.2), each with its own commit:
//
//	mark ──► mask ──► drain ──► swap ──► await ──► restore ──► end
//
// The committed state alone determines the next step: a repeated call, after the death of a leader or of this program,
// continues there.

// replaceStep is one step.
type replaceStep uint8

const (
	replaceMark    replaceStep = iota + 1 // both nodes get maintenance marks: no response acts on the coming changes
	replaceMask                           // the links of the coordinates are masked, at both ends
	replaceDrain                          // the living ends report that no messages wait there now
	replaceSwap                           // the spare gets the coordinates, the broken node none
	replaceAwait                          // the spare reports there, and both ends of every link are well
	replaceRestore                        // the links are restored, at both ends
	replaceEnd                            // the spare's mark ends, unless a person set it; the broken node's stays
	replaceDone
)

// replacement is a node and its replacement.
type replacement struct {
	broken, spare string
	reason        string
}

// replaceState is the committed and reported state.
type replaceState struct {
	topology *lofamov1.Topology
	masks    []*lofamov1.LinkMask
	marks    map[string]string // reasons of the maintenance marks, by node
	failed   map[string]bool   // nodes that are FAILED: their reports are not awaited
	// unwell are the link ends at the coordinates that are not NORMAL, as "node/direction".
	unwell []string
	drain  bool // time remains for it
	// stale: the masks come from a replica that reaches no leader, so their Waiting is empty.
	stale bool
}

// cannotReplace is the reason why a replacement is impossible.
type cannotReplace struct{ why string }

func (e cannotReplace) Error() string { return e.why }

// next returns the next step, and the ends that it waits for.
func (r replacement) next(s replaceState) (step replaceStep, waits []string, err error) {
	broken, spare := nodeOf(s.topology, r.broken), nodeOf(s.topology, r.spare)
	switch {
	case broken == nil || spare == nil:
		return 0, nil, cannotReplace{fmt.Sprintf("topology: %s and %s: want two nodes of it", r.broken, r.spare)}
	case broken.GetCoord() != "" && spare.GetCoord() != "":
		return 0, nil, cannotReplace{fmt.Sprintf("node %s is at %s: want a spare", r.spare, spare.GetCoord())}
	case broken.GetCoord() == "" && spare.GetCoord() == "":
		return 0, nil, cannotReplace{fmt.Sprintf("node %s has no place, and %s none either: want one that has", r.broken, r.spare)}
	}
	swapped := spare.GetCoord() != ""
	at := broken.GetCoord() + spare.GetCoord()
	ours := r.ours(s, at)
	switch {
	case !swapped && len(r.unmarked(s)) > 0:
		return replaceMark, nil, nil
	case !swapped && len(unmasked(s, at)) > 0:
		return replaceMask, nil, nil
	case !swapped:
		if waits = drains(s, ours); len(waits) > 0 && s.drain {
			return replaceDrain, waits, nil
		}
		return replaceSwap, waits, nil
	case len(s.unwell) > 0:
		return replaceAwait, s.unwell, nil
	case len(ours) > 0:
		return replaceRestore, nil, nil
	case r.sets(s.marks[r.spare]):
		return replaceEnd, nil, nil
	}
	return replaceDone, nil, nil
}

// inPlaceOf is the text between the spare and the broken node in the reason of a replacement's mark.
const inPlaceOf = " is put in the place of "

// newReplacement describes the replacement of one node by another.
func newReplacement(broken, spare string) replacement {
	return replacement{broken, spare, spare + inPlaceOf + broken}
}

// replacementOf is newReplacement for nodes that are given by id or coordinates.
func replacementOf(top *lofamov1.Topology, broken, spare string) (replacement, error) {
	was, now := command.TopologyNode(top, broken), command.TopologyNode(top, spare)
	switch {
	case was == nil:
		return replacement{}, command.Usagef("BROKEN %q: want a node of the topology, or its coordinates", broken)
	case now == nil:
		return replacement{}, command.Usagef("SPARE %q: want a node of the topology", spare)
	case was == now: // an interrupted command that is repeated with coordinates
		return replacement{}, command.Usagef("BROKEN %s names the spare %s itself: want the id of the broken node", broken, now.GetId())
	}
	return newReplacement(was.GetId(), now.GetId()), nil
}

// sets reports whether a mark on the spare comes from a replacement: this one, or one with the spare as its broken
// node. Other marks stay, as their purpose is unknown.
func (r replacement) sets(reason string) bool {
	return reason == r.reason || strings.HasSuffix(reason, inPlaceOf+r.spare)
}

// unmarked returns those of the two nodes without a mark: any existing mark keeps responses away.
func (r replacement) unmarked(s replaceState) (out []string) {
	for _, id := range []string{r.broken, r.spare} {
		if _, marked := s.marks[id]; !marked {
			out = append(out, id)
		}
	}
	return out
}

func nodeOf(top *lofamov1.Topology, id string) *lofamov1.TopologyNode {
	i := slices.IndexFunc(top.GetNodes(), func(n *lofamov1.TopologyNode) bool { return n.GetId() == id })
	if i < 0 {
		return nil
	}
	return top.GetNodes()[i]
}

// ours returns the masks of the links at the coordinates that this replacement has set; earlier ones stay.
func (r replacement) ours(s replaceState, at string) []*lofamov1.LinkMask {
	var out []*lofamov1.LinkMask
	for _, m := range s.masks {
		if (m.GetCoord() == at || m.GetPeerCoord() == at) && m.GetReason() == r.reason {
			out = append(out, m)
		}
	}
	return out
}

// unmasked returns the directions of the unmasked links at the coordinates. Links to a place without a node of these
// supervisors cannot be masked, and no messages for this node wait there.
func unmasked(s replaceState, at string) []grid.Direction {
	dims, err := grid.ParseDims(s.topology.GetDims())
	c, err2 := grid.ParseCoord(at)
	if err != nil || err2 != nil {
		return nil
	}
	var out []grid.Direction
	for _, d := range dims.LinksOf(c) {
		n, _ := dims.Neighbour(c, d)
		if !slices.ContainsFunc(s.topology.GetNodes(), func(t *lofamov1.TopologyNode) bool { return t.GetCoord() == n.String() }) {
			continue
		}
		masked := slices.ContainsFunc(s.masks, func(m *lofamov1.LinkMask) bool {
			if d.Positive() {
				return m.GetCoord() == at && m.GetDirection() == d.String()
			}
			return m.GetCoord() == n.String() && m.GetDirection() == d.Opposite().String()
		})
		if !masked {
			out = append(out, d)
		}
	}
	return out
}

// drains returns the living nodes that have not yet confirmed a mask at their end. With stale masks, no node counts as having confirmed.
func drains(s replaceState, masks []*lofamov1.LinkMask) []string {
	var out []string
	for _, m := range masks {
		waiting := m.GetWaiting()
		if s.stale {
			waiting = []string{m.GetNode(), m.GetPeer()}
		}
		for _, id := range waiting {
			if id != "" && !s.failed[id] && !slices.Contains(out, id) { // at an empty place there is no node
				out = append(out, id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// NodeCommand returns `lofamoctl node`.
func NodeCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Let nodes join the running torus, leave it, get other places, or replace one another",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("node %s: want improve, join, leave, move or replace", strings.Join(args, " "))
		},
	}
	cmd.AddCommand(joinCommand(a), leaveCommand(a), moveCommand(a), improveCommand(a), replaceCommand(a))
	return cmd
}

func replaceCommand(a *command.App) *cobra.Command {
	var drain, wait time.Duration
	cmd := &cobra.Command{
		Use:   "replace BROKEN SPARE",
		Short: "Drain a node's links, put a spare in its place, and bring the spare into service",
		Long: `Puts a spare in the place of a node, step by step: both get maintenance marks; the links of the place are masked, and
waiting packets take other paths; the spare gets the place in the topology; when it reports from there and both ends
of all its links are NORMAL, the links are unmasked and its mark is removed. A mark that somebody had set before
stays.

The supervisors send the spare its place and neighbours, and the neighbours their new peer: no configuration needs a
change. The spare's agent must run, with 'spare: true'; docs/topology.md says how, and what to check while this waits.
An interrupted command continues when you repeat it.`,
		Example:           "  lofamoctl node replace n1-0-1 spare-0",
		Args:              command.Exactly("BROKEN (a node)", "SPARE (a node without a place)"),
		ValidArgsFunction: a.CompleteNodes,
	}
	program.DurationVar(cmd.Flags(), &drain, "drain", 15*time.Second, "time limit until the living ends apply the masks")
	program.DurationVar(cmd.Flags(), &wait, "wait", 30*time.Minute,
		"time limit for the spare's first report, and for conflicts with other changes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if drain < 0 {
			return command.Usagef("--drain %v: want 0 or a positive time such as 15s", drain)
		}
		if wait < 0 {
			return command.Usagef("--wait %v: want 0 or a positive time such as 30m", wait)
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			top, err := s.GetTopology(ctx)
			if err != nil {
				return fmt.Errorf("replace %s: %w", args[0], command.Plain(err))
			}
			r, err := replacementOf(top, args[0], args[1])
			if err != nil {
				return err
			}
			return replace(a, ctx, s, r, drain, wait)
		})
	}
	return cmd
}

// replaceLook is the interval between checks while a step waits.
const replaceLook = time.Second

// replace carries out all steps. After a conflict with a change by somebody else, it reads the state again.
func replace(a *command.App, ctx context.Context, s command.Session, r replacement, drain, wait time.Duration) error {
	drainBy, waitBy := time.Time{}, a.Env.Now().Add(wait)
	told, conflicts := "", 0
	for {
		st, err := readReplacement(ctx, s, r)
		if err != nil {
			return fmt.Errorf("replace %s: %w", r.broken, command.Plain(err))
		}
		st.drain = drainBy.IsZero() || a.Env.Now().Before(drainBy)
		step, waits, err := r.next(st)
		if err != nil {
			return command.Usage(err)
		}
		text := r.text(step, waits)
		if why, marked := st.marks[r.spare]; step == replaceDone && marked {
			text += fmt.Sprintf("; it stays under maintenance: %q", why)
		}
		if text != told {
			told = text
			a.Printf("%s\n", text)
		}
		switch step {
		case replaceDone:
			return nil
		case replaceDrain, replaceAwait:
			if step == replaceDrain && drainBy.IsZero() {
				drainBy = a.Env.Now().Add(drain)
			}
			if a.Env.Now().After(waitBy) {
				return fmt.Errorf("replace %s: %s has not joined after %v: waiting for %s: run this command again to continue", r.broken, r.spare, wait,
					strings.Join(waits, " "))
			}
			if err := command.Pause(ctx, replaceLook); err != nil {
				return err
			}
		default:
			err := r.do(ctx, s, st, step)
			if err == nil {
				conflicts = 0
				continue
			}
			if status.Code(err) != codes.Aborted {
				return fmt.Errorf("replace %s: %w", r.broken, command.Plain(err))
			}
			if a.Env.Now().After(waitBy) {
				return fmt.Errorf("replace %s: conflicts with other changes after %v: %w: run this command again to continue", r.broken, wait,
					command.Plain(err))
			}
			conflicts++
			if err := command.Pause(ctx, command.ConflictPause(conflicts)); err != nil {
				return err
			}
		}
	}
}

// text describes the present step.
func (r replacement) text(step replaceStep, waits []string) string {
	switch step {
	case replaceMark:
		return fmt.Sprintf("maintenance marks for %s and %s", r.broken, r.spare)
	case replaceMask:
		return "masking the links of " + r.broken
	case replaceDrain:
		return "waiting until nothing waits at the ends of " + strings.Join(waits, " ")
	case replaceSwap:
		if len(waits) > 0 {
			return fmt.Sprintf("%s has not said that its mask is in force: going on; %s gets the place of %s", strings.Join(waits, " "),
				r.spare, r.broken)
		}
		return fmt.Sprintf("%s gets the place of %s", r.spare, r.broken)
	case replaceAwait:
		return "waiting for both ends of all links to be well: " + strings.Join(waits, " ")
	case replaceRestore:
		return "restoring the links of " + r.spare
	case replaceEnd:
		return "maintenance of " + r.spare + " ends"
	default:
	}
	return fmt.Sprintf("%s is in the place of %s", r.spare, r.broken)
}

// readReplacement reads the state for next.
func readReplacement(ctx context.Context, s command.Session, r replacement) (st replaceState, err error) {
	if st.topology, err = s.GetTopology(ctx); err != nil {
		return st, err
	}
	masks, err := s.ListMasks(ctx)
	if err != nil {
		return st, err
	}
	st.masks, st.stale = masks.GetMasks(), masks.GetStale()
	st.marks, st.failed = make(map[string]string), make(map[string]bool)
	nodes, err := s.ListNodes(ctx, &lofamov1.ListNodesRequest{Brief: true})
	if err != nil {
		return st, err
	}
	for _, n := range nodes.GetNodes() {
		if m := n.GetMaintenance(); m != nil {
			st.marks[n.GetId()] = m.GetReason()
		}
		st.failed[n.GetId()] = n.GetState() == lofamov1.State_FAILED
	}
	if n := nodeOf(st.topology, r.spare); n.GetCoord() == "" {
		return st, nil
	}
	ends := 0
	for _, req := range []*lofamov1.ListLinksRequest{{Node: r.spare}, {FieldSelector: "peer=" + r.spare}} {
		links, err := s.AllLinks(ctx, req, 0)
		if err != nil {
			return st, err
		}
		for _, l := range links.GetLinks() {
			ends++
			// A link to a dead node recovers with that node, and one without a peer never does.
			other := others(l, r.spare)
			if l.GetState() != lofamov1.State_NORMAL && !st.failed[other] && nodeOf(st.topology, other) != nil {
				st.unwell = append(st.unwell, l.GetNode()+"/"+l.GetDirection())
			}
		}
	}
	if ends == 0 { // not known yet: that is no health
		st.unwell = append(st.unwell, r.spare)
	}
	return st, nil
}

// others is the end of a link that is not a node's own.
func others(l *lofamov1.Link, id string) string {
	if l.GetNode() == id {
		return l.GetPeer()
	}
	return l.GetNode()
}

// do does one step. Each is done whole or not at all, and may be done again.
func (r replacement) do(ctx context.Context, s command.Session, st replaceState, step replaceStep) error {
	at := nodeOf(st.topology, r.broken).GetCoord() + nodeOf(st.topology, r.spare).GetCoord()
	var err error
	switch step {
	case replaceMark:
		_, err = s.SetMaintenance(ctx, &lofamov1.SetMaintenanceRequest{Nodes: r.unmarked(st), Reason: r.reason})
	case replaceMask:
		req := &lofamov1.SetMaskRequest{Masked: true, Reason: r.reason, Force: true}
		for _, d := range unmasked(st, at) {
			req.Links = append(req.Links, &lofamov1.LinkName{Node: at, Direction: d.String()})
		}
		_, err = s.SetMask(ctx, req)
	case replaceSwap:
		nodeOf(st.topology, r.spare).Coord, nodeOf(st.topology, r.broken).Coord = at, ""
		_, err = s.ApplyTopology(ctx, &lofamov1.ApplyTopologyRequest{Topology: st.topology, IfRevision: st.topology.GetRevision()})
	case replaceRestore:
		req := &lofamov1.SetMaskRequest{}
		for _, m := range r.ours(st, at) {
			req.Links = append(req.Links, &lofamov1.LinkName{Node: m.GetCoord(), Direction: m.GetDirection()})
		}
		_, err = s.SetMask(ctx, req)
	case replaceEnd:
		_, err = s.EndMaintenance(ctx, &lofamov1.EndMaintenanceRequest{Nodes: []string{r.spare}})
	default:
		err = errors.New("no step: cannot be")
	}
	return err
}
