package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	agentdaemon "github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/campaign/account"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// patience is the timeout for a recovery, far above the promised times.
const patience = 2 * time.Minute

// binaries builds the programs with failpoints, once.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "lofamo-inject-bin-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "lofamo_failpoint", "-o", dir+"/", "../../../cmd/lofamo-agent",
		"../../../cmd/lofamo-supervisor")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs with failpoints: %w\n%s", err, b)
	}
	return dir, nil
})

var started bool // the programs were built

// field is a local cluster of real processes under report load, into which faults are injected.
type field struct {
	*lab.Lab
	t      *testing.T
	dir    string
	dims   grid.Dims
	nodes  []cluster.NodeInfo
	demand load
	watch  time.Duration // after a flip
	// other is a second handle of the same cluster, for the goroutines that generate load while daemons are started: a
	// Cluster is not safe for both.
	other *cluster.Cluster
	mu    sync.Mutex // guards the parts of the cluster that are not safe for concurrent use
	// loadStop ends the load, stop also the prober.
	loadStop, stop context.CancelFunc
	load, probers  sync.WaitGroup

	proberMu sync.Mutex
	vain     map[string][]look // by node: the failed looks of the prober
	pace     pace              // stalls of this process, and so of the prober
}

// newField starts a cluster of the programs with failpoints.
func newField(t *testing.T, dims string) *field {
	t.Helper()
	return newFieldOf(t, dims, programs(t), usualLoad)
}

// load is how nodes are made to report.
type load struct {
	sense time.Duration // period of the sensors
	every time.Duration // between two changes of a node's temperature
	nodes int           // the first of the cluster, whose temperatures change; 0: all
	// changes are the components that it gives other states.
	changes []string
}

// usualLoad keeps supervisors behind no report. Three clusters under test share two cores with their supervisors. With
// more reports than these, supervisors would commit fewer than arrive, and the log of a node, with 1,024 entries, would
// leave out reports that newer ones restate.
var usualLoad = load{sense: 100 * time.Millisecond, every: 330 * time.Millisecond, changes: []string{"temperature"}}

// programs returns the folder of the programs with failpoints.
func programs(t *testing.T) string {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	started = true
	return bin
}

// newFieldOf starts a cluster of the programs in a folder.
func newFieldOf(t *testing.T, dims, bin string, demand load) *field {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "lofamo-inject-") // t.TempDir is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	period := config.Duration(demand.sense)
	l, err := lab.Start(ctx, cluster.Options{
		Dir: filepath.Join(dir, "c"), Dims: d, Supervisors: 1, BinDir: bin, LogLevel: "debug", Restart: "always",
		Periods:    &config.PeriodsOverride{SensorPeriod: &period},
		Supervisor: func(c *config.Supervisor) { c.Log.Format = "json" },
		Agent: func(c *config.Agent) {
			c.Log.Format, c.CheckMemory = "json", true
			c.Recovery.Restarts, c.Recovery.Window = 100, config.Duration(time.Second) // the kills of a campaign must not count as a crash loop
			for i := range c.Sensors.Peripherals {
				c.Sensors.Peripherals[i] = sensor.PeripheralConfig{Kind: sensor.PeripheralNone} // its checks start processes
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &field{Lab: l, t: t, dir: dir, dims: d, nodes: slices.Clone(l.Cluster.Info().Nodes), vain: map[string][]look{},
		demand: demand, watch: watchFor}
	if f.other, err = cluster.Load(l.Cluster.Dir()); err != nil {
		t.Fatal(errors.Join(err, l.Close()))
	}
	run, stop := context.WithCancel(context.Background())
	f.stop = stop
	t.Cleanup(f.close)
	f.probers.Go(func() { f.pace.run(run) })
	for _, n := range f.nodes {
		f.probers.Go(func() { f.probe(run, n) })
	}
	f.startLoad()
	return f
}

// startLoad makes the nodes report, until settle or the end.
func (f *field) startLoad() {
	if f.loadStop != nil { // an earlier load may still run
		f.loadStop()
		f.load.Wait()
	}
	loaded, stop := context.WithCancel(context.Background())
	f.loadStop = stop
	nodes := f.nodes
	if f.demand.nodes > 0 {
		nodes = nodes[:f.demand.nodes]
	}
	for _, n := range nodes {
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

// report makes the node report by changing its temperature up and down.
func (f *field) report(ctx context.Context, n cluster.NodeInfo) {
	tick := time.NewTicker(f.demand.every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := f.other.Inject(ctx, string(n.ID), cluster.Fault{Kind: cluster.SensorValue, Sensor: "temperature",
			Value: []float64{45, 80}[i%2]}); err != nil && ctx.Err() == nil {
			f.t.Error(err)
			return
		}
	}
}

// record returns the daemon's record of a half.
func (f *field) record(n cluster.NodeInfo, h fault.Half) halfcore.RecoveryRecord {
	r, err := agentdaemon.ReadRecovery(n.StateDir, h)
	if err != nil || r == nil {
		return halfcore.RecoveryRecord{}
	}
	return r.Record
}

// arm arms a failpoint. The process may end before it has answered.
func (f *field) arm(n cluster.NodeInfo, w who, o failpoint.Order) error {
	err := f.ask(n, w, "POST", "/failpoint", o, nil)
	if ended(err) {
		return nil
	}
	return err
}

// ended reports whether an error of Control means that the process has ended meanwhile.
func ended(err error) bool { return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) }

// absent reports whether an error of Control means that no process listened.
func absent(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
}

// ask calls an injection socket. It retries, since a new process may not listen yet.
func (f *field) ask(n cluster.NodeInfo, w who, method, path string, in, out any) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := n.Control(f.t.Context(), w.socket(), method, path, in, out)
		if !absent(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// running waits until a half runs, and returns its record.
func (f *field) running(n cluster.NodeInfo, h fault.Half) (halfcore.RecoveryRecord, error) {
	return f.await(n, h, func(r halfcore.RecoveryRecord) bool { return r.State == halfcore.Running && r.PID != 0 })
}

func (f *field) await(n cluster.NodeInfo, h fault.Half, ok func(halfcore.RecoveryRecord) bool) (halfcore.RecoveryRecord, error) {
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

// daemonPID returns the pid of a node's daemon.
func (f *field) daemonPID(n cluster.NodeInfo) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := f.Cluster.Node(string(n.ID))
	if err != nil {
		f.t.Error(err)
	}
	return now.RunPID
}

// startDaemon replaces a killed daemon. Like systemd, it retries until the new one stays. The dead one's locks may last
// a moment longer than its process.
func (f *field) startDaemon(n cluster.NodeInfo) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		f.mu.Lock()
		err := f.Cluster.StartRun(string(n.ID)) // fails while one is running
		f.mu.Unlock()
		ask := n.Control(f.t.Context(), half.RunSocket, "GET", "/status", nil, nil)
		if ask == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(err, ask)
		}
	}
}

// answered waits until the daemon of a node answers and supervises a running half.
func (f *field) answered(n cluster.NodeInfo, h fault.Half) (halfcore.RecoveryRecord, error) {
	deadline := time.Now().Add(patience)
	for {
		var st map[string]struct {
			PID      int
			Running  bool
			Recovery halfcore.RecoveryRecord
		}
		err := n.Control(f.t.Context(), half.RunSocket, "GET", "/status", nil, &st)
		if x := st[h.String()]; err == nil && x.Running && x.Recovery.State == halfcore.Running {
			return x.Recovery, nil
		}
		if time.Now().After(deadline) {
			return halfcore.RecoveryRecord{}, errors.Join(fmt.Errorf("the daemon of %s does not look after its %s half", n.ID, h), err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settle ends the load, and waits until every node is NORMAL and every kept report is committed. It returns the numbers
// of kept and replaced reports, the lost ones and those accepted twice.
func (f *field) settle(t *testing.T) (kept, replaced int, lost, doubled []string) {
	t.Helper()
	return f.settleWithin(t, patience)
}

// settleWithin is settle with a bound for the wait for the last commits.
func (f *field) settleWithin(t *testing.T, bound time.Duration) (kept, replaced int, lost, doubled []string) {
	t.Helper()
	f.loadStop()
	f.load.Wait()
	for _, n := range f.nodes {
		if _, err := f.other.Inject(f.t.Context(), string(n.ID),
			cluster.Fault{Kind: cluster.SensorValue, Sensor: "temperature", Value: 45}); err != nil {
			t.Error(err)
		}
	}
	for len(f.Cluster.Exited()) > 0 {
		<-f.Cluster.Exited() // the daemons that the test has killed
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := f.Settle(ctx); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(bound); ; time.Sleep(200 * time.Millisecond) {
		all := map[string]account.Fate{}
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
		lost, doubled, replaced = account.Balance(all, audit.Accepted())
		if len(lost) == 0 || time.Now().After(deadline) {
			return len(all), replaced, lost, doubled
		}
	}
}
