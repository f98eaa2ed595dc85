package ctl

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"
)

// TestMain lets the test program play the agent and the supervisor, under their names: the agent does nothing; the
// supervisor reports every node NORMAL, or the first one SICK if there is a file "unwell" beside its configuration.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	code := 0
	switch filepath.Base(os.Args[0]) {
	case "lofamo-agent":
		<-ctx.Done()
	case "supervisor":
		if err := pretendSupervisor(ctx, os.Args[3]); err != nil {
			fmt.Println(err)
			code = 1
		}
	default:
		stop()
		code = m.Run()
	}
	os.Exit(code)
}

func pretendSupervisor(ctx context.Context, file string) error {
	cfg, err := config.LoadSupervisor(file, nil)
	if err != nil {
		return err
	}
	if cfg.Dims == "5x1x1" { // the size that never comes up
		return fmt.Errorf("no room for %s on this disk", cfg.Dims)
	}
	d, _, err := cfg.Topology()
	if err != nil {
		return err
	}
	tls, err := pki.ServerTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, nil)
	if err != nil {
		return err
	}
	m := ctltest.HealthyMap(d)
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "unwell")); err == nil {
		n := m.Nodes.Nodes[0]
		n.State, n.Cause = lofamov1.State_SICK, lofamov1.Cause_SENSOR
		n.Components[4].State = lofamov1.State_SICK
	}
	members := &lofamov1.ListMembersResponse{Members: []*lofamov1.Member{{Id: "a0", Name: "sup-0"}, {Id: "a1", Name: "sup-1"}}}
	s, err := clienttest.Start(tls, cfg.GRPC, m, func(s *clienttest.Server) { s.Admin.Members = members })
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.Stop()
	return nil
}

// pretend returns a directory with pretended programs, and one for a cluster.
func pretend(t *testing.T) (bin, dir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("", "lofamo") // t.TempDir is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	bin, dir = filepath.Join(root, "bin"), filepath.Join(root, "c")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lofamo-agent", "supervisor"} {
		if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if c, err := cluster.Load(dir); err == nil {
			_ = c.Stop(context.Background())
		}
	})
	return bin, dir
}

func TestUpDownAndUpAgain(t *testing.T) {
	bin, dir := pretend(t)
	env := map[string]string{"LOFAMO_DIR": dir}
	up := func(args ...string) result {
		return run(t, env, append([]string{"up", "--detach", "--bin-dir", bin}, args...)...)
	}
	got := up("--dims", "2x2", "--supervisors", "1")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		"made a 2x2x1 cluster", "1 supervisor, preset default", "sup-1 leads", "agents: 4 of 4", "nodes: 4 of 4 NORMAL", "all 4 nodes are NORMAL",
		"210ms after the death of one half", "175ms after the death of a whole node", "lofamoctl inject 0,1,0 kill-host",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("up says %q, not %q", got.stdout, want)
		}
	}
	if got := run(t, env, "get", "node", "1,1", "-o", "json"); got.code != 2 { // the fake knows 1,1,0 only
		t.Errorf("%+v", got)
	}
	if got := run(t, env, "get", "nodes"); got.code != 0 || !strings.Contains(got.stdout, "n1-1-0") {
		t.Errorf("get nodes of the local cluster: %+v", got)
	}
	if got := up(); got.code != 1 || !strings.Contains(got.stderr, "is running already") {
		t.Errorf("up of a running cluster: %+v", got)
	}
	if got := up("--force-new"); got.code != 1 || !strings.Contains(got.stderr, "one is running there") {
		t.Errorf("up --force-new of a running cluster: %+v", got)
	}
	if got := run(t, env, "down"); got.code != 0 || !strings.Contains(got.stdout, "stopped the cluster") {
		t.Errorf("down: %+v", got)
	}
	if got := run(t, env, "down"); got.code != 0 || !strings.Contains(got.stdout, "was stopped already") {
		t.Errorf("down again: %+v", got)
	}
	if got := run(t, env, "get", "nodes"); got.code != 1 || !strings.Contains(got.stderr, "is stopped: `lofamoctl up --dir "+dir) {
		t.Errorf("get nodes of a stopped cluster: %+v", got)
	}
	if got := run(t, env, "inject", "0,0,0", "kill-host"); got.code != 1 || !strings.Contains(got.stderr, "not running") {
		t.Errorf("inject into a stopped cluster: %+v", got)
	}
	for _, args := range [][]string{{"--dims", "3x3"}, {"--supervisors", "3"}, {"--service-interfaces", "2"}, {"--spares", "1"},
		{"--restart", "always"}, {"--preset", "fast"}, {"--log-level", "debug"}} {
		if got := up(args...); got.code != 1 || !strings.Contains(got.stderr, args[0][2:]) || !strings.Contains(got.stderr, "--force-new") {
			t.Errorf("up %v of a stopped cluster: %+v", args, got)
		}
	}
	if got := up(); got.code != 0 || !strings.Contains(got.stdout, "starting the 2x2x1 cluster in "+dir+" again") {
		t.Errorf("up again: %+v", got)
	}
	if got := run(t, env, "down", "--purge"); got.code != 0 || !strings.Contains(got.stdout, "stopped and removed") {
		t.Errorf("down --purge: %+v", got)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

// TestUpAgainWithFaults: a cluster that was stopped with a fault in a sensor has that fault again after a start, which
// must not prevent the start. A new cluster must have no faults.
func TestUpAgainWithFaults(t *testing.T) {
	bin, dir := pretend(t)
	up := func(args ...string) result {
		return run(t, nil, append([]string{"up", "--detach", "--bin-dir", bin, "--dir", dir}, args...)...)
	}
	if got := up("--dims", "2", "--supervisors", "1"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := run(t, nil, "down", "--dir", dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "supervisors", "sup-0", "unwell"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	got := up()
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{"all 2 nodes report, and 1 of them are NORMAL", "  n0-0-0 is SICK (SENSOR) [temperature SICK]\n",
		"inject all heal"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("up says %q, not %q", got.stdout, want)
		}
	}
}

// TestUpLeavesClusterOfAnotherUpRunning: of two commands that start the same stopped cluster, one fails. It ends no process of the other.
func TestUpLeavesClusterOfAnotherUpRunning(t *testing.T) {
	bin, dir := pretend(t)
	up := []string{"up", "--detach", "--bin-dir", bin, "--dir", dir}
	if got := run(t, nil, append(up, "--dims", "2", "--supervisors", "1")...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := run(t, nil, "down", "--dir", dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	// The other command holds the directory while it starts the cluster.
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	second := make(chan result, 1)
	go func() { second <- run(t, nil, up...) }()
	var got result
	select {
	case got = <-second:
	case <-time.After(2 * time.Second): // it waits for the directory, to stop the cluster
	}
	c, err := cluster.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	first := exec.Command(filepath.Join(bin, "supervisor"), "run", "--config", filepath.Join(dir, "supervisors", "sup-0", "supervisor.yaml"))
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = first.Process.Kill(), first.Wait() })
	<-deadline.When(t, func() bool { return len(c.Running()) == 1 }).Done() // a process has no arguments yet when Start returns
	_ = lock.Close()
	if got == (result{}) {
		got = <-second
	}
	if got.code != 1 || !strings.Contains(got.stderr, "the cluster is in use") || strings.Contains(got.stderr, "everything is stopped") {
		t.Errorf("%+v", got)
	}
	if len(c.Running()) != 1 {
		t.Error("the second up has stopped the cluster of the first")
	}
}

func TestUpThatFailsCleansUp(t *testing.T) {
	bin, dir := pretend(t)
	env := map[string]string{"LOFAMO_DIR": dir, "LOFAMO_BIN_DIR": bin}
	t.Setenv("LOFAMO_BIN_DIR", bin)
	got := run(t, env, "up", "--dims", "5", "--supervisors", "1")
	if got.code != 1 {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{"supervisor sup-0", "no room for 5x1x1 on this disk", "everything is stopped again", dir} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("stderr %q does not say %q", got.stderr, want)
		}
	}
	// The leftovers do not disturb a new start.
	if got := run(t, env, "up", "--dims", "2", "--supervisors", "1", "--detach"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// syncBuffer is a buffer to read while another goroutine writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestForegroundUpEndsWithCtrlC(t *testing.T) {
	bin, dir := pretend(t)
	var out, errOut syncBuffer
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	done := make(chan int, 1)
	go func() {
		done <- Run(ctx, []string{"up", "--dims", "2", "--supervisors", "1", "--dir", dir, "--bin-dir", bin}, command.Env{
			Stdout: &out, Stderr: &errOut, Terminal: true, Getenv: func(string) string { return "" }, Now: time.Now, Location: time.UTC,
		})
	}()
	for end := time.Now().Add(time.Minute); !strings.Contains(out.String(), "Ctrl-C stops"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not up: %s %s", &out, &errOut)
		}
	}
	c, err := cluster.Load(dir)
	if err != nil || len(c.Running()) != 3 {
		t.Fatalf("running: %v, %v", c.Running(), err)
	}
	interrupt()
	if code := <-done; code != 0 {
		t.Fatalf("exit code %d: %s", code, &errOut)
	}
	if running := c.Running(); len(running) > 0 {
		t.Errorf("still running: %v", running)
	}
	if !strings.Contains(out.String(), "\r\x1b[Knodes: 2 of 2 NORMAL") || !strings.Contains(out.String(), "--dir "+dir) {
		t.Errorf("said %q", &out)
	}
}

func TestForegroundUpNoticesADownElsewhere(t *testing.T) {
	bin, dir := pretend(t)
	var out syncBuffer
	done := make(chan int, 1)
	go func() {
		done <- Run(context.Background(), []string{"up", "--dims", "2", "--supervisors", "1", "--dir", dir, "--bin-dir", bin}, command.Env{
			Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, Now: time.Now, Location: time.UTC,
		})
	}()
	for end := time.Now().Add(time.Minute); !strings.Contains(out.String(), "Ctrl-C stops"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not up: %s", &out)
		}
	}
	if got := run(t, nil, "down", "--dir", dir); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	select {
	case code := <-done:
		if code != 0 || !strings.Contains(out.String(), "the cluster was stopped") {
			t.Errorf("exit code %d: %s", code, &out)
		}
	case <-time.After(time.Minute):
		t.Fatal("the foreground up did not notice")
	}
}

func TestRegsReadsTheRegisterFile(t *testing.T) {
	_, dir := pretend(t)
	d, err := grid.ParseDims("2x2x2")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Create(cluster.Options{Dir: dir, Dims: d, Supervisors: 1})
	if err != nil {
		t.Fatal(err)
	}
	n, err := c.Node("1,0,1")
	if err != nil {
		t.Fatal(err)
	}
	f, err := regfile.Open(c.RegisterFile(n), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	w := watchdog.DNPWord{Valid: true}
	w.NeighbourHostFailed[grid.XPlus.Index()] = true
	w.Links[grid.ZMinus.Index()] = watchdog.HealthBroken
	if err := f.StoreDNP(w); err != nil {
		t.Fatal(err)
	}
	if err := f.Store(watchdog.AddrTemperature, uint32(watchdog.EncodeCelsius(45))); err != nil {
		t.Fatal(err)
	}
	got := run(t, nil, "regs", "1,0,1", "--dir", dir)
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		"Registers of node n1-0-1, in ", "0x00000ec0  0x00010041  DNP local/global watchdog", "0x00000ec4  0x00000000",
		"bits 15-16  Link Z-            2  broken", "0x00000f40  0x000000ad  Temperature", "45 °C",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("regs says\n%s\nnot %q", got.stdout, want)
		}
	}
	if got := run(t, nil, "regs", "n1-0-1", "--dir", dir, "-o", "json"); got.code != 0 ||
		!strings.Contains(got.stdout, `"value": "0x00010041"`) {
		t.Errorf("%+v", got)
	}
	if got := run(t, nil, "regs", "0,0,0", "--dir", dir); got.code != 1 || !strings.Contains(got.stderr, "registers of node n0-0-0") {
		t.Errorf("registers of a node that never ran: %+v", got)
	}
	if got := run(t, nil, "regs", "5,5,5", "--dir", dir); got.code != 2 || !strings.Contains(got.stderr, "outside the 2x2x2 torus") {
		t.Errorf("registers of no node: %+v", got)
	}
}

// TestSupervisorRemovedByIDIsForgotten: in a local cluster, the id of a member stands for its name.
func TestSupervisorRemovedByIDIsForgotten(t *testing.T) {
	bin, dir := pretend(t)
	env := map[string]string{"LOFAMO_DIR": dir}
	if got := run(t, env, "up", "--detach", "--bin-dir", bin, "--dims", "2x1", "--supervisors", "3"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	got := run(t, env, "supervisor", "remove", "a1")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "sup-1 is out: ") {
		t.Fatalf("%+v", got)
	}
	c, err := cluster.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Supervisor("sup-1"); err == nil || len(c.Info().Supervisors) != 2 {
		t.Errorf("%v: supervisors of the cluster's file: %v", err, c.Info().Supervisors)
	}
	if _, err := os.Stat(filepath.Join(dir, "supervisors", "sup-1")); !os.IsNotExist(err) {
		t.Errorf("its files: %v", err)
	}
}

// TestHealAllCountsNodesWithHalves: nodes that have left and waiting spares are not healed, and nodes that joined are.
func TestHealAllCountsNodesWithHalves(t *testing.T) {
	dir := t.TempDir()
	left := `{"version": 1, "dims": "2", "supervisors": [{"id": "sup-0"}], "nodes": [{"id": "n0-0-0", "coord": "0,0,0", "left": true},
		{"id": "n1-0-0", "coord": "1,0,0", "left": true}], "spares": [{"id": "spare-0"}]}`
	if err := os.WriteFile(filepath.Join(dir, "cluster.json"), []byte(left), 0o600); err != nil {
		t.Fatal(err)
	}
	got := run(t, nil, "inject", "all", "heal", "--dir", dir)
	if got.code != 0 || got.stdout != "all 0 nodes: everything injected is undone\n" {
		t.Errorf("%+v", got)
	}
}
