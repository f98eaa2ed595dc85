package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// fakeRun plays the role of `lofamo-agent run` and of the halves' sockets of one node: the test is the parent, and two
// sleeping processes are the halves.
type fakeRun struct {
	t      *testing.T
	mu     sync.Mutex
	halves map[fault.Half]*exec.Cmd
	posts  []string // "socket path body"
}

func startFakeRun(t *testing.T, c *Cluster, i int) *fakeRun {
	t.Helper()
	f := &fakeRun{t: t, halves: map[fault.Half]*exec.Cmd{}}
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	n := c.info.at(i)
	n.RunPID, n.Started = self.pid, self.started
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := f.start(h); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, cmd := range f.halves {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	for _, sock := range []string{"run.sock", "host.inject.sock", "dnp.inject.sock"} {
		l, err := net.Listen("unix", filepath.Join(n.StateDir, sock))
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(sock, w, r) })}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { _ = srv.Close() })
	}
	return f
}

func (f *fakeRun) start(h fault.Half) error {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		return err
	}
	f.halves[h] = cmd
	return nil
}

func (f *fakeRun) status(h fault.Half) HalfStatus {
	pid := f.halves[h].Process.Pid
	st, err := readStat(pid)
	return HalfStatus{PID: pid, Running: err == nil && st.state != 'Z'}
}

func (f *fakeRun) serve(sock string, w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.URL.Path == "/status" {
		_ = json.NewEncoder(w).Encode(NodeStatus{Host: f.status(fault.HalfHost), DNP: f.status(fault.HalfDNP)})
		return
	}
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.posts = append(f.posts, fmt.Sprintf("%s %s %s", sock, r.URL.Path, body))
	if r.URL.Path == "/start" {
		var in struct{ Half string }
		_ = json.Unmarshal(body, &in)
		h, err := fault.ParseHalf(in.Half)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !f.status(h).Running {
			_ = f.halves[h].Wait()
			if err := f.start(h); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
	}
	_, _ = w.Write([]byte("{}"))
}

func (f *fakeRun) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.posts
	f.posts = nil
	return out
}

func (f *fakeRun) state(h fault.Half) byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	st, err := readStat(f.halves[h].Process.Pid)
	if err != nil {
		f.t.Fatal(err)
	}
	return st.state
}

// until polls a condition that another process brings about.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("not within a minute: %s", what)
}

func faultOf(t *testing.T, s string) Fault {
	t.Helper()
	args := strings.Fields(s)
	oneWay := args[len(args)-1] == "--one-way"
	if oneWay {
		args = args[:len(args)-1]
	}
	f, err := ParseFault(args, oneWay)
	if err != nil {
		t.Fatal(err)
	}
	if f.String() != s {
		t.Errorf("%q reads back as %q", s, f)
	}
	return f
}

func TestSignalsAreReal(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2x2x2"), Supervisors: 1})
	run := startFakeRun(t, c, 0)
	ctx := context.Background()

	before := Monotonic()
	at, err := c.Inject(ctx, "0,0,0", faultOf(t, "hang-host"))
	if err != nil || at < before || at > Monotonic() {
		t.Fatalf("hang-host: at %d (between %d and now), %v", at, before, err)
	}
	until(t, "the host half is stopped", func() bool { return run.state(fault.HalfHost) == 'T' })
	if err := c.Undo(ctx, "0,0,0", faultOf(t, "hang-host")); err != nil {
		t.Fatal(err)
	}
	until(t, "the host half goes on", func() bool { return run.state(fault.HalfHost) == 'S' })

	if _, err := c.Inject(ctx, "n0-0-0", faultOf(t, "kill-node")); err != nil {
		t.Fatal(err)
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		until(t, h.String()+" is dead", func() bool { return run.state(h) == 'Z' })
	}
	if _, err := c.Inject(ctx, "n0-0-0", faultOf(t, "kill-dnp")); err == nil || !strings.Contains(err.Error(), "the dnp half is not running") {
		t.Fatalf("killing the dead: %v", err)
	}
	if err := c.Heal(ctx, "n0-0-0"); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`run.sock /start {"half":"dnp"}`, `run.sock /start {"half":"host"}`,
		`dnp.inject.sock /inject {"heal":true}`, `host.inject.sock /inject {"block_service":false}`,
		`host.inject.sock /inject {"block_service":false,"interface":0}`,
	}
	if got := run.took(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("heal asked for\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if run.state(fault.HalfHost) == 'Z' || run.state(fault.HalfDNP) == 'Z' {
		t.Error("a half is still dead")
	}
}

func TestFaultsAreInjectedIntoHalves(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2x2x2"), Supervisors: 1, ServiceInterfaces: 2})
	run := startFakeRun(t, c, 1)
	for _, tc := range []struct{ fault, on, off string }{
		{"cut-service", `host.inject.sock /inject {"block_service":true}`, `host.inject.sock /inject {"block_service":false}`},
		{"cut-interface 0", `host.inject.sock /inject {"block_service":true,"interface":0}`,
			`host.inject.sock /inject {"block_service":false,"interface":0}`},
		{"cut-interface 1", `host.inject.sock /inject {"block_service":true,"interface":1}`,
			`host.inject.sock /inject {"block_service":false,"interface":1}`},
		{
			"cut-link X+",
			`dnp.inject.sock /inject {"dir":"X+","mangle":{"block_in":true,"block_out":true}}`,
			`dnp.inject.sock /inject {"dir":"X+","mangle":{"block_in":false,"block_out":false}}`,
		},
		{
			"cut-link Z- --one-way",
			`dnp.inject.sock /inject {"dir":"Z-","mangle":{"block_in":false,"block_out":true}}`,
			`dnp.inject.sock /inject {"dir":"Z-","mangle":{"block_in":false,"block_out":false}}`,
		},
		{
			"corrupt-link Y- 0.25",
			`dnp.inject.sock /inject {"dir":"Y-","mangle":{"corrupt_in":0.25}}`,
			`dnp.inject.sock /inject {"dir":"Y-","mangle":{"corrupt_in":0}}`,
		},
	} {
		f := faultOf(t, tc.fault)
		if _, err := c.Inject(context.Background(), "1,0,0", f); err != nil {
			t.Fatal(err)
		}
		if got := run.took(); len(got) != 1 || got[0] != tc.on {
			t.Errorf("%s: asked for %q, want %q", f, got, tc.on)
		}
		if err := c.Undo(context.Background(), "1,0,0", f); err != nil {
			t.Fatal(err)
		}
		if got := run.took(); len(got) != 1 || got[0] != tc.off {
			t.Errorf("undo of %s: asked for %q, want %q", f, got, tc.off)
		}
	}
}

func TestCutOfMissingInterfaceIsRefused(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	_, err := c.Inject(context.Background(), "1,0,0", faultOf(t, "cut-interface 1"))
	if err == nil || !strings.Contains(err.Error(), "node n1-0-0 has service interfaces 0 to 0") {
		t.Errorf("%v", err)
	}
}

func TestSensorFaultsChangeNodesTree(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(c.nodeDir("n1-0-0"), name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	for _, tc := range []struct{ fault, file, first, then string }{
		{"sensor temperature 92.5", "sys/class/hwmon/hwmon0/temp1_input", "45000", "92500"},
		{"sensor temperature -3", "sys/class/hwmon/hwmon0/temp1_input", "45000", "-3000"},
		{"sensor voltage 11.2", "sys/class/hwmon/hwmon0/in0_input", "12000", "11200"},
		{"sensor power 280", "sys/class/hwmon/hwmon0/power1_input", "180000000", "280000000"},
		{"sensor memory-ce 40", "sys/devices/system/edac/mc/mc0/ce_count", "0", "40"},
		{"sensor memory-ue 1", "sys/devices/system/edac/mc/mc0/ue_count", "0", "1"},
		{"sensor peripheral/0 2", "peripheral0", "0", "2"},
		{"sensor peripheral/1 1", "peripheral1", "0", "1"},
		{"sensor carrier 0", "sys/class/net/svc0/carrier", "1", "0"},
		{"sensor carrier 0", "sys/class/net/svc0/operstate", "up", "down"},
	} {
		f := faultOf(t, tc.fault)
		if got := read(tc.file); got != tc.first {
			t.Errorf("%s: at first %q, want %q", tc.file, got, tc.first)
		}
		if _, err := c.Inject(context.Background(), "n1-0-0", f); err != nil {
			t.Fatal(err)
		}
		if got := read(tc.file); got != tc.then {
			t.Errorf("%s: %s holds %q, want %q", f, tc.file, got, tc.then)
		}
		if err := c.Undo(context.Background(), "n1-0-0", f); err != nil {
			t.Fatal(err)
		}
		if got := read(tc.file); got != tc.first {
			t.Errorf("undo of %s: %s holds %q, want %q", f, tc.file, got, tc.first)
		}
	}
}

func TestCheckScriptAnswersByExitCode(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	dir := c.nodeDir("n0-0-0")
	for _, want := range []int{0, 1, 2} {
		if err := c.setSensor(c.info.Nodes[0], "peripheral/0", float64(want)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(dir, "check-peripheral"), filepath.Join(dir, "peripheral0"))
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("exit code %d, want %d", got, want)
		}
	}
}

func TestInvalidFaultIsRefused(t *testing.T) {
	for _, tc := range []struct {
		args   string
		oneWay bool
		want   string
	}{
		{"", false, "no fault given"},
		{"melt", false, `"melt": want one of kill-host`},
		{"kill-host now", false, "1 arguments given: want kill-host"},
		{"kill-host", true, "--one-way is for cut-link only"},
		{"cut-link", false, "want cut-link DIR"},
		{"cut-link Q+", false, "want one of X+ X- Y+ Y- Z+ Z-"},
		{"corrupt-link X+ much", false, `rate "much"`},
		{"corrupt-link X+ 0", false, "want above 0, up to 1"},
		{"corrupt-link X+ 1.5", false, "want above 0, up to 1"},
		{"corrupt-link X+ NaN", false, "want above 0, up to 1"},
		{"sensor", false, "want sensor NAME VALUE"},
		{"sensor humidity 3", false, `"humidity": want one of temperature`},
		{"sensor temperature warm", false, `value "warm"`},
		{"sensor temperature 500", false, "want -39 to 126 (°C)"},
		{"sensor temperature NaN", false, "want -39 to 126 (°C)"},
		{"sensor peripheral/0 3", false, "want 0 to 2"},
		{"sensor peripheral/0 0.5", false, "want a whole number"},
		{"sensor carrier 2", false, "want 0 to 1"},
	} {
		if _, err := ParseFault(strings.Fields(tc.args), tc.oneWay); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
	c := create(t, Options{Dims: dims(t, "2x1x1"), Supervisors: 1})
	ctx := context.Background()
	for _, tc := range []struct {
		node string
		f    Fault
		want string
	}{
		{"7,7,7", Fault{Kind: KillHost}, "outside the 2x1x1 torus"},
		{"0,0,0", Fault{}, "unknown"},
		{"0,0,0", Fault{Kind: CutLink}, "direction"},
		{"0,0,0", faultOf(t, "cut-link Y+"), "no link in direction Y+"},
		{"0,0,0", faultOf(t, "kill-host"), "is not running"},
	} {
		if _, err := c.Inject(ctx, tc.node, tc.f); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %s: %v, want %q", tc.node, tc.f, err, tc.want)
		}
	}
}

// replaced has a supervisor that knows the spare in the place of the second node.
func replaced(t *testing.T) *Cluster {
	t.Helper()
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, Spares: 1})
	c.ports.release()
	tls, err := pki.ServerTLS(c.PKI("sup-0.pem"), c.PKI("sup-0.key"), c.PKI("ca.pem"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := clienttest.Start(tls, c.info.Supervisors[0].GRPC, &clienttest.Map{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	s.Operators.Topology = &lofamov1.Topology{Dims: "2x1x1", Nodes: []*lofamov1.TopologyNode{
		{Id: "n0-0-0", Coord: "0,0,0"}, {Id: "n1-0-0"}, {Id: "spare-0", Coord: "1,0,0"}}}
	return c
}

// TestSpareInPlaceIsHealed: a spare with halves has a place. Supervisors may be down when faults are to be healed.
func TestSpareInPlaceIsHealed(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, Spares: 1})
	runs := []*fakeRun{startFakeRun(t, c, 0), startFakeRun(t, c, 1), startFakeRun(t, c, 2)}
	if err := c.HealAll(t.Context()); err != nil {
		t.Error(err)
	}
	for i, run := range runs {
		if len(run.took()) == 0 {
			t.Errorf("%s was not healed: its halves run", c.info.at(i).ID)
		}
	}
}

func TestWaitingSpareNeedsNoHealing(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, Spares: 1})
	startFakeRun(t, c, 0)
	startFakeRun(t, c, 1)
	if err := c.HealAll(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFaultOfWaitingSpareIsRefused(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, Spares: 1})
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c.info.Spares[0].RunPID, c.info.Spares[0].Started = self.pid, self.started // a daemon that waits does not listen at run.sock
	refused := func(socket string) {
		t.Helper()
		const want = "node spare-0: no half runs, because a spare without a place has none"
		if _, err := c.Inject(t.Context(), "spare-0", faultOf(t, "kill-host")); err == nil || err.Error() != want {
			t.Errorf("%s: kill-host: %v, want %q", socket, err, want)
		}
		if err := c.Heal(t.Context(), "spare-0"); err != nil {
			t.Errorf("%s: heal: %v", socket, err)
		}
	}
	refused("no socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(c.info.Spares[0].StateDir, runSocket)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	refused("the socket of a killed daemon")
}

func TestCoordinatesNameTheNodeThereNow(t *testing.T) {
	c := replaced(t)
	for name, want := range map[string]fault.NodeID{"1,0,0": "spare-0", "1": "spare-0", "0,0,0": "n0-0-0", "n1-0-0": "n1-0-0"} {
		if n, err := c.NodeNow(t.Context(), name); err != nil || n.ID != want {
			t.Errorf("%s: %s, %v, want %s", name, n.ID, err, want)
		}
	}
	if _, err := c.NodeNow(t.Context(), "2,0,0"); err == nil || !strings.Contains(err.Error(), `"2,0,0": no node is there now`) {
		t.Errorf("2,0,0: %v", err)
	}
	stopped := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	if n, err := stopped.NodeNow(t.Context(), "1,0,0"); err != nil || n.ID != "n1-0-0" {
		t.Errorf("without supervisors: %s, %v, want the node made for that place", n.ID, err)
	}
	stopped = create(t, Options{Dims: dims(t, "2"), Supervisors: 1, Spares: 1})
	if n, err := stopped.NodeNow(t.Context(), "1,0,0"); err == nil || !strings.Contains(err.Error(), "no supervisor tells whether a spare") {
		t.Errorf("without supervisors, but with a spare: %s, %v", n.ID, err)
	}
}

// TestSignalGoesOnlyToOwnChildren has run.sock name a process that is not the daemon's child.
func TestSignalGoesOnlyToOwnChildren(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1})
	run := startFakeRun(t, c, 0)
	// A grandchild: its parent is sh, not us.
	sh := exec.Command("sh", "-c", "sleep 600 & echo $!; wait")
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-sh.Process.Pid, syscall.SIGKILL); _ = sh.Wait() })
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	run.mu.Lock()
	own := run.halves[fault.HalfHost].Process.Pid
	run.halves[fault.HalfHost].Process.Pid = pid
	run.mu.Unlock()
	defer func() {
		run.mu.Lock()
		run.halves[fault.HalfHost].Process.Pid = own
		run.mu.Unlock()
	}()
	if _, err := c.Inject(context.Background(), "0,0,0", Fault{Kind: KillHost}); err == nil ||
		!strings.Contains(err.Error(), "no signal sent") {
		t.Fatalf("kill of a stranger: %v", err)
	}
	if st, err := readStat(pid); err != nil || st.state == 'Z' {
		t.Fatalf("the stranger was killed: %v %c", err, st.state)
	}
}
