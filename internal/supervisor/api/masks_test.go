package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// together is an Operators that begins its changes when all callers have arrived, and commits them one at a time.
type together struct {
	names   *view.Names
	masks   *view.Masks
	arrived sync.WaitGroup
	before  func() // called before a change; nil: none

	mu       sync.Mutex
	revision uint64
	events   []*lofamov1.Event
	lags     int // so many of the next calls of Bounds get the answer of a member that lags
}

// copyOf is the copy of the events that together has committed.
type copyOf struct {
	Copy
	*together
}

func (c copyOf) Revision(context.Context) (uint64, error) { return c.revision, nil }

func (c copyOf) Bounds(context.Context) (store.Bounds, error) {
	if c.lags > 0 {
		c.lags--
		return store.Bounds{Oldest: 1, Next: 1}, nil
	}
	return store.Bounds{Revision: c.revision, Oldest: 1, Next: uint64(len(c.events)) + 1}, nil
}

func (c copyOf) EventsFrom(_ context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	rest := c.events[number-1:]
	return number, rest[:min(len(rest), limit)], nil
}

func (o *together) Topology(context.Context) (store.Topology, error) {
	return store.Topology{Topology: o.names.Topology()}, nil
}

func (o *together) Change(_ context.Context, change func(store.Topology) ([]store.Write, error)) (uint64, error) {
	o.arrived.Done()
	o.arrived.Wait()
	if o.before != nil {
		o.before()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	writes, err := change(store.Topology{Topology: o.names.Topology()})
	if err != nil {
		return 0, err
	}
	for _, w := range writes {
		set, ended, err := store.MasksIn(w)
		if err != nil {
			return 0, err
		}
		o.revision++
		o.masks.Change(set, ended, store.MaskKey, o.revision)
		o.events = append(o.events, w.Events...)
	}
	return o.revision, nil
}

// masking returns a service whose changes begin when that many callers have arrived.
func masking(t *testing.T, dims string, callers int) (*Server, *together) {
	t.Helper()
	l := newLeads(dimsOf(t, dims))
	o := &together{names: l.names, masks: view.NewMasks()}
	o.arrived.Add(callers)
	return New(Config{Self: "s1", Names: l.names, Engine: l, Masks: o.masks, Operators: o, Copy: copyOf{together: o},
		Logger: slog.New(slog.DiscardHandler)}), o
}

// mask masks links, each written as the coordinates and the direction of an end.
func (o *together) mask(links ...string) {
	var set []*lofamov1.LinkMask
	for _, l := range links {
		at, d, _ := strings.Cut(l, "/")
		set = append(set, &lofamov1.LinkMask{Coord: at, Direction: d})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revision++
	o.masks.Change(set, nil, store.MaskKey, o.revision)
}

// TestMasksAreListedWhileLeaderHangs: the replica lists the masks in its own copy instead. The web page's map needs them.
func TestMasksAreListedWhileLeaderHangs(t *testing.T) {
	hung, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hung.Close() }()
	s, o := masking(t, "2x1x1", 0)
	s.cfg.Engine, s.cfg.Directory = follower{}, led{conn: hung}
	o.mask("0,0,0/X+")
	ctx, cancel := context.WithTimeout(asOperator(t), 15*time.Second) // gRPC itself gives up connecting after 20 s
	defer cancel()
	if resp, err := s.ListMasks(ctx, &lofamov1.ListMasksRequest{}); err != nil || ctx.Err() != nil || len(resp.GetMasks()) != 1 {
		t.Errorf("%v, %v: want the mask in the replica's copy", resp, err)
	}
}

// TestMasksWithoutLeaderAreStale: only the leader says which ends have not confirmed a mask. Another replica marks its answer.
func TestMasksWithoutLeaderAreStale(t *testing.T) {
	s, o := masking(t, "2x1x1", 0)
	o.mask("0,0,0/X+")
	leader, err := s.ListMasks(asOperator(t), &lofamov1.ListMasksRequest{})
	if err != nil || leader.GetStale() || len(leader.GetMasks()) != 1 || len(leader.GetMasks()[0].GetWaiting()) != 2 {
		t.Errorf("the leader: %v, %v: want one mask that both ends have not confirmed", leader, err)
	}
	s.cfg.Engine, s.cfg.Directory, s.cfg.QuorumAge = follower{}, alone{}, func() time.Duration { return 3 * time.Second }
	cut, err := s.ListMasks(asOperator(t), &lofamov1.ListMasksRequest{})
	if err != nil || !cut.GetStale() || cut.GetStaleAge().AsDuration() != 3*time.Second || len(cut.GetMasks()) != 1 ||
		len(cut.GetMasks()[0].GetWaiting()) != 0 {
		t.Errorf("a replica without a leader: %v, %v: want the mask, stale, with nothing about its ends", cut, err)
	}
}

// TestMasksAtOnceDoNotCutTorus: of two masks at the same time that are harmless one by one and cut the torus together, only one is made.
func TestMasksAtOnceDoNotCutTorus(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refused codes.Code
		mask    func(s *Server, node string) error
	}{
		"by responses": {codes.FailedPrecondition, func(s *Server, node string) error {
			_, _, err := s.MaskFor(t.Context(), 1, fault.NodeID(node), grid.XPlus, "response/"+node, "a test", false)
			return err
		}},
		"by operators": {codes.InvalidArgument, func(s *Server, node string) error {
			_, err := s.SetMask(asOperator(t), &lofamov1.SetMaskRequest{Links: []*lofamov1.LinkName{{Node: node, Direction: "X+"}}, Masked: true,
				Reason: "a test"})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, o := masking(t, "4x1x1", 2)
			nodes := []string{"n0-0-0", "n2-0-0"}
			errs := make([]error, len(nodes))
			var wg sync.WaitGroup
			for i, node := range nodes {
				wg.Go(func() { errs[i] = tc.mask(s, node) })
			}
			wg.Wait()
			got := map[codes.Code]int{}
			for _, err := range errs {
				got[status.Code(err)]++
			}
			if got[codes.OK] != 1 || got[tc.refused] != 1 {
				t.Errorf("%v: want one success and one %s", errs, tc.refused)
			}
			if all, _, _ := o.masks.All(); len(all) != 1 {
				t.Errorf("%d masks: want 1", len(all))
			}
		})
	}
}

// TestRegionsAreNotClosedByFormerMasks: closing the concave regions fails if masks have changed since the regions were found.
func TestRegionsAreNotClosedByFormerMasks(t *testing.T) {
	t.Parallel()
	s, o := masking(t, "8x8x1", 1)
	pocket := []string{"3,3,0/Y+", "4,3,0/Y+", "2,4,0/X+", "4,4,0/X+", "2,5,0/X+", "4,5,0/X+"} // open upwards
	o.mask(pocket...)
	o.before = func() { o.mask("6,6,0/X+") }
	_, err := s.CloseRegions(asOperator(t), &lofamov1.CloseRegionsRequest{Reason: "a test"})
	if status.Code(err) != codes.Aborted {
		t.Errorf("a mask came meanwhile: %v: want %s", err, codes.Aborted)
	}
	if all, _, _ := o.masks.All(); len(all) != len(pocket)+1 {
		t.Errorf("%d masks: want %d", len(all), len(pocket)+1)
	}
	o.before = nil
	o.arrived.Add(1)
	resp, err := s.CloseRegions(asOperator(t), &lofamov1.CloseRegionsRequest{Reason: "a test"})
	if err != nil || len(resp.GetMasks()) == 0 {
		t.Errorf("asked again: %v, %v: want masks", resp, err)
	}
}

// moving is an engine with a map of the former topology: the nodes change their places once the map is read.
type moving struct {
	Engine
	names *view.Names
	to    *topology.Topology
}

func (e *moving) Map(ctx context.Context) (view.Map, error) {
	m, err := e.Engine.Map(ctx)
	e.names.Set(e.to)
	return m, err
}

// TestRegionsAreNotClosedByFormerPlaces: closing the concave regions fails if nodes change their places while the regions are
// being found.
func TestRegionsAreNotClosedByFormerPlaces(t *testing.T) {
	t.Parallel()
	s, o := masking(t, "8x8x1", 1)
	pocket := []string{"3,3,0/Y+", "4,3,0/Y+", "2,4,0/X+", "4,4,0/X+", "2,5,0/X+", "4,5,0/X+"} // open upwards
	o.mask(pocket...)
	was := o.names.Topology()
	nodes := slices.Clone(was.Nodes)
	a, b := -1, -1
	for i, n := range nodes {
		switch n.ID {
		case "n0-0-0":
			a = i
		case "n7-7-0":
			b = i
		}
	}
	nodes[a].Coord, nodes[b].Coord = nodes[b].Coord, nodes[a].Coord
	s.cfg.Engine = &moving{s.cfg.Engine, o.names, topology.New(was.Dims, nodes, nil, was.Revision+1)}
	_, err := s.CloseRegions(asOperator(t), &lofamov1.CloseRegionsRequest{Reason: "a test"})
	if status.Code(err) != codes.Aborted {
		t.Errorf("nodes have changed their places meanwhile: %v: want %s", err, codes.Aborted)
	}
	if all, _, _ := o.masks.All(); len(all) != len(pocket) {
		t.Errorf("%d masks: want %d", len(all), len(pocket))
	}
}

// call lets one more change of together begin.
func (o *together) call() { o.arrived.Add(1) }

// claimed returns the claims of steps on the mask of the link from n0-0-0 to n1-0-0, each named by the link's upper end.
func claimed(owners ...string) func(context.Context) ([]MaskClaim, error) {
	var out []MaskClaim
	for _, o := range owners {
		out = append(out, MaskClaim{Node: "n1-0-0", Dir: grid.XMinus, Owner: o, Reason: "SICK at n1-0-0"})
	}
	return func(context.Context) ([]MaskClaim, error) { return out, nil }
}

// TestMaskStaysWhileAnotherResponseWantsIt: two responses, one for each end of a cable, want one link masked. When the first is undone, its
// mask passes to the second. The undo of the second removes it.
func TestMaskStaysWhileAnotherResponseWantsIt(t *testing.T) {
	s, o := masking(t, "4x4x1", 0)
	const first, second = "response/r1-1/0", "response/r1-2/0"
	o.call()
	if mine, _, err := s.MaskFor(t.Context(), 1, "n0-0-0", grid.XPlus, first, "SICK at n0-0-0", false); err != nil || !mine {
		t.Fatal(mine, err)
	}
	o.call()
	if mine, by, err := s.MaskFor(t.Context(), 1, "n1-0-0", grid.XMinus, second, "SICK at n1-0-0", false); err != nil || mine || by != first {
		t.Fatal(mine, by, err)
	}
	o.call()
	elsewhere := MaskClaim{Node: "n0-0-0", Dir: grid.XMinus, Owner: "response/r1-3/0", Reason: "another link"}
	both := func(ctx context.Context) ([]MaskClaim, error) {
		all, err := claimed(first, second)(ctx)
		return append([]MaskClaim{elsewhere}, all...), err
	}
	if was, heir, err := s.UnmaskFor(t.Context(), 1, "n0-0-0", grid.XPlus, first, both); err != nil || !was || heir != second {
		t.Errorf("%t, %q, %v: want the mask to pass to %s", was, heir, err, second)
	}
	if all, _, _ := o.masks.All(); len(all) != 1 || all[0].GetBy() != second || all[0].GetReason() != "SICK at n1-0-0" {
		t.Errorf("%v: want the mask of %s", all, second)
	}
	o.call()
	if was, _, err := s.UnmaskFor(t.Context(), 1, "n0-0-0", grid.XPlus, first, claimed(second)); err != nil || was {
		t.Errorf("%t, %v: the first has no mask any more", was, err)
	}
	o.call()
	unread := errors.New("unread")
	if _, _, err := s.UnmaskFor(t.Context(), 1, "n1-0-0", grid.XMinus, second, func(context.Context) ([]MaskClaim, error) {
		return nil, unread
	}); !errors.Is(err, unread) || errors.Is(err, ErrSubmitted) {
		t.Errorf("%v: want the error of the claims, and nothing submitted", err)
	}
	o.call()
	if was, heir, err := s.UnmaskFor(t.Context(), 1, "n1-0-0", grid.XMinus, second, claimed(second)); err != nil || !was || heir != "" {
		t.Errorf("%t, %q, %v: want the link restored", was, heir, err)
	}
	if all, _, _ := o.masks.All(); len(all) != 0 {
		t.Errorf("still masked: %v", all)
	}
}

// TestRepeatedStepDoesNotMaskAgain: the answer to a mask is lost, and a person unmasks the link. The next attempt, which checks first,
// leaves the link unmasked. A step that never had the mask gets it.
func TestRepeatedStepDoesNotMaskAgain(t *testing.T) {
	s, o := masking(t, "4x4x1", 0)
	mask := func(owner string) (mine bool, by string) {
		t.Helper()
		o.call()
		mine, by, err := s.MaskFor(t.Context(), 1, "n0-0-0", grid.XPlus, owner, "SICK", true)
		if err != nil {
			t.Fatal(err)
		}
		return mine, by
	}
	const step = "response/r1-1/0"
	for range 2 { // the check finds nothing, and then the mask itself
		if mine, by := mask(step); !mine || by != step {
			t.Fatalf("%t, by %q: want the step's own mask", mine, by)
		}
	}
	o.call()
	link := &lofamov1.LinkName{Node: "n0-0-0", Direction: "X+"}
	if _, err := s.SetMask(asOperator(t), &lofamov1.SetMaskRequest{Links: []*lofamov1.LinkName{link}}); err != nil {
		t.Fatal(err)
	}
	for range eventPage { // later events, so that the check reads more than one page
		o.events = append(o.events, &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED})
	}
	o.lags = 1
	if mine, by := mask(step); mine || by != "" {
		t.Errorf("%t, by %q: want no mask, because a person has removed it", mine, by)
	}
	if all, _, _ := o.masks.All(); len(all) != 0 {
		t.Errorf("masked again: %v", all)
	}
	if mine, _ := mask("response/r1-2/0"); !mine {
		t.Error("another response's step does not get the mask")
	}
}
