package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/sdnotify/sdnotifytest"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// asSupervisor makes this test binary run as the command.
const asSupervisor = "LOFAMO_TEST_AS_SUPERVISOR"

func TestMain(m *testing.M) {
	if os.Getenv(asSupervisor) != "" {
		os.Exit(execute(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// process starts a replica as a separate process.
func process(t *testing.T, c *supervisortest.Cluster, cfg config.Supervisor, args ...string) *exec.Cmd {
	t.Helper()
	return processOf(t, self(t), c, cfg, args...)
}

// self returns the path of the test binary, which also runs as the supervisor (see TestMain).
func self(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// processOf is process with another program.
func processOf(t *testing.T, program string, c *supervisortest.Cluster, cfg config.Supervisor, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, append([]string{"run", "--config", c.WriteConfig(t, cfg)}, args...)...)
	cmd.Env = append(os.Environ(), asSupervisor+"=1")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func report(t *testing.T, a *supervisortest.Agent, comp fault.Component) (fault.ReportID, []byte) {
	t.Helper()
	return a.Report(t, fault.HalfHost, false, fault.Observation{Component: comp, State: fault.Sick, Kind: fault.KindSelf})
}

// TestKilledLeaderLosesNoAcknowledgedReport kills the leading process in the middle of a storm of reports: another
// takes over, no acknowledged report is lost, and no change happens twice. The killed one comes back.
func TestKilledLeaderLosesNoAcknowledgedReport(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Replicas: 3})
	var procs []*exec.Cmd
	var targets []string
	for _, cfg := range c.Configs {
		procs = append(procs, process(t, c, cfg))
		targets = append(targets, cfg.Report)
	}
	leader := c.AwaitLeader(t)
	follower, other := (leader+1)%3, (leader+2)%3
	client := c.Client(t, c.Configs[follower].GRPC)
	stream, err := client.Watch(t.Context(), &lofamov1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	c.Storm(t, targets, func() {
		start := time.Now()
		if err := procs[leader].Process.Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		next := c.AwaitLeader(t, follower, other)
		t.Logf("%s was killed, %s led within %v", c.Configs[leader].ID, c.Configs[next].ID, time.Since(start))
	})
	list := supervisortest.Fresh(t, client.ListEvents, &lofamov1.ListEventsRequest{})
	c.CheckStorm(t, "list", list.GetEvents())
	var watched []*lofamov1.Event
	for len(watched) < len(list.GetEvents()) {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		watched = append(watched, resp.GetEvents()...)
	}
	c.CheckStorm(t, "watch", watched)

	// The state is that of the connection to the replica, which is retried only at intervals.
	supervisortest.Eventually(t, "the killed replica to be FAILED, and no leader", func() bool {
		sups, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
		return err == nil && sups.GetSupervisors()[leader].GetState() == lofamov1.State_FAILED && !sups.GetSupervisors()[leader].GetLeader()
	})
	_ = procs[leader].Wait()
	procs[leader] = process(t, c, c.Configs[leader])
	supervisortest.Eventually(t, "the killed replica to serve again", func() bool {
		list, err := c.Client(t, c.Configs[leader].GRPC).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		return err == nil && !list.GetCluster().GetStale() && len(list.GetNodes()) == 4
	})
	// A graceful exit: code 0, within seconds.
	for _, i := range []int{follower, leader} {
		if err := procs[i].Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		begin, done := time.Now(), make(chan error, 1)
		go func() { done <- procs[i].Wait() }()
		select {
		case err := <-done:
			if i == follower {
				wantGoodEnd(t, c.Configs[i].ID, err, time.Since(begin))
			}
		case <-time.After(supervisortest.Wait):
			t.Fatalf("%s outlives SIGTERM", c.Configs[i].ID)
		}
	}
}

// The service manager is notified that the replica serves, gets signs of life while its loops run, and is notified
// when it stops. Not parallel: it sets the environment.
func TestServiceManagerGetsStatesOfReplica(t *testing.T) {
	manager := sdnotifytest.New(t, 200*time.Millisecond)
	c := supervisortest.New(t, supervisortest.Options{Replicas: 1})
	p := process(t, c, c.Configs[0])
	manager.Await(t, "STATUS=starts: waits for a quorum of the store")
	manager.Await(t, "READY=1")
	manager.Await(t, "WATCHDOG=1")
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	manager.Await(t, "STOPPING=1")
}

// A replica leads, and ends when it should, although its log is a full pipe, for example to a log collector that hangs. An elected
// replica that waited for the pipe would hold the lease and decide nothing.
func TestReplicaLeadsWithoutReaderOfItsLog(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Replicas: 1})
	cmd := exec.Command(self(t), "run", "--config", c.WriteConfig(t, c.Configs[0]))
	cmd.Env = append(os.Environ(), asSupervisor+"=1")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	fillPipe(t, r)
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	late := time.AfterFunc(supervisortest.Wait, func() { _ = cmd.Process.Kill() }) // ends a call that it does not answer
	t.Cleanup(func() {
		late.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c.AwaitLeader(t)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err = cmd.Wait()
	wantGoodEnd(t, c.Configs[0].ID, err, time.Since(begin))
}

// fillPipe leaves no room in a pipe.
func fillPipe(t *testing.T, r *os.File) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", r.Fd()), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, size := range []int{1 << 12, 1} {
		for err = nil; err == nil; {
			_, err = unix.Write(fd, make([]byte, size))
		}
		if !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
	}
}

// TestSecondReplicaUsesExternalEtcd runs a second replica on the first one's etcd, as an external one.
func TestSecondReplicaUsesExternalEtcd(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Replicas: 2})
	first, second := c.Configs[0], c.Configs[1]
	first.Etcd.InitialCluster = "s1=" + first.Etcd.PeerURL
	process(t, c, first)
	process(t, c, second, "--etcd-endpoints", first.Etcd.ClientURL)
	leader := c.AwaitLeader(t)
	a := c.Agents["n0-0-0"]
	for i, comp := range []fault.Component{fault.ComponentMemory, fault.ComponentPower} {
		id, b := report(t, a, comp)
		a.Deliver(t, id, b, c.Configs[(leader+i)%2].Report)
	}
	if _, err := os.Stat(filepath.Join(second.DataDir, "etcd")); !os.IsNotExist(err) {
		t.Errorf("a replica on an etcd outside has made one of its own: %v", err)
	}
}

// TestAllStopAtOnce: it is no failure if no peer is left to take over or to receive the farewell.
func TestAllStopAtOnce(t *testing.T) {
	t.Parallel()
	// lofamoctl kills processes that have not ended after 5 s. On a busy machine they may not get a processor for so long: one of some
	// stops must be in time, for a part that waits for its bound makes all of them late.
	const attempts = 5
	for range attempts {
		took := stopAll(t)
		if took <= patience {
			return
		}
		t.Logf("all ended after %v", took)
	}
	t.Errorf("all of %d stops took longer than %v, lofamoctl's patience", attempts, patience)
}

// patience is how long lofamoctl waits for a process to stop, less a reserve.
// bound is the time limit for the stop of one part of a replica.
const (
	patience = 4500 * time.Millisecond
	bound    = 3 * time.Second
)

// stopAll starts three replicas, stops all at once and returns how long they took to end. It returns more than patience if a
// part of a replica ran out of time.
func stopAll(t *testing.T) time.Duration {
	t.Helper()
	c := supervisortest.New(t, supervisortest.Options{Replicas: 3, Gossip: true})
	var procs []*exec.Cmd
	for _, cfg := range c.Configs {
		procs = append(procs, process(t, c, cfg))
	}
	c.AwaitLeader(t)
	for _, p := range procs {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	errs := make([]error, len(procs))
	for i, p := range procs {
		errs[i] = p.Wait()
	}
	took := time.Since(begin)
	for i, err := range errs {
		wantGoodEnd(t, c.Configs[i].ID, err, took)
		if err != nil {
			took = max(took, patience+1)
		}
	}
	return took
}

// wantGoodEnd fails the test if a replica ended after SIGTERM with an error, unless a part of it may have run out of time: a busy machine
// may hold it up.
func wantGoodEnd(t *testing.T, id string, err error, took time.Duration) {
	t.Helper()
	switch {
	case err == nil:
	case took < bound: // no part has run into its bound
		t.Errorf("%s after SIGTERM: %v, want a success", id, err)
	default:
		t.Logf("%s after SIGTERM, %v later: %v", id, took, err)
	}
}

// TestConfigCheckWarnsOfFilesThatThisMachineLacks: the supervisor would not start here. Elsewhere the files may be good, so the
// configuration is not refused.
func TestConfigCheckWarnsOfFilesThatThisMachineLacks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*config.Supervisor)
		want   string // in stderr; empty: nothing
	}{
		"all files":   {func(*config.Supervisor) {}, ""},
		"certificate": {func(s *config.Supervisor) { s.TLS.Cert = "/nonexistent.pem" }, "certificate /nonexistent.pem"},
		"gossip key": {func(s *config.Supervisor) { s.GossipListen, s.GossipKeyFile = "127.0.0.1:1", "/nonexistent.key" },
			"gossip key /nonexistent.key"},
		"secret of a webhook": {func(s *config.Supervisor) {
			s.Responses.Enabled = true
			s.Responses.Executors.Webhooks = &config.Webhooks{Targets: []config.WebhookTarget{{Name: "tickets", URL: "https://example.com/",
				SecretFiles: []string{"/nonexistent.secret"}}}}
		}, "responses.executors.webhooks: target tickets: secret: open /nonexistent.secret"},
		"token for Alertmanager": {func(s *config.Supervisor) {
			s.Responses.Enabled = true
			s.Responses.Executors.Alertmanager = &config.Alertmanagers{URLs: []string{"https://example.com"}, BearerTokenFile: "/nonexistent.token"}
		}, "/nonexistent.token"},
	} {
		c := supervisortest.New(t, supervisortest.Options{})
		tc.change(&c.Configs[0])
		var stdout, stderr bytes.Buffer
		code := execute([]string{"config", "check", c.WriteConfig(t, c.Configs[0])}, nil, &stdout, &stderr)
		if code != 0 || !strings.Contains(stdout.String(), ": good: ") {
			t.Errorf("%s: exit code %d, %s%s", name, code, &stdout, &stderr)
		}
		if warned := stderr.String(); (tc.want == "") != (warned == "") || !strings.Contains(warned, tc.want) {
			t.Errorf("%s: warns %q, want %q", name, warned, tc.want)
		}
		stderr.Reset()
		want := 0
		if tc.want != "" {
			want = program.ExitUsage
		}
		code = execute([]string{"config", "check", "--start", c.WriteConfig(t, c.Configs[0])}, nil, &stdout, &stderr)
		if code != want || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("%s: --start: exit code %d, want %d with %q: %s", name, code, want, tc.want, &stderr)
		}
	}
}

func TestExitCodesOfSupervisorCommands(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	good := c.WriteConfig(t, c.Configs[0])
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	unknown := write("unknown.yaml", string(b)+"\ncolour: red\n")
	badDims := write("dims.yaml", strings.Replace(string(b), "dims: 2x2x1", "dims: 2x0x1", 1))
	noCert := write("cert.yaml", strings.Replace(string(b), "s1.pem", "nobody.pem", 1))
	noKey := write("key.yaml", string(b)+"\ngossipListen: 127.0.0.1:1\ngossipKeyFile: /nonexistent.key\n")
	noticed := c.Configs[0]
	noticed.Responses.Executors.Alertmanager = &config.Alertmanagers{URLs: []string{"http://127.0.0.1:1"},
		Labels: map[string]string{"notice": "x"}}
	withNotice, err := os.ReadFile(c.WriteConfig(t, noticed))
	if err != nil {
		t.Fatal(err)
	}
	notice := write("notice.yaml", string(withNotice))
	c.WriteConfig(t, c.Configs[0])
	for _, tc := range []struct {
		args []string
		env  []string
		code int
		want string // in stdout when the code is 0, else in stderr
	}{
		{[]string{"version"}, nil, 0, "supervisor "},
		{[]string{"config", "check", good}, nil, 0, "4 nodes in 2x2x1"},
		{nil, nil, program.ExitUsage, "want run"},
		{[]string{"config"}, nil, program.ExitUsage, "check FILE"},
		{[]string{"fly"}, nil, program.ExitUsage, `"fly"`},
		{[]string{"run"}, nil, program.ExitUsage, "--config is missing"},
		{[]string{"run", "--config", good, "--upstream", "p0"}, nil, program.ExitUsage, "want ID=IP:PORT"},
		{[]string{"run", "--confg", good}, nil, program.ExitUsage, "confg"},
		{[]string{"config", "check"}, nil, program.ExitUsage, "FILE is missing"},
		{[]string{"config", "check", "--config", good}, nil, 0, "4 nodes in 2x2x1"},
		{[]string{"config", "check", "/nonexistent.yaml"}, nil, program.ExitUsage, "/nonexistent.yaml"},
		{[]string{"config", "check", unknown}, nil, program.ExitUsage, "colour"},
		{[]string{"config", "check", badDims}, nil, program.ExitUsage, "2x0x1"},
		{[]string{"config", "check", good}, []string{"LOFAMO_SUPERVISOR_PRESET=hasty"}, program.ExitUsage, "hasty"},
		{[]string{"config", "check", notice}, nil, program.ExitUsage, "alertmanager.labels.notice: given notice: want a name"},
		{[]string{"config", "check", "--start", notice}, nil, 0, "4 nodes in 2x2x1"},
		{[]string{"config", "check", "--start", unknown}, nil, program.ExitUsage, "colour"},
		{[]string{"run", "--config", noCert}, nil, program.ExitUsage, "nobody.pem"},
		{[]string{"run", "--config", noKey}, nil, program.ExitUsage, "gossip key /nonexistent.key"},
	} {
		var stdout, stderr bytes.Buffer
		code := execute(tc.args, tc.env, &stdout, &stderr)
		out := stderr.String()
		if tc.code == 0 {
			out = stdout.String()
		}
		if code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("supervisor %v: exit code %d, %q; want %d with %q", tc.args, code, out, tc.code, tc.want)
		}
	}
	var stdout, stderr bytes.Buffer
	var info map[string]any
	if code := execute([]string{"version", "--json"}, nil, &stdout, &stderr); code != 0 || json.Unmarshal(stdout.Bytes(), &info) != nil {
		t.Errorf("version --json: %d, %s%s", code, &stdout, &stderr)
	}
}

// TestSupervisorForgetsProxies: the parts of a supervisor whose connections the environment can lead to a proxy, such as embedded etcd,
// find none there.
func TestSupervisorForgetsProxies(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy"} {
		t.Setenv(name, "http://10.0.0.250:3128")
	}
	t.Setenv("LOFAMO_SETTING", "stays")
	forgetProxies()
	for _, v := range os.Environ() {
		if strings.Contains(v, "10.0.0.250") {
			t.Errorf("the environment still has %s", v)
		}
	}
	if os.Getenv("LOFAMO_SETTING") != "stays" {
		t.Error("another variable is gone")
	}
}

// TestDamagedDataHaveTheirExitCode: a service manager can tell damaged data from a refused configuration and from a failure that may pass.
func TestDamagedDataHaveTheirExitCode(t *testing.T) {
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	db := filepath.Join(cfg.DataDir, "etcd/member/snap/db")
	if err := errors.Join(os.MkdirAll(filepath.Dir(db), 0o700), os.WriteFile(db, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	code := execute([]string{"run", "--config", c.WriteConfig(t, cfg)}, os.Environ(), io.Discard, &stderr)
	want := "lofamo-supervisor: start supervisor s1: " + db + ": the database is empty: this replica's data are damaged: replace it"
	if code != embedded.ExitDamaged || !strings.Contains(stderr.String(), want) {
		t.Errorf("exit code %d, %q: want %d and %q", code, stderr.String(), embedded.ExitDamaged, want)
	}
}
