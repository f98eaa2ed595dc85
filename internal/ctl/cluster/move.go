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
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func moveCommand(a *command.App) *cobra.Command {
	var to string
	var dryRun bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "move NODE --to PLACE",
		Short: "Give a node another place in the running torus",
		Long: `Gives a node an empty place of the torus while the cluster runs. The node keeps its name, certificates and addresses; only
its place and its neighbours change. Its agent starts the halves again at the new place, which takes some seconds. The map
shows the node as UNKNOWN until it reports from there, and nobody is accused because of the change. The command waits
until the node and all changed links are NORMAL.

The node must be NORMAL, and not under maintenance.`,
		Example:           "  lofamoctl node move n42 --to 1,0,2",
		Args:              command.Exactly("NODE (a node with a place)"),
		ValidArgsFunction: a.CompleteNodes,
	}
	f := cmd.Flags()
	f.StringVar(&to, "to", "", `coordinates "x,y,z" of an empty place`)
	f.BoolVar(&dryRun, "dry-run", false, "only check whether the node can move")
	program.DurationVar(f, &wait, "wait", moveWait, "time limit until the changed links are NORMAL; 0: do not wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := grid.ParseCoord(to); err != nil {
			return command.Usagef("--to %q: want coordinates such as 1,0,2", to)
		}
		if wait < 0 {
			return command.Usagef("--wait %v: want 0 or a positive time such as 30s", wait)
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			st, err := readStep(ctx, s, []*lofamov1.NodeMove{{Node: args[0], To: to}})
			if err != nil {
				return fmt.Errorf("move %s: %w", args[0], command.Plain(err))
			}
			if dryRun {
				resp, err := s.MoveNodes(ctx, &lofamov1.MoveNodesRequest{Moves: st.moves, IfRevision: st.top.GetRevision(), DryRun: true})
				if err != nil {
					return fmt.Errorf("move %s: %w", args[0], plainMove(err))
				}
				a.Printf("%s would move to %s: the torus would be %s\n", args[0], to, resp.GetDims())
				return nil
			}
			if err := st.commit(ctx, s); err != nil {
				return fmt.Errorf("move %s: %w", args[0], plainMove(err))
			}
			a.Printf("%s moves to %s: the torus is %s\n", args[0], to, st.after.GetDims())
			if wait == 0 {
				return nil
			}
			took, err := st.await(ctx, a, s, wait)
			if err != nil {
				return fmt.Errorf("move %s: the node has its new place, but the wait failed: %w", args[0], err)
			}
			a.Printf("%s and its links are NORMAL, %s after it moved\n", args[0], took)
			return nil
		})
	}
	return cmd
}

// moveWait bounds the wait for one step: agents start again within seconds, and a link that leads to another node is UNKNOWN
// for 15 s at most.
const moveWait = time.Minute

// plainMove is command.Plain, and explains the answer of supervisors of an earlier version.
func plainMove(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return errors.New("the supervisors are of an earlier version, which cannot move nodes: upgrade all of them first; nothing was changed")
	}
	return command.Plain(err)
}

// moveStep is one change of places, and what is needed to tell whether it went well.
type moveStep struct {
	moves []*lofamov1.NodeMove
	top   *lofamov1.Topology // before
	after *lofamov1.Topology
	wrong map[string]bool // nodes with faults before
	dead  map[string]bool // nodes that were FAILED before: their links are not awaited
}

// readStep reads the topology and the faults before a step.
func readStep(ctx context.Context, s command.Session, moves []*lofamov1.NodeMove) (*moveStep, error) {
	st := &moveStep{moves: moves}
	var err error
	if st.top, err = s.GetTopology(ctx); err != nil {
		return nil, err
	}
	st.wrong, st.dead, err = faults(ctx, s)
	return st, err
}

// faults returns the nodes with a fault, and those that are FAILED.
func faults(ctx context.Context, s command.Session) (wrong, dead map[string]bool, err error) {
	list, err := s.ListNodes(ctx, &lofamov1.ListNodesRequest{NotNormal: true, Brief: true})
	if err != nil {
		return nil, nil, err
	}
	wrong, dead = make(map[string]bool), make(map[string]bool)
	for _, n := range list.GetNodes() {
		bad := func(st lofamov1.State) bool { return st == lofamov1.State_SICK || st == lofamov1.State_FAILED }
		wrong[n.GetId()] = bad(n.GetState()) ||
			slices.ContainsFunc(n.GetComponents(), func(c *lofamov1.Component) bool { return bad(c.GetState()) })
		dead[n.GetId()] = n.GetState() == lofamov1.State_FAILED
	}
	return wrong, dead, nil
}

// commit makes the change, unless somebody has changed the topology since. If the answer is lost, the topology tells whether the
// change was made.
func (st *moveStep) commit(ctx context.Context, s command.Session) error {
	resp, err := s.MoveNodes(ctx, &lofamov1.MoveNodesRequest{Moves: st.moves, IfRevision: st.top.GetRevision()})
	if err == nil {
		st.after = proto.CloneOf(st.top)
		st.after.Dims = resp.GetDims()
		for _, n := range resp.GetNodes() {
			nodeOf(st.after, n.GetId()).Coord = n.GetCoord()
		}
		return nil
	}
	now, readErr := s.GetTopology(ctx)
	if readErr != nil || now.GetRevision() == st.top.GetRevision() {
		return err
	}
	for _, mv := range st.moves {
		n := command.TopologyNode(st.top, mv.GetNode())
		if n == nil || nodeOf(now, n.GetId()).GetCoord() != mv.GetTo() || n.GetCoord() == mv.GetTo() {
			return err
		}
	}
	st.after = now
	return nil
}

// moveLook is the interval between looks at the links of a step.
const moveLook = 500 * time.Millisecond

// await waits until the moved nodes and all changed links are NORMAL, and no other node has a new fault. It returns how long
// that took.
func (st *moveStep) await(ctx context.Context, a *command.App, s command.Session, wait time.Duration) (time.Duration, error) {
	began := a.Env.Now()
	ends, err := changedEnds(st.top, st.after)
	if err != nil {
		return 0, err
	}
	for {
		waits, err := st.waits(ctx, s, ends)
		took := a.Env.Now().Sub(began)
		switch {
		case err == nil && len(waits) == 0:
			return took.Round(moveLook / 5), nil
		case err != nil && (!command.Unanswered(err) || took > wait):
			return took, fmt.Errorf("whether its links are NORMAL is unknown: %w", command.Plain(err))
		case took > wait:
			return took, fmt.Errorf("after %v: %s", wait, strings.Join(waits, ", "))
		}
		select {
		case <-ctx.Done():
			return took, ctx.Err()
		case <-time.After(moveLook):
		}
	}
}

// maxWaits bounds the reasons that waits names.
const maxWaits = 6

// waits returns what is not well yet, in words.
func (st *moveStep) waits(ctx context.Context, s command.Session, ends map[string]map[string]string) ([]string, error) {
	var out []string
	add := func(format string, args ...any) {
		if len(out) < maxWaits {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	wrong, _, err := faults(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, n := range st.after.GetNodes() {
		if id := n.GetId(); wrong[id] && !st.wrong[id] {
			add("%s has a fault", id)
		}
	}
	for _, mv := range st.moves {
		id := command.TopologyNode(st.top, mv.GetNode()).GetId()
		n, err := s.GetNode(ctx, id)
		if err != nil {
			return nil, err
		}
		if n.GetState() != lofamov1.State_NORMAL {
			add("%s is %s", id, command.StateName(n.GetState()))
		}
	}
	for _, n := range st.after.GetNodes() {
		of := ends[n.GetId()]
		if of == nil || st.dead[n.GetId()] {
			continue
		}
		links, err := s.AllLinks(ctx, &lofamov1.ListLinksRequest{Node: n.GetId()}, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range grid.Directions() {
			peer := of[d.String()]
			if peer == "" || st.dead[peer] {
				continue
			}
			i := slices.IndexFunc(links.GetLinks(), func(l *lofamov1.Link) bool { return l.GetDirection() == d.String() })
			switch {
			case i < 0 || links.GetLinks()[i].GetPeer() != peer:
				add("link %s of %s does not lead to %s yet", d, n.GetId(), peer)
			case links.GetLinks()[i].GetState() != lofamov1.State_NORMAL:
				add("link %s of %s is %s", d, n.GetId(), command.StateName(links.GetLinks()[i].GetState()))
			}
		}
	}
	return out, nil
}

// changedEnds returns the ends of links that lead to another node since a change: the new peers by node and direction.
func changedEnds(before, after *lofamov1.Topology) (map[string]map[string]string, error) {
	was, err := peersIn(before)
	if err != nil {
		return nil, err
	}
	is, err := peersIn(after)
	if err != nil {
		return nil, err
	}
	for id, ends := range is {
		for d, peer := range ends {
			if was[id][d] == peer {
				delete(ends, d)
			}
		}
		if len(ends) == 0 {
			delete(is, id)
		}
	}
	return is, nil
}

// peersIn returns the peers of all nodes by direction.
func peersIn(top *lofamov1.Topology) (map[string]map[string]string, error) {
	dims, err := grid.ParseDims(top.GetDims())
	if err != nil {
		return nil, err
	}
	ids := make(map[grid.Coord]string)
	for _, n := range top.GetNodes() {
		if c, err := grid.ParseCoord(n.GetCoord()); err == nil {
			ids[c] = n.GetId()
		}
	}
	out := make(map[string]map[string]string, len(ids))
	for at, id := range ids {
		out[id] = make(map[string]string)
		for _, d := range dims.LinksOf(at) {
			to, _ := dims.Neighbour(at, d)
			out[id][d.String()] = ids[to]
		}
	}
	return out, nil
}
