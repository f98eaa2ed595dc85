package deaths

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/machine"
	"github.com/lofamo/lofamo/internal/testing/trial"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Options describe a campaign.
type Options struct {
	Kit        string // folder hack/vm
	Image, Bin string // what `make vm` makes
	Dir        string // existing folder for disks and logs
	Seed       uint64
	Nodes      int            // of the ring, LeastNodes to MostNodes
	Cards      bool           // each node has two kernels, in two machines
	Only       *regexp.Regexp // kinds of death by name; nil: all
	Rounds     int            // end after so many
	Duration   time.Duration  // begin no round after this time; 0: no limit
	Limit      time.Duration  // no machine runs longer
	Conditions string         // what else the machine does, for the record
	Record     func(Line) error
	Out        io.Writer // one line per round

	local bool // serve at localhost, which the supervisor's certificate names
}

// Bounds of waits. Emulated machines boot in 6 s; beside other work on this machine it may take several times as long.
const (
	startBound   = 5 * time.Minute
	verdictBound = 30 * time.Second
	wordsBound   = 30 * time.Second
	dyingBound   = 90 * time.Second // a watchdog's time-out, or a clean shutdown
	bootBound    = 3 * time.Minute
	normalBound  = 3 * time.Minute
	deliverBound = time.Minute
	callBound    = 20 * time.Second
)

// campaign is a running campaign.
type campaign struct {
	o      Options
	ring   *ring
	id     string
	events *feed[*lofamov1.Event]
	log    io.Writer       // of the events
	counts Reports         // at the end of the last round
	failed map[string]bool // lost and doubled reports, that failed a round already
	// roundTrip is the way through a window and back.
	roundTrip time.Duration

	mu      sync.Mutex // guards the fields below
	truth   *trial.Truth
	checker *trial.Checker
	bad     []string // violations since the last round
}

// Run plays a campaign. failed counts the rounds that failed. An error means that the campaign itself could not go on.
func Run(ctx context.Context, o Options) (passed, failed int, err error) {
	periods, err := config.Preset(preset)
	if err != nil {
		return 0, 0, err
	}
	var bound time.Duration
	if o.Cards {
		bound = periods.DPUHalfBound()
	}
	began := time.Now()
	c := &campaign{o: o, id: fmt.Sprintf("%s-%d", began.UTC().Format("20060102T150405"), o.Seed), events: newFeed[*lofamov1.Event](),
		failed: map[string]bool{},
		truth:  trial.NewTruth(grid.Dims{X: o.Nodes, Y: 1, Z: 1}, false)}
	only := ""
	if o.Only != nil {
		only = o.Only.String()
	}
	if err := o.Record(Line{Begin: &Begin{Campaign: c.id, Only: only, Seed: o.Seed, Nodes: o.Nodes, Commit: machine.SourceCommit(),
		Machine: machine.Describe(), Load: machine.LoadAverages(), Began: began.UTC().Truncate(time.Second),
		Preset: preset, Bound: periods.NodeBound(), Cards: o.Cards, HalfBound: bound, Conditions: o.Conditions}}); err != nil {
		return 0, 0, err
	}
	log, err := os.Create(filepath.Join(o.Dir, "events"))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	c.log = log
	end := &End{Campaign: c.id}
	if c.ring, err = newRing(ctx, o); err == nil {
		defer c.ring.close()
		passed, failed, err = c.play(ctx, began)
		end.Machines = c.ring.time().Round(time.Second)
	}
	err = interrupted(ctx, err)
	end.Took, end.Load, end.Events, end.Reports = time.Since(began).Round(time.Second), machine.LoadAverages(), c.events.mark(), c.counts
	end.RoundTrip = c.roundTrip
	if c.checker != nil {
		end.Sick = c.checker.Sick
	}
	if err != nil {
		end.Failure = err.Error()
	}
	return passed, failed, errors.Join(err, o.Record(Line{End: end}))
}

// interrupted returns err, or that ctx has ended: an interrupted campaign has not passed.
func interrupted(ctx context.Context, err error) error {
	if err == nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// play waits for the ring and plays the rounds.
func (c *campaign) play(ctx context.Context, began time.Time) (passed, failed int, err error) {
	plan, err := NewPlan(c.o.Seed, c.o.Nodes, c.o.Cards, c.o.Only)
	if err != nil {
		return 0, 0, err
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	err = c.begin(ctx)
	if err == nil && c.o.Cards {
		c.roundTrip, err = c.ring.roundTrip(ctx)
	}
	if err != nil {
		stop()
		return 0, 0, err
	}
	started := make(chan struct{}, 1)
	ctx, lost := context.WithCancelCause(ctx)
	go func() {
		err := c.watch(watching, started)
		lost(err)
		watched <- err
	}()
	select {
	case <-started:
	case <-ctx.Done():
	}
	defer func() {
		stop()
		if werr := <-watched; werr != nil && !errors.Is(werr, context.Canceled) {
			err = errors.Join(err, werr)
		}
	}()
	for n := 1; n <= c.o.Rounds && (c.o.Duration == 0 || time.Since(began) < c.o.Duration); n++ {
		if ctx.Err() != nil {
			return passed, failed, nil // on request, or the watch failed
		}
		step := plan.Next()
		r := &Round{Campaign: c.id, Number: n, Node: nodeID(step.Node), Kind: step.Kind.Name, Dark: step.Dark}
		c.round(ctx, step, r)
		if ctx.Err() != nil {
			_, _ = fmt.Fprintf(c.o.Out, "interrupted: %s", strings.ReplaceAll(r.String(), "FAIL ", ""))
			return passed, failed, nil
		}
		if err := c.o.Record(Line{Round: r}); err != nil {
			return passed, failed, err
		}
		_, _ = fmt.Fprintln(c.o.Out, r)
		if len(r.Failures) == 0 {
			passed++
			continue
		}
		failed++
		if err := c.heal(ctx, step.Node); err != nil {
			return passed, failed, fmt.Errorf("heal after round %d: %w", n, err)
		}
	}
	return passed, failed, nil
}

// begin waits until all nodes are NORMAL, and begins the watch there.
func (c *campaign) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	began := time.Now()
	for {
		list, err := c.nodes(ctx)
		if err == nil && len(list.GetNodes()) == c.o.Nodes && healthy(list.GetNodes()) && c.kernels(list.GetNodes()) {
			c.checker = trial.NewChecker(c.truth, list.GetNodes(), list.GetRevision())
			_, _ = fmt.Fprintf(c.o.Out, "all nodes NORMAL %s after the start\n", short(time.Since(began)))
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the ring did not become NORMAL within %s: %w", startBound, errors.Join(ctx.Err(), err))
		case <-time.After(time.Second):
		}
	}
}

func (c *campaign) nodes(ctx context.Context) (*lofamov1.ListNodesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	return c.ring.client.AllNodes(ctx, &lofamov1.ListNodesRequest{}, 0)
}

// kernels reports whether each node has as many kernels as the campaign wants.
func (c *campaign) kernels(list []*lofamov1.Node) bool {
	platform := lofamov1.Platform_SHARED_KERNEL
	if c.o.Cards {
		platform = lofamov1.Platform_DPU
	}
	return !slices.ContainsFunc(list, func(n *lofamov1.Node) bool { return n.GetPlatform() != platform })
}

// healthy reports whether all nodes, their halves, and their links and windows are NORMAL.
func healthy(list []*lofamov1.Node) bool {
	for _, n := range list {
		if n.GetState() != lofamov1.State_NORMAL {
			return false
		}
		for _, part := range n.GetComponents() {
			counts := slices.Contains([]string{"host", "dnp", "bus", "service-network"}, part.GetName()) ||
				strings.HasPrefix(part.GetName(), "link/") && part.GetState() != lofamov1.State_ABSENT
			if counts && part.GetState() != lofamov1.State_NORMAL {
				return false
			}
		}
	}
	return true
}

// watch gives every committed event to the checker. It continues for ever: the supervisor pauses at times.
func (c *campaign) watch(ctx context.Context, started chan<- struct{}) error {
	o := client.WatchOptions{After: c.checker.Revision(), Outage: 24 * time.Hour, Progress: func(_ string, err error) {
		if err == nil {
			select {
			case started <- struct{}{}:
			default:
			}
		}
	}}
	return c.ring.client.Watch(ctx, o, func(r *lofamov1.WatchResponse) error {
		for _, e := range r.GetEvents() {
			c.mu.Lock()
			c.bad = append(c.bad, c.checker.Event(e)...)
			c.mu.Unlock()
			_, _ = fmt.Fprintf(c.log, "%s %s %s %s→%s %s %s\n", time.Now().UTC().Format("15:04:05.000"), e.GetNode(), e.GetComponent(),
				e.GetFrom(), e.GetTo(), e.GetCause(), e.GetReason())
			c.events.add(e)
		}
		return nil
	})
}

// know changes the truth.
func (c *campaign) know(change func(*trial.Truth)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.truth)
}

// round plays one round and fills its result.
func (c *campaign) round(ctx context.Context, s Step, r *Round) {
	fail := func(err error) bool {
		if err != nil {
			r.Failures = append(r.Failures, err.Error())
		}
		return err != nil
	}
	p := &player{campaign: c, step: s, round: r, node: c.ring.nodes[s.Node], mark: c.events.mark()}
	if f, ok := s.Kind.fault(s.Node); ok {
		c.know(func(t *trial.Truth) { t.Begin(f) })
	}
	err := p.play(ctx)
	fail(err)
	if s.Dark && fail(c.ring.supervisor.qmp.do("cont")) {
		err = errors.New("the supervisor is still paused")
	}
	if err == nil {
		fail(p.named(ctx))
		at, err := p.settle(ctx)
		if !fail(err) {
			r.Normal = at.Sub(p.died)
		}
		fail(p.lastBoot(ctx))
		fail(p.delivered(ctx))
	}
	c.mu.Lock()
	bad := c.bad
	c.bad = nil
	c.mu.Unlock()
	for _, b := range bad {
		if strings.HasPrefix(b, "false ") {
			r.False = append(r.False, b)
		}
	}
	r.Failures = append(r.Failures, bad...)
	if len(r.Failures) == 0 {
		c.know((*trial.Truth).Settled)
	}
}

// heal brings a node back after a failed round, whatever its state, and waits until everything is NORMAL.
func (c *campaign) heal(ctx context.Context, i int) error {
	c.know(func(t *trial.Truth) { t.Begin(trial.Fault{At: grid.Coord{X: i}, Kind: "kill-node"}) })
	machines, marks := c.ring.of(i, onBoth), map[*guest]int{}
	for _, m := range machines {
		marks[m] = m.console.mark()
		m.cut()
		c.ring.reports.dies(m.name, time.Now())
	}
	for _, m := range machines {
		if err := m.start(ctx); err != nil {
			return err
		}
	}
	p := &player{campaign: c, node: machines[0], mark: c.events.mark()}
	for _, m := range machines {
		if _, err := m.await(ctx, marks[m], bootBound, "^VM .* agent started"); err != nil {
			return err
		}
	}
	if _, err := p.settle(ctx); err != nil {
		return err
	}
	c.know((*trial.Truth).Settled)
	return nil
}

// String prints a round in one line.
func (r *Round) String() string {
	result := "PASS"
	if len(r.Failures) > 0 {
		result = "FAIL"
	}
	notes := ""
	if r.Dark {
		notes = fmt.Sprintf(", supervisor paused, %d reports waited", r.Waited)
	}
	if r.Hung {
		notes += ", the kernel hung instead"
	}
	var line strings.Builder
	fmt.Fprintf(&line, "%s round %d: %s of %s%s: verdict %s, words %s, named %q after %s, NORMAL after %s", result, r.Number, r.Kind, r.Node,
		notes, short(r.Verdict), short(r.Words), strings.TrimSpace(r.End+" "+r.Detail), short(r.Named), short(r.Normal))
	for _, f := range r.Failures {
		line.WriteString("\n  " + f)
	}
	return line.String()
}

// short prints a time for people; 0 was not measured.
func short(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return d.Round(time.Millisecond).String()
}
