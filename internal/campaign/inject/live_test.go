package inject

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent"
	"github.com/lofamo/lofamo/internal/agent/recovery"
	"github.com/lofamo/lofamo/internal/agent/status"
	"github.com/lofamo/lofamo/internal/campaign/account"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/lab"
	"github.com/lofamo/lofamo/internal/localcluster"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// patience bounds every wait for a recovery: far above what is promised.
const patience = 30 * time.Second

// binaries builds the programs with failpoints, once.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lofamo-inject-bin-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "lofamo_failpoint", "-o", dir+"/", "../../../cmd/lofamo-agent", "../../../cmd/supervisor")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs with failpoints: %w\n%s", err, b)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	c := conditions{began: time.Now(), load: loadavg()}
	code := m.Run()
	if c.failed = code != 0; *out != "" {
		if err := c.write(*out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if started {
		dir, _ := binaries()
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

var started bool // the programs were built

// field is a local cluster of real processes under report load, into which faults are injected.
type field struct {
	*lab.Lab
	t     *testing.T
	dir   string
	nodes []localcluster.NodeInfo
	// other is the same cluster, for who puts load on it while daemons are started: a Cluster is not for both.
	other *localcluster.Cluster
	mu    sync.Mutex // for what of the cluster is not for several goroutines
	// loadStop ends the load, stop the prober as well.
	loadStop, stop context.CancelFunc
	load, probers  sync.WaitGroup

	proberMu sync.Mutex
	unwell   map[string][]int64 // by node: when the prober found it so, localcluster.Monotonic
}

// newField starts a cluster of the programs with failpoints.
func newField(t *testing.T, dims string) *field {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	started = true
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "lofamo-inject-") // t.TempDir is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	period := config.Duration(100 * time.Millisecond)
	l, err := lab.Start(ctx, localcluster.Options{
		Dir: filepath.Join(dir, "c"), Dims: d, Supervisors: 1, BinDir: bin, LogLevel: "debug", Restart: "always",
		Periods:    &config.PeriodsOverride{SensorPeriod: &period},
		Supervisor: func(c *config.Supervisor) { c.Log.Format = "json" },
		Agent: func(c *config.Agent) {
			c.Log.Format = "json"
			c.Recovery.Restarts, c.Recovery.Window = 100, config.Duration(time.Second) // a campaign is no crash loop
			for i := range c.Sensors.Peripherals {
				c.Sensors.Peripherals[i] = sensor.PeripheralConfig{Kind: sensor.PeripheralNone} // its checks start processes
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &field{Lab: l, t: t, dir: dir, nodes: slices.Clone(l.Cluster.Info().Nodes), unwell: map[string][]int64{}}
	if f.other, err = localcluster.Load(l.Cluster.Dir()); err != nil {
		t.Fatal(errors.Join(err, l.Close()))
	}
	run, stop := context.WithCancel(context.Background())
	f.stop = stop
	t.Cleanup(f.close)
	for _, n := range f.nodes {
		f.probers.Go(func() { f.probe(run, n) })
	}
	f.startLoad()
	return f
}

// startLoad has the nodes report, until settle or the end.
func (f *field) startLoad() {
	if f.loadStop != nil { // it may be there still
		f.loadStop()
		f.load.Wait()
	}
	loaded, stop := context.WithCancel(context.Background())
	f.loadStop = stop
	for _, n := range f.nodes {
		f.load.Go(func() { f.report(loaded, n) })
	}
}

func (f *field) close() {
	f.stop()
	f.loadStop()
	f.load.Wait()
	f.probers.Wait()
	if err := f.Close(); err != nil {
		f.t.Error(err)
	}
	if f.t.Failed() {
		f.t.Logf("the cluster's directory with its logs is kept: %s", f.dir)
		return
	}
	if err := os.RemoveAll(f.dir); err != nil {
		f.t.Error(err)
	}
}

// report has the node report: its temperature goes up and down.
func (f *field) report(ctx context.Context, n localcluster.NodeInfo) {
	tick := time.NewTicker(110 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := f.other.Inject(ctx, string(n.ID), localcluster.Fault{Kind: localcluster.SensorValue, Sensor: "temperature", Value: []float64{45, 80}[i%2]}); err != nil && ctx.Err() == nil {
			f.t.Error(err)
			return
		}
	}
}

// probe is the application-level prober of a node: it asks the status socket, as `lofamo-agent status` does. What the map
// says is looked up afterwards (noticed).
func (f *field) probe(ctx context.Context, n localcluster.NodeInfo) {
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		at := localcluster.Monotonic()
		bound, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
		_, err := status.Ask(bound, n.StateDir)
		cancel()
		if err != nil && ctx.Err() == nil {
			f.proberMu.Lock()
			f.unwell[string(n.ID)] = append(f.unwell[string(n.ID)], at)
			f.proberMu.Unlock()
		}
	}
}

// noticed says whether the prober found the node unwell between two times: its host half did not answer, or the map called
// one of its halves or of its links something else than NORMAL.
func (f *field) noticed(n localcluster.NodeInfo, mark int, from, to int64) bool {
	f.proberMu.Lock()
	for _, at := range f.unwell[string(n.ID)] {
		if at >= from && at <= to {
			f.proberMu.Unlock()
			return true
		}
	}
	f.proberMu.Unlock()
	for _, s := range f.Since(mark) {
		c := s.GetComponent()
		half := c == "host" || c == "dnp" || c == "dnp-core" || c == "node" && s.GetTo() == lofamov1.State_FAILED
		if s.GetNode() == string(n.ID) && half && s.GetTo() != lofamov1.State_NORMAL && s.At <= to {
			return true
		}
	}
	return false
}

// record is what the daemon says of a half.
func (f *field) record(n localcluster.NodeInfo, h fault.Half) recovery.Record {
	r, err := agent.ReadRecovery(n.StateDir, h)
	if err != nil || r == nil {
		return recovery.Record{}
	}
	return r.Record
}

// harm is a way to make a process of a node hang or end.
type harm struct {
	name   string
	hang   bool
	signal syscall.Signal   // sent; 0: by failpoint
	action failpoint.Action // at point
}

var harms = []harm{
	{name: "SIGSTOP", hang: true, signal: syscall.SIGSTOP},
	{name: "deadlock", hang: true, action: failpoint.Hang},
	{name: "spin", hang: true, action: failpoint.Spin},
	{name: "SIGKILL", signal: syscall.SIGKILL},
	{name: "panic", action: failpoint.Panic},
	{name: "exit", action: failpoint.Exit},
}

// often is a point that a half comes by many times a second.
func often(h fault.Half) failpoint.Point {
	if h == fault.HalfHost {
		return failpoint.HostSend
	}
	return failpoint.LinkSend
}

// do harms a half and returns when.
func (f *field) do(n localcluster.NodeInfo, h fault.Half, x harm, pid int) (int64, error) {
	at := localcluster.Monotonic()
	if x.signal != 0 {
		return at, syscall.Kill(pid, x.signal)
	}
	return at, f.arm(n, whoOf(h), failpoint.Order{Point: often(h), Action: x.action.String()})
}

// arm arms a failpoint. The process may end before it has answered.
func (f *field) arm(n localcluster.NodeInfo, w who, o failpoint.Order) error {
	err := f.ask(n, w, "POST", "/failpoint", o, nil)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// ask asks an injection socket; one of a process that has just been started is not there yet.
func (f *field) ask(n localcluster.NodeInfo, w who, method, path string, in, out any) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := n.Control(f.t.Context(), w.socket(), method, path, in, out)
		absent := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
		if !absent || time.Now().After(deadline) {
			return err
		}
	}
}

// hurt harms a half and watches what becomes of it.
func (f *field) hurt(n localcluster.NodeInfo, h fault.Half, x harm) (sample, recovery.Recovery, error) {
	s := sample{node: n, what: fmt.Sprintf("%s of the %s half of %s", x.name, h, n.ID), applied: true, touched: true, harmed: true, category: catCrash}
	if x.hang {
		s.category = catHang
	}
	before, err := f.running(n, h)
	if err != nil {
		return s, recovery.Recovery{}, fmt.Errorf("before %s: %w", s.what, err)
	}
	mark := f.Mark()
	at, err := f.do(n, h, x, before.PID)
	if err != nil {
		return s, recovery.Recovery{}, fmt.Errorf("%s: %w", s.what, err)
	}
	after, err := f.await(n, h, func(r recovery.Record) bool {
		return r.Total > before.Total && r.State == recovery.Running && r.PID != before.PID && r.Last != nil && r.Last.Serving > 0
	})
	end := localcluster.Monotonic()
	s.prober = f.noticed(n, mark, at, end)
	if err != nil {
		s.what += ": " + err.Error()
		return s, recovery.Recovery{}, nil //nolint:nilerr // the sample says so: it is not healed
	}
	l := *after.Last
	s.healed, s.detect, s.recover = true, time.Duration(l.At-at), time.Duration(l.At-at)+l.Serving
	s.ours = byExit
	if l.Cause.Kind == recovery.Hung {
		s.ours = byWatchdog
	}
	if x.hang && s.ours != byWatchdog {
		s.what += ", found as " + l.Cause.String()
	}
	return s, l, nil
}

// running waits until a half runs well, and returns what is said of it.
func (f *field) running(n localcluster.NodeInfo, h fault.Half) (recovery.Record, error) {
	return f.await(n, h, func(r recovery.Record) bool { return r.State == recovery.Running && r.PID != 0 })
}

func (f *field) await(n localcluster.NodeInfo, h fault.Half, ok func(recovery.Record) bool) (recovery.Record, error) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		r := f.record(n, h)
		if ok(r) {
			return r, nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			b, _ := json.Marshal(r)
			return r, fmt.Errorf("the %s half of %s is not back after %s: %s", h, n.ID, patience, b)
		}
	}
}

// daemonPID returns the process of a node's daemon.
func (f *field) daemonPID(n localcluster.NodeInfo) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.Cluster.Node(string(n.ID))
	if err != nil {
		f.t.Error(err)
	}
	return now.RunPID
}

// hurtDaemon kills or stops the daemon of a node, and has a new one or the same go on: its halves must not notice.
func (f *field) hurtDaemon(n localcluster.NodeInfo, hang bool, gap time.Duration) (sample, error) {
	s := sample{what: fmt.Sprintf("SIGKILL of the daemon of %s", n.ID), applied: true, touched: true, category: catCrash}
	halves := []fault.Half{fault.HalfHost, fault.HalfDNP}
	var before [2]recovery.Record
	for i, h := range halves {
		var err error
		if before[i], err = f.running(n, h); err != nil {
			return s, err
		}
	}
	pid, at := f.daemonPID(n), localcluster.Monotonic()
	if hang {
		s.what, s.category = fmt.Sprintf("SIGSTOP of the daemon of %s for %s", n.ID, gap), catHang
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return s, err
		}
		time.Sleep(gap)
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return s, err
		}
	} else {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return s, err
		}
		time.Sleep(gap)
		if err := f.startDaemon(n); err != nil {
			return s, err
		}
	}
	for i, h := range halves {
		r, err := f.answered(n, h)
		if err != nil {
			return s, err
		}
		if r.PID != before[i].PID || r.Total != before[i].Total {
			s.prober = true // a half was restarted for nothing
			s.what += fmt.Sprintf(": the %s half was process %d, is %d", h, before[i].PID, r.PID)
		}
	}
	s.healed, s.recover = true, time.Duration(localcluster.Monotonic()-at)
	return s, nil
}

// startDaemon starts a daemon in the place of one that was killed, as systemd would: again, until it stays. The dead
// one's locks may be there for a moment longer than its process.
func (f *field) startDaemon(n localcluster.NodeInfo) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		f.mu.Lock()
		err := f.Cluster.StartRun(string(n.ID)) // refuses while one runs
		f.mu.Unlock()
		ask := n.Control(f.t.Context(), agent.RunSocket, "GET", "/status", nil, nil)
		if ask == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(err, ask)
		}
	}
}

// answered waits until the daemon of a node answers, and looks after a half that runs.
func (f *field) answered(n localcluster.NodeInfo, h fault.Half) (recovery.Record, error) {
	deadline := time.Now().Add(patience)
	for {
		var st map[string]struct {
			PID      int
			Running  bool
			Recovery recovery.Record
		}
		err := n.Control(f.t.Context(), agent.RunSocket, "GET", "/status", nil, &st)
		if x := st[h.String()]; err == nil && x.Running && x.Recovery.State == recovery.Running {
			return x.Recovery, nil
		}
		if time.Now().After(deadline) {
			return recovery.Record{}, errors.Join(fmt.Errorf("the daemon of %s does not look after its %s half", n.ID, h), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settle ends the load, and waits until every node is NORMAL and every report that was kept is committed. It returns
// how many were kept, lost and accepted twice.
func (f *field) settle(t *testing.T) (kept int, lost, doubled []string) {
	t.Helper()
	f.loadStop()
	f.load.Wait()
	for _, n := range f.nodes {
		if _, err := f.other.Inject(f.t.Context(), string(n.ID), localcluster.Fault{Kind: localcluster.SensorValue, Sensor: "temperature", Value: 45}); err != nil {
			t.Error(err)
		}
	}
	for len(f.Cluster.Exited()) > 0 {
		<-f.Cluster.Exited() // the daemons that we killed
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := f.Settle(ctx); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		all := map[string]bool{}
		audit := account.NewAudit()
		for _, n := range f.nodes {
			for _, h := range []string{"host", "dnp"} {
				if err := account.ReadKept(f.Cluster.Log(n, h), all); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, s := range f.Cluster.Info().Supervisors {
			if err := audit.Read(f.Cluster.SupervisorLog(s.ID)); err != nil {
				t.Fatal(err)
			}
		}
		lost, doubled = account.Balance(all, audit.Accepted())
		if len(lost) == 0 || time.Now().After(deadline) {
			return len(all), lost, doubled
		}
	}
}

// results gathers samples from several goroutines.
type results struct {
	mu        sync.Mutex
	classes   map[string]*class
	courses   []course
	bad       []string
	remaining map[string]int
	until     time.Time // zero: until there is enough
}

// course is one recovery's timeline.
type course struct {
	x      harm
	detect time.Duration
	recovery.Recovery
}

func newResults() *results {
	return &results{classes: map[string]*class{}, remaining: map[string]int{}}
}

// want sets how many samples of a class are wanted.
func (r *results) want(name string, n int) {
	r.classes[name], r.remaining[name] = newClass(name, *seed), n
}

// take says which class to try next, at random among those that want more; empty: enough.
func (r *results) take(x *rand.Rand) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.until.IsZero() && time.Now().After(r.until) {
		return ""
	}
	var open []string
	for name, n := range r.remaining {
		if n > 0 {
			open = append(open, name)
		}
	}
	if len(open) == 0 {
		return ""
	}
	slices.Sort(open)
	name := open[x.IntN(len(open))]
	r.remaining[name]--
	return name
}

func (r *results) add(name string, s sample, c *course, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.bad = append(r.bad, err.Error())
		return
	}
	r.classes[name].add(s)
	if c != nil {
		r.courses = append(r.courses, *c)
	}
}

const (
	hangs   = "processes: hangs"
	crashes = "processes: crashes"
	daemons = "processes: the daemon"
)

// rage harms halves and daemons of a node at random moments, one at a time, until there is enough.
func (f *field) rage(n localcluster.NodeInfo, r *results, x *rand.Rand) {
	for {
		time.Sleep(time.Duration(x.Int64N(int64(300 * time.Millisecond))))
		name := r.take(x)
		switch name {
		case "":
			return
		case daemons:
			s, err := f.hurtDaemon(n, x.IntN(2) == 0, time.Duration(x.Int64N(int64(800*time.Millisecond))))
			r.add(name, s, nil, err)
			continue
		}
		kinds := slices.DeleteFunc(slices.Clone(harms), func(h harm) bool { return h.hang != (name == hangs) })
		k := kinds[max(0, x.IntN(len(kinds)+1)-1)] // signals twice as often
		half := []fault.Half{fault.HalfHost, fault.HalfDNP}[x.IntN(2)]
		s, l, err := f.hurt(n, half, k)
		r.add(name, s, &course{k, s.detect, l}, err)
	}
}

// rageAll does so on all nodes of some clusters at once.
func rageAll(fields []*field, r *results) {
	var all sync.WaitGroup
	for i, f := range fields {
		for j, n := range f.nodes {
			all.Go(func() { f.rage(n, r, rand.New(rand.NewPCG(*seed, uint64(i*100+j)))) })
		}
	}
	all.Wait()
}

// TestProcesses harms real halves and their daemons under report load: every hang and crash is found and recovered
// from, and every report arrives once. Every step of theirs goes wrong in every way it can, and bits flip in what lives in
// them.
func TestProcesses(t *testing.T) {
	clusters, hung, crashed, daemon := 1, 32, 32, 12
	if *full {
		clusters, hung, crashed, daemon = 3, 3000, 3000, 300
	}
	at := time.Now()
	var fields []*field
	for range clusters {
		fields = append(fields, newField(t, "2x2x1"))
	}
	t.Logf("%d clusters started after %s", clusters, time.Since(at))
	t.Run("recovery-timeline", func(t *testing.T) { timeline(t, fields[0]) })
	r := newResults()
	t.Run("hangs-and-crashes", func(t *testing.T) {
		if *rageFor > 0 {
			r.until, hung, crashed, daemon = time.Now().Add(*rageFor), math.MaxInt, math.MaxInt, math.MaxInt
		}
		r.want(hangs, hung)
		r.want(crashes, crashed)
		r.want(daemons, daemon)
		begin := time.Now()
		rageAll(fields, r)
		for _, s := range r.bad {
			t.Error(s)
		}
		for _, name := range []string{hangs, crashes, daemons} {
			r.classes[name].took = time.Since(begin)
			finish(t, r.classes[name])
		}
	})
	t.Run("failpoints", func(t *testing.T) { failpoints(t, fields) })
	t.Run("reports", func(t *testing.T) { accounts(t, fields) })
	t.Run("live-data", func(t *testing.T) { liveData(t, fields) })
}

// accounts ends the load, and accounts for every report.
func accounts(t *testing.T, fields []*field) {
	for _, f := range fields {
		kept, lost, doubled := f.settle(t)
		done.kept += kept
		done.lost += len(lost)
		done.doubled += len(doubled)
		if wrong := slices.Concat(lost, doubled); len(wrong) > 0 {
			t.Errorf("of %d reports %d were lost and %d doubled: %s", kept, len(lost), len(doubled), strings.Join(wrong[:min(10, len(wrong))], " "))
		}
	}
	t.Logf("%d reports were kept, %d lost, %d doubled", done.kept, done.lost, done.doubled)
	if done.kept < 50 {
		t.Errorf("%d reports are no load", done.kept)
	}
}

// timeline takes the course of recoveries one after the other, nothing else going on: what a recovery takes, and not what
// a machine takes for a dozen at a time.
func timeline(t *testing.T, f *field) {
	n := 4
	if *full {
		n = 200
	}
	r := rand.New(rand.NewPCG(*seed, 5))
	nodes := f.nodes
	for i := range n {
		x := harms[0]
		if i%2 == 1 {
			x = harms[3]
		}
		half := []fault.Half{fault.HalfHost, fault.HalfDNP}[i/2%2]
		time.Sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
		s, l, err := f.hurt(nodes[r.IntN(len(nodes))], half, x)
		if err != nil || !s.healed {
			t.Errorf("%s: %v", s.what, err)
			continue
		}
		proven, err := f.await(s.node, half, func(r recovery.Record) bool { return r.Last != nil && r.Last.At >= l.At && r.Last.Proven > 0 })
		if err != nil {
			t.Errorf("%s: its self-test has not passed: %v", s.what, err)
			continue
		}
		done.courses = append(done.courses, course{x, s.detect, *proven.Last})
	}
}

// report fails a test for what was missed or is still wrong.
func report(t *testing.T, c *class) {
	t.Helper()
	const most = 15
	for i, s := range c.missed {
		if c.apart {
			t.Logf("missed: %s", s)
		} else if i < most {
			t.Errorf("missed: %s", s)
		}
	}
	for i, s := range c.unhealed {
		if i < most {
			t.Errorf("not healed: %s", s)
		}
	}
}
