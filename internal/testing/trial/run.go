package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/internal/testing/machine"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Options describe a trial.
type Options struct {
	Shape
	Preset   string // empty: what `lofamoctl up` chooses for this machine
	Periods  *config.PeriodsOverride
	Seed     uint64
	Rounds   int           // end after so many rounds; 0: no limit
	Faults   int           // end with the round that has this fault; 0: no limit
	Duration time.Duration // begin no round after this time; 0: no limit
	Dir      string        // existing directory for the cluster and the load's file
	BinDir   string        // see cluster.FindBinaries
	Patience int           // additional factor for all time limits, for a trial beside other tests; 0 means 1
	Load     []string      // command that runs LoadMain with further arguments; required if Shape.Load > 0
	Out      io.Writer     // one line per step; nil: none
}

const (
	startBound  = 10 * time.Minute
	callBound   = 20 * time.Second
	watchBound  = 2 * time.Minute
	leaderBound = 15 * time.Second
	// mostViolations ends a trial: more would not help to understand it.
	mostViolations = 50
	// lostCause is the multiple of the bound for NORMAL after which a trial gives up.
	lostCause = 5
)

// Factor returns the multiple of a bound that is allowed beside so many busy loops, on a machine that others load too.
func Factor(loops int) int {
	switch {
	case loops >= 16:
		return 40
	case loops > 0:
		return 20
	}
	return 10
}

// runner is a running trial.
type runner struct {
	o        Options
	lab      *lab.Lab
	operator *client.Client
	periods  config.Periods
	bounds   Bounds
	rnd      *rand.Rand
	load     load
	ledger   *Ledger
	record   *Record

	resources *Resources
	racks     Racks
	incidents *incidentSet

	mu       sync.Mutex // guards truth, checker and violations
	truth    *Truth
	checker  *Checker
	initial  uint64 // revision of the first list
	compared uint64 // revision up to which the watch was compared

	round   int
	leader  string
	down    map[string]bool // supervisors: true is stopped, false dead
	daemons []string        // nodes whose daemon was killed
	harmed  map[string]bool // nodes with a fault
	pending []injected
	changes int
}

// injected is a fault that the map has not named yet.
type injected struct {
	Fault
	at     int64 // cluster.Monotonic
	mark   int
	bound  time.Duration
	outage bool
}

// Run starts a cluster and plays rounds. The record holds the violations; an error means that the trial itself failed.
// The caller removes the directory.
func Run(ctx context.Context, o Options) (rec *Record, err error) {
	if o.Preset == "" {
		o.Preset = config.PresetDefault
		if f := cluster.FitPreset(o.Dims, 0, cores()); o.Periods == nil {
			o.Preset = f.Preset
		}
	}
	restart := "never"
	if o.Restarts {
		restart = "always"
	}
	r := &runner{o: o, rnd: rand.New(rand.NewPCG(o.Seed, 2)), ledger: NewLedger(), record: newRecord(o), down: map[string]bool{},
		harmed: map[string]bool{}, load: load{command: o.Load, dir: o.Dir}, racks: Racks{}, incidents: newIncidentSet()}
	starting, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	r.lab, err = lab.Start(starting, cluster.Options{Dir: filepath.Join(o.Dir, "c"), Dims: o.Dims, Supervisors: o.Supervisors,
		Preset: o.Preset, Periods: o.Periods, BinDir: o.BinDir, Restart: restart, Supervisor: o.Unharmed.keepLittle})
	if err != nil {
		return nil, fmt.Errorf("start the cluster of a trial: %w", err)
	}
	defer func() { err = errors.Join(err, r.lab.Close()) }()
	defer r.load.stop()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.operator.Close()) }()
	r.resources = WatchResources(r.lab.Cluster.Processes)
	watching, stop := context.WithCancel(ctx)
	watched := make(chan error, 2)
	go func() { watched <- r.watch(watching) }()
	go func() { watched <- r.watchIncidents(watching) }()
	err = r.rounds(ctx)
	stop()
	for range 2 {
		if werr := <-watched; werr != nil {
			r.violate("watch: " + werr.Error())
		}
	}
	r.resources.Close()
	usages, bad := r.resources.Usages()
	r.violate(bad...)
	r.finish(usages)
	return r.record, err
}

func (r *runner) prepare(ctx context.Context) (err error) {
	if r.periods, err = r.lab.Cluster.Periods(); err != nil {
		return err
	}
	r.bounds = boundsOf(r.periods, r.o.Preset)
	if r.operator, err = r.lab.Cluster.ClientAs(pki.RoleOperator); err != nil {
		return err
	}
	list, err := r.lab.Client.AllNodes(ctx, &lofamov1.ListNodesRequest{}, 0)
	if err != nil {
		return err
	}
	r.truth = NewTruth(r.o.Dims, r.o.Restarts)
	r.initial, r.compared = list.GetRevision(), list.GetRevision()
	r.checker = NewChecker(r.truth, list.GetNodes(), r.initial)
	r.leader = list.GetCluster().GetLeader()
	for _, n := range list.GetNodes() {
		at, err := grid.ParseCoord(n.GetCoord())
		if rack := n.GetLabels()["rack"]; err == nil && rack != "" {
			r.racks[rack] = append(r.racks[rack], at)
		}
	}
	return nil
}

// boundsOf returns the bounds for the periods: the documented ones of halves and nodes, and those that follow from the
// periods for other faults. From the third change on, a component's changes are a hold-off apart.
func boundsOf(p config.Periods, preset string) Bounds {
	silence := time.Duration(p.LinkMisses+1) * p.LinkPeriod
	check := 2 * time.Second
	switch preset {
	case config.PresetFast:
		check = time.Second
	case config.PresetRelaxed:
		check = 10 * time.Second
	}
	transit := config.TransitAllowance + p.LinkHoldOff
	return Bounds{
		Half: p.HalfBound(), Node: p.NodeBound(), Single: p.SingleBound(),
		Link:       silence + 2*p.ChallengeSingle + transit,
		Corrupt:    time.Duration(p.LinkWindow)*p.LinkPeriod + transit,
		Service:    2*time.Second + transit,
		Sensor:     p.SensorPeriod + transit,
		Peripheral: check + p.SensorPeriod + transit,
	}
}

// watch gives every event to the checker, until ctx ends.
func (r *runner) watch(ctx context.Context) error {
	_, ended := r.lab.Wait(ctx, 0, func(s lab.Seen) bool {
		if s.GetRevision() != 0 && s.GetRevision() <= r.initial {
			return false
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.violateLocked(r.checker.Event(s.Event)...)
		return false
	})
	if ctx.Err() == nil {
		return ended
	}
	return nil
}

func (r *runner) print(format string, args ...any) {
	if r.o.Out != nil {
		_, _ = fmt.Fprintf(r.o.Out, "%s round %d: %s\n", time.Now().UTC().Format("15:04:05"), r.round, fmt.Sprintf(format, args...))
	}
}

func (r *runner) violate(bad ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violateLocked(bad...)
}

func (r *runner) violateLocked(bad ...string) {
	for _, b := range bad {
		// The error of a wait has the ends of logs below its first line.
		b, _, _ = strings.Cut(b, "\n")
		b = fmt.Sprintf("%s (load averages of the machine: %s)", b, machine.LoadAverages())
		r.print("VIOLATION %s", b)
		r.record.Violations = append(r.record.Violations, fmt.Sprintf("%s round %d: %s", time.Now().UTC().Format("15:04:05"), r.round, b))
	}
}

func (r *runner) violations() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.record.Violations)
}

// rounds plays rounds until the limit.
func (r *runner) rounds(ctx context.Context) error {
	plan := NewPlan(rand.New(rand.NewPCG(r.o.Seed, 1)), r.o.Shape)
	if err := r.firstIncidents(ctx); err != nil {
		return err
	}
	for begun := time.Now(); ctx.Err() == nil; {
		if r.o.Rounds > 0 && r.round >= r.o.Rounds || r.o.Faults > 0 && r.record.Steps[Inject.String()] >= r.o.Faults ||
			r.o.Duration > 0 && time.Since(begun) >= r.o.Duration {
			return nil
		}
		if r.violations() >= mostViolations {
			r.print("ends: %d violations", r.violations())
			return nil
		}
		// After an interruption the record so far counts.
		if err := r.play(ctx, plan.Next()); err != nil && ctx.Err() == nil {
			return fmt.Errorf("round %d: %w", r.round, err)
		}
		r.record.Rounds++
	}
	return nil
}

// play plays one round.
func (r *runner) play(ctx context.Context, round Round) error {
	r.mu.Lock()
	r.round = round.Number
	r.mu.Unlock()
	if err := r.load.set(ctx, round.Loops, round.Pressure); err != nil {
		return err
	}
	if round.Loops > 0 {
		r.print("load: %d busy loops%s", round.Loops, map[bool]string{true: ", memory and disk"}[round.Pressure])
	}
	before := r.incidents.begin()
	for _, s := range round.Steps {
		r.record.Steps[s.Op.String()]++
		if err := r.do(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	if err := r.startSupervisors(); err != nil {
		return err
	}
	r.await(ctx)
	return r.judgeIncidents(ctx, round, before, func() error { return r.end(ctx) })
}

// end heals everything, waits for NORMAL and compares.
func (r *runner) end(ctx context.Context) error {
	begun := time.Now()
	bound := r.normalBound()
	healing, cancel := context.WithTimeout(ctx, max(bound, lostCause*bound/time.Duration(max(r.o.Patience, 1))))
	defer cancel()
	if err := r.heal(healing); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	if err := r.settle(healing); err != nil {
		if ctx.Err() != nil {
			return ctx.Err() // interrupted
		}
		r.violate(fmt.Sprintf("not NORMAL: %s after the heal: %v", time.Since(begun).Round(time.Second), err))
		return err
	}
	took := time.Since(begun)
	r.record.normal(r.load.loops, took, bound)
	if took > bound {
		r.violate(fmt.Sprintf("not NORMAL: within %s after the heal, but %s", bound, took.Round(time.Millisecond)))
	}
	if err := r.compare(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	r.truth.Settled()
	r.mu.Unlock()
	r.print("everything is NORMAL %s after the heal; %d violations", took.Round(time.Millisecond), r.violations())
	return nil
}

// normalBound is the longest time until everything is NORMAL after a heal: the start of a half, a flapping component's
// hold-offs, a digest from everybody, and the windows of the sensors. Load multiplies it.
func (r *runner) normalBound() time.Duration {
	bound := 30*time.Second + 4*r.periods.LinkHoldOff + 2*time.Duration(r.periods.DigestMisses)*r.periods.DigestPeriod
	return r.underLoad(bound)
}

// underLoad multiplies a time that already holds on a machine with other users.
func (r *runner) underLoad(d time.Duration) time.Duration {
	return d * time.Duration(Factor(r.load.loops)/Factor(0)*max(r.o.Patience, 1))
}

// settle waits until every component is as at the beginning and no group fault is left.
func (r *runner) settle(ctx context.Context) error {
	if err := r.lab.Settle(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(max(200*time.Millisecond, time.Duration(r.o.Dims.Nodes())*5*time.Millisecond))
	defer tick.Stop()
	for {
		left, err := r.left(ctx)
		if err == nil && len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s (%w)", strings.Join(left, ", "), errors.Join(err, ctx.Err()))
		case <-tick.C:
		}
	}
}

// left lists everything that is not settled.
func (r *runner) left(ctx context.Context) ([]string, error) {
	list, err := r.lab.Client.AllNodes(ctx, &lofamov1.ListNodesRequest{}, 0)
	if err != nil {
		return nil, err
	}
	groups, err := r.lab.Client.ListGroups(ctx, &lofamov1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	out := r.checker.Unsettled(list.GetNodes())
	r.mu.Unlock()
	for _, g := range groups.GetGroups() {
		out = append(out, "group fault "+g.GetId())
	}
	if leader := list.GetCluster().GetLeader(); leader != r.leader && leader != "" && !list.GetCluster().GetStale() {
		r.leader = leader
		r.record.Leaders++
		r.resources.LeaderChanged()
	}
	if list.GetCluster().GetStale() {
		out = append(out, "no leader")
	}
	return out, nil
}

// compare compares the watch with the lists and the history, and the acknowledged changes with the present ones.
func (r *runner) compare(ctx context.Context) error {
	deadline := time.Now().Add(watchBound)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		done, err := r.compareOnce(ctx)
		if done {
			break
		}
		late := time.Now().After(deadline)
		if late && err != nil {
			return err
		}
		if late {
			r.violate(fmt.Sprintf("watch: it does not reach the newest revision within %s", watchBound))
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	present, err := r.present(ctx)
	if err != nil {
		return err
	}
	r.violate(r.ledger.Compare(present)...)
	return nil
}

// compareOnce reports whether the watch, the list and the events were of one revision, and compares them then.
func (r *runner) compareOnce(ctx context.Context) (bool, error) {
	list, err := r.lab.Client.AllNodes(ctx, &lofamov1.ListNodesRequest{}, 0)
	if err != nil {
		return false, err
	}
	node := list.GetNodes()[r.rnd.IntN(len(list.GetNodes()))].GetId()
	history, err := r.lab.Client.GetHistory(ctx, &lofamov1.GetHistoryRequest{Node: node, Limit: 10000})
	if err != nil {
		return false, err
	}
	kept, err := r.lab.Client.AllEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: r.compared, Limit: 1000})
	if err != nil {
		return false, err
	}
	newest := r.compared
	for _, e := range kept.GetEvents() {
		newest = max(newest, e.GetRevision())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checker.Revision() != newest || list.GetRevision() < newest || history.GetRevision() < newest {
		return false, nil
	}
	r.violateLocked(r.checker.CompareKept(kept.GetEvents())...)
	r.violateLocked(r.checker.CompareList(list.GetNodes())...)
	r.violateLocked(r.checker.CompareHistory(node, history.GetEvents())...)
	r.checker.Forget()
	r.compared = newest
	return true, nil
}

// coordOf returns the name of a node in commands.
func coordOf(c grid.Coord) string { return fmt.Sprintf("%d,%d,%d", c.X, c.Y, c.Z) }

func (r *runner) finish(usages []Usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.Usages, r.record.Sick, r.record.Events = usages, r.checker.Sick, r.checker.Events
	r.record.Took, r.record.LoadAfter = time.Since(r.record.Began).Round(time.Second), machine.LoadAverages()
}

// Logs returns the paths of the cluster's logs below a trial's directory.
func Logs(dir string) []string {
	var out []string
	for _, pattern := range []string{"c/nodes/*/*.log", "c/supervisors/*/log"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // a constant pattern is valid
		out = append(out, found...)
	}
	return out
}

// TempDir makes a directory for a trial. Its name is short, because it becomes part of socket names.
func TempDir() (string, error) { return os.MkdirTemp("", "lofamo-trial-") }
