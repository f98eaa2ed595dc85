package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// asProgram makes the test binary be lofamo-agent, so that the tests run real processes.
const asProgram = "LOFAMO_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const bound = time.Minute

func agentCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// node makes the files of one node of a 2x1x1 torus and returns its configuration. A half may be silent for a second: on a
// busy machine one that is well may miss the 300 ms of the preset, and its daemon would restart it.
func node(t *testing.T) config.Agent {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(file("ca.pem"), file("ca.key")); err != nil {
		t.Fatal(err)
	}
	c := config.DefaultAgent()
	c.Cluster, c.Node, c.Coord, c.Dims, c.StateDir = "test", "n0-0-0", "0,0,0", "2x1x1", file("state")
	misses := 16
	c.Periods = &config.PeriodsOverride{ReadMisses: &misses}
	c.TLS = config.AgentTLS{CA: file("ca.pem"), HostCert: file("host.pem"), HostKey: file("host.key"), DNPCert: file("dnp.pem"),
		DNPKey: file("dnp.key")}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if err := ca.IssueTo(file(h.String()+".pem"), file(h.String()+".key"), pki.NodeIdentity("test", c.Node, h), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := ca.IssueTo(file("sup.pem"), file("sup.key"), pki.SupervisorIdentity("test", "sup-0"), nil, nil); err != nil {
		t.Fatal(err)
	}
	c.Links = map[string]config.LinkAddr{
		"X+": {Local: freeport.Addr(t).String(), Peer: freeport.Addr(t).String()},
		"X-": {Local: freeport.Addr(t).String(), Peer: freeport.Addr(t).String()},
	}
	c.Service.Listen = freeport.Addr(t).String()
	c.Supervisors = []config.SupervisorAddr{{ID: "sup-0", Report: freeport.Addr(t).String()}}
	return c
}

func write(t *testing.T, c config.Agent, extra string) string {
	t.Helper()
	b, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(c.StateDir), "agent.yaml")
	if err := os.WriteFile(file, append(b, extra...), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// refusal runs the program, which must end by itself, and checks exit code and words.
func refusal(t *testing.T, code int, words []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := agentCommand(t, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%v: exit code %d, want %d\n%s", args, got, code, &out)
	}
	for _, w := range words {
		if !strings.Contains(out.String(), w) {
			t.Errorf("%v: nothing about %q in\n%s", args, w, &out)
		}
	}
}

func TestInvalidConfigurationIsRefusedWithReason(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edit  func(*config.Agent)
		extra string
		words []string
		run   int // exit code of run: 2 if the reason is a file that may be replaced
	}{
		{"coordinates outside the torus", func(c *config.Agent) { c.Coord = "2,0,0" }, "", []string{"coord", "2,0,0", "2x1x1", "1,0,0"}, 78},
		{"bad dims", func(c *config.Agent) { c.Dims = "0x2" }, "", []string{"dims", "0x2", "1 to 65536"}, 78},
		{"T_write not below T_read", func(c *config.Agent) { c.Periods = nil }, "\nperiods:\n  tWrite: 50ms\n",
			[]string{"tWrite", "50ms", "tRead"}, 78},
		{"unknown key", nil, "\nfrobnicate: 1\n", []string{"frobnicate"}, 78},
		{"unreadable certificate", func(c *config.Agent) { c.TLS.HostCert += ".absent"; c.TLS.DNPCert += ".absent" }, "",
			[]string{"certificate", ".absent", "no such file"}, 2},
		{"certificate of another", func(c *config.Agent) {
			c.TLS.HostCert, c.TLS.DNPCert, c.TLS.HostKey, c.TLS.DNPKey = c.TLS.DNPCert, c.TLS.HostCert, c.TLS.DNPKey, c.TLS.HostKey
		}, "", []string{"n0-0-0/dnp", "want lofamo://test/node/n0-0-0/host"}, 2},
		{"key of another certificate", func(c *config.Agent) { c.TLS.HostKey, c.TLS.DNPKey = c.TLS.DNPKey, c.TLS.HostKey }, "",
			[]string{"does not belong"}, 2},
		{"missing link", func(c *config.Agent) { delete(c.Links, "X-") }, "", []string{"links", "X-"}, 78},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := node(t)
			if tc.edit != nil {
				tc.edit(&c)
			}
			file := write(t, c, tc.extra)
			for _, args := range [][]string{{"config", "check"}, {"host"}} {
				refusal(t, 2, tc.words, append(args, "--config", file)...)
			}
			refusal(t, tc.run, tc.words, "run", "--config", file)
		})
	}
}

// A service manager leaves a daemon down after code 78. After a refusal that a restart may overcome, or while a half may run that the next
// daemon would adopt, the code is 2.
func TestRefusedDaemonStaysDownOnlyIfNoHalfRuns(t *testing.T) {
	c := node(t)
	c.Coord = "2,0,0"
	file, absent := write(t, c, ""), filepath.Join(t.TempDir(), "absent")
	refusal(t, 78, nil, "run", "--config", file)
	refusal(t, 2, nil, "run", "--config", absent)
	noYAML := filepath.Join(t.TempDir(), "agent.yaml") // its state directory is unknown
	if err := os.WriteFile(noYAML, []byte("stateDir: {"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal(t, 2, []string{"not YAML"}, "run", "--config", noYAML)

	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := regfile.Open(filepath.Join(c.StateDir, "registers"), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	refusal(t, 2, []string{"2,0,0"}, "run", "--config", file)
	refusal(t, 78, []string{"2,0,0"}, "run", "--half", "host", "--config", file)
	unknown := write(t, c, "\nfrobnicate: 1\n")
	refusal(t, 2, []string{"frobnicate"}, "run", "--config", unknown)
	t.Setenv("LOFAMO_AGENT_STATEDIR", filepath.Join(t.TempDir(), "other"))
	refusal(t, 78, []string{"frobnicate"}, "run", "--config", unknown)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedCommandLines(t *testing.T) {
	file := write(t, node(t), "")
	for _, tc := range []struct {
		args  []string
		words []string
	}{
		{nil, []string{"no command", "run, join, host, dnp"}},
		{[]string{"fly"}, []string{"fly"}},
		{[]string{"config"}, []string{"config: want config check FILE"}},
		{[]string{"config", "check"}, []string{"config check: FILE is missing"}},
		{[]string{"host", "--config", file, "--scheduling", "fast"}, []string{"--scheduling", "fast", "auto, prompt or default"}},
		{[]string{"host", "--config", file, "--frequency", "7"}, []string{"--frequency"}},
		{[]string{"host", "--config", file, "--log-level", "loud"}, []string{"log.level", "loud", "debug"}},
		{[]string{"host", "--config", file + ".absent"}, []string{file + ".absent", "no such file"}},
		{[]string{"host", "--config", file, "extra"}, []string{"extra"}},
	} {
		refusal(t, 2, tc.words, tc.args...)
	}
}

// The exit code of a half under a daemon distinguishes a refusal from a panic, and a file that may appear from other reasons.
func TestRefusalOfDaemonsHalf(t *testing.T) {
	c := node(t)
	file, spare := write(t, c, ""), c
	spare.Spare, spare.Coord, spare.StateDir = true, "", filepath.Join(t.TempDir(), "state")
	for name, l := range spare.Links {
		spare.Links[name] = config.LinkAddr{Local: l.Local}
	}
	t.Setenv("LOFAMO_RECOVERY", "{}")
	refusal(t, 66, []string{"absent", "no such file"}, "dnp", "--config", filepath.Join(t.TempDir(), "absent"))
	refusal(t, 78, []string{"loud"}, "dnp", "--config", file, "--log-level", "loud")
	refusal(t, 66, []string{"without a place"}, "dnp", "--config", write(t, spare, "")) // the other half's daemon may get one
}

// TestDaemonRefusesWhatItsHalfWouldRefuse: otherwise its service manager would restart it for ever.
func TestDaemonRefusesWhatItsHalfWouldRefuse(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	refusal(t, 78, []string{"--restart", "sometimes", "always or never"}, "run", "--config", file, "--restart", "sometimes")
	refusal(t, 78, []string{"--scheduling", "fast", "auto, prompt or default"}, "run", "--config", file, "--scheduling", "fast")

	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := storage.PeerOrders().Save(c.StateDir, peers.State{Number: 7, Placed: true, Coord: grid.Coord{X: 5}}); err != nil {
		t.Fatal(err)
	}
	words := []string{"5,0,0", "2x1x1", storage.PeerOrders().Path(c.StateDir)}
	refusal(t, 2, words, "config", "check", "--config", file)
	refusal(t, 2, words, "host", "--config", file)
	refusal(t, 78, words, "run", "--config", file)
	refusal(t, 2, words, "run", "--half", "host", "--config", file) // the other half may get another order
}

// A service manager repeats the command line, for instance that of a unit's drop-in, so a mistake in it is final. A half that still runs
// needs the next daemon, also if the mistake precedes --config.
func TestDaemonWithWrongCommandLineStaysDown(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	mistakes := [][]string{{"--frequency", "7"}, {"--wait=perhaps"}, {"extra"}, {"--half", "left"}}
	for _, args := range mistakes {
		word, _, _ := strings.Cut(args[0], "=")
		refusal(t, 78, []string{word}, slices.Concat([]string{"run", "--config", file}, args)...)
	}
	refusal(t, 78, []string{"--half"}, "run", "--config", file, "--half")
	refusal(t, 2, nil, "run", "--frequency", "7", "--config", filepath.Join(t.TempDir(), "absent"))

	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := regfile.Open(filepath.Join(c.StateDir, "registers"), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range mistakes {
		refusal(t, 2, nil, slices.Concat([]string{"run"}, args, []string{"--config", file})...)
	}
	refusal(t, 78, nil, "run", "--half", "host", "--config", file, "--frequency", "7")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A unit's command line without a known command starts no daemon either, as often as systemd repeats it. systemd gives its notification
// socket to the program; a person's shell does not.
func TestServiceWithoutKnownCommandStaysDown(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	mistakes := [][]string{{"rnu", "--config", file}, {"--config", file, "--frequency", "7"}, {"--config", file}}
	for _, args := range mistakes {
		refusal(t, 2, nil, args...)
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "notify"))
	for _, args := range mistakes {
		refusal(t, 78, nil, args...)
	}
	refusal(t, 2, []string{"FILE is missing"}, "config", "check") // no daemon's command line

	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := regfile.Open(filepath.Join(c.StateDir, "registers"), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	refusal(t, 2, []string{"rnu"}, "rnu", "--config", file) // the next daemon adopts the half that runs
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLogFileCannotBeOpened: halves run all the same.
func TestLogFileCannotBeOpened(t *testing.T) {
	c := node(t)
	d := startDaemon(t, c, "--log-dir", filepath.Join(filepath.Dir(c.StateDir), "absent"))
	d.await("both halves run", func(host, dnp halfState) bool { return host.Running && dnp.Running })
}

func TestOccupiedFileOrPortIsNamed(t *testing.T) {
	c := node(t)
	file := write(t, c, "")
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("second agent on the register file", func(t *testing.T) {
		f, err := regfile.Open(filepath.Join(c.StateDir, "registers"), fault.HalfHost)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		refusal(t, 1, []string{"registers", "second agent", fmt.Sprint(os.Getpid())}, "host", "--config", file)
	})
	t.Run("port of the direct rail", func(t *testing.T) {
		l, err := net.ListenPacket("udp4", c.Service.Listen)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		refusal(t, 1, []string{c.Service.Listen, "address already in use"}, "host", "--config", file)
	})
	t.Run("port of a link", func(t *testing.T) {
		l, err := net.ListenPacket("udp4", c.Links["X-"].Local)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		refusal(t, 1, []string{"X-", c.Links["X-"].Local, "address already in use"}, "dnp", "--config", file)
	})
}

func TestConfigCheckAndVersion(t *testing.T) {
	c := node(t)
	c.Periods = nil // those of the preset
	file := write(t, c, "")
	out, err := agentCommand(t, "config", "check", "--config", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), file+": good: node n0-0-0 at 0,0,0 of 2x1x1") ||
		!strings.Contains(string(out), "a half that hangs is ended by its daemon within 300ms") {
		t.Errorf("config check: %v\n%s", err, out)
	}
	shared := node(t)
	twin := shared.Supervisors[0]
	twin.ID = "twin"
	shared.Supervisors = append(shared.Supervisors, twin)
	refusal(t, 2, []string{"supervisors[1].report", "an address other than that of supervisors[0].report"}, "config", "check", "--config",
		write(t, shared, ""))
	out, err = agentCommand(t, "config", "check", "--start", "--config", write(t, shared, "")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "supervisors[1].report") || !strings.Contains(string(out), ": good: node n0-0-0") {
		t.Errorf("config check --start of addresses that a start accepts: %v\n%s", err, out)
	}
	for _, arg := range []string{"version", "--version"} {
		out, err = agentCommand(t, arg).CombinedOutput()
		if want := "lofamo-agent " + program.Build().Version; err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s: %v\n%s, want %s", arg, err, out, want)
		}
	}
	join := filepath.Join(t.TempDir(), "agent.yaml")
	text := "stateDir: " + t.TempDir() + "\nnode: n7\njoin: {supervisors: [10.0.0.1:7944], tokenFile: /t}\n"
	if err := os.WriteFile(join, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = agentCommand(t, "config", "check", join).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "node n7 will enrol at 10.0.0.1:7944; it has not enrolled yet") {
		t.Errorf("config check before the node has enrolled: %v\n%s", err, out)
	}
	refusal(t, 1, []string{"has not enrolled yet", "lofamo-agent run"}, "status", "--config", join)
	text = "node: n7\ndims: 2x2x2\njoin: {supervisors: [10.0.0.1], tokenFile: /t, cert: /c}\n"
	if err := os.WriteFile(join, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal(t, 2, []string{"join.supervisors[0]", "at most one", "dims: given"}, "config", "check", join)
	enrolled := c
	enrolled.StateDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(enrolled.StateDir, "joined"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(write(t, enrolled, ""), filepath.Join(enrolled.StateDir, "joined", "agent.yaml")); err != nil {
		t.Fatal(err)
	}
	text = "stateDir: " + enrolled.StateDir + "\nnode: n7\njoin: {supervisors: [10.0.0.1:7944], tokenFile: /t}\n"
	for _, tc := range []struct{ more, want string }{
		{"", ": good: node n0-0-0"}, {"dims: 2x2x2\n", "dims: given a value: want nothing with join"},
	} {
		if err := os.WriteFile(join, []byte(text+tc.more), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, _ := agentCommand(t, "config", "check", join).CombinedOutput(); !strings.Contains(string(out), tc.want) {
			t.Errorf("config check after the node has enrolled, with %q: %s: want %q", tc.more, out, tc.want)
		}
	}
	out, err = agentCommand(t, "version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "lofamo-agent ") {
		t.Errorf("version: %v\n%s", err, out)
	}
}

// TestConfigCheckOfFileBesideJoinFlag: a node that enrolled by run --join has its own settings in a file without join.
func TestConfigCheckOfFileBesideJoinFlag(t *testing.T) {
	c := node(t)
	c.StateDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(c.StateDir, "joined"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(write(t, c, ""), filepath.Join(c.StateDir, "joined", "agent.yaml")); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "agent.yaml")
	for command, want := range map[string]string{"/bin/true": ": good: node n0-0-0", "relative": "sensors.peripherals[0]"} {
		text := "stateDir: " + c.StateDir + "\nsensors: {peripherals: [{kind: script, command: [" + command + "]}]}\n"
		if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, _ := agentCommand(t, "config", "check", "--config", own).CombinedOutput(); !strings.Contains(string(out), want) {
			t.Errorf("command %s: %s: want %q", command, out, want)
		}
	}
}

// daemonProcess is a running lofamo-agent run.
type daemonProcess struct {
	t      *testing.T
	cmd    *exec.Cmd
	client *http.Client
}

type halfState struct {
	PID      int                     `json:"pid"`
	Running  bool                    `json:"running"`
	Recovery halfcore.RecoveryRecord `json:"recovery"`
}

func startDaemon(t *testing.T, c config.Agent, args ...string) *daemonProcess {
	t.Helper()
	return startDaemonTo(t, c, os.Stderr, args...)
}

// startDaemonTo starts a daemon that logs to out.
func startDaemonTo(t *testing.T, c config.Agent, out *os.File, args ...string) *daemonProcess {
	t.Helper()
	c.Injection = true
	file := write(t, c, "")
	d := &daemonProcess{t: t, cmd: agentCommand(t, append([]string{"run", "--config", file}, args...)...)}
	d.cmd.Stderr = out
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stop() })
	socket := filepath.Join(c.StateDir, "run.sock")
	d.client = &http.Client{Timeout: bound, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	return d
}

// stop asks the daemon to stop, and waits.
func (d *daemonProcess) stop() int {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
	return d.cmd.ProcessState.ExitCode()
}

func (d *daemonProcess) post(path, body string) {
	d.t.Helper()
	r, err := d.client.Post("http://run"+path, "application/json", strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		d.t.Errorf("POST %s %s: %s", path, body, r.Status)
	}
}

// await polls the daemon until the states of its halves fit.
func (d *daemonProcess) await(what string, fits func(host, dnp halfState) bool) (host, dnp halfState) {
	d.t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		r, err := d.client.Get("http://run/status")
		if err != nil {
			continue
		}
		var s struct {
			Host, DNP halfState
		}
		err = json.NewDecoder(r.Body).Decode(&s)
		_ = r.Body.Close()
		if err == nil && fits(s.Host, s.DNP) {
			return s.Host, s.DNP
		}
	}
	d.t.Fatalf("not within %s: %s", bound, what)
	return halfState{}, halfState{}
}

func (d *daemonProcess) awaitLog(file, words string) {
	d.t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte(words)) {
			return
		}
	}
	d.t.Fatalf("not within %s: %q in %s", bound, words, file)
}

// gone reports whether a process has ended, even if its parent has not reaped it.
func gone(pid int) bool {
	f, err := regfile.StatFields(pid)
	return err != nil || len(f) > 0 && f[0] == "Z"
}

func TestRunRestartsHalves(t *testing.T) {
	d := startDaemon(t, node(t))
	host, dnp := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	d.post("/kill", `{"half":"host","signal":"KILL"}`)
	again, same := d.await("the host half is restarted", func(h, _ halfState) bool { return h.Running && h.PID != host.PID })
	if same.PID != dnp.PID {
		t.Errorf("the DNP half was restarted as well: %d, then %d", dnp.PID, same.PID)
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if !gone(again.PID) || !gone(same.PID) {
		t.Error("halves outlive a daemon that was asked to stop")
	}
}

func TestRunNeverRestarts(t *testing.T) {
	c := node(t)
	// With these periods the daemon tells the DNP half how the host half ended before the watchdog word is stale, even on a busy machine.
	period := config.Duration(500 * time.Millisecond)
	c.Periods.TRead = &period
	d := startDaemon(t, c, "--restart=never")
	host, _ := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	dnpLog := filepath.Join(filepath.Dir(c.StateDir), "dnp.log")
	d.awaitLog(dnpLog, "the host half is alive") // before that, the DNP half cannot find it dead
	d.post("/kill", `{"half":"host","signal":"KILL"}`)
	d.await("the host half has ended", func(h, n halfState) bool { return !h.Running && n.Running })
	d.awaitLog(dnpLog, "the host half is dead: its process ended by signal 9")
	d.post("/start", `{"half":"host"}`)
	d.await("the host half was started", func(h, _ halfState) bool { return h.Running && h.PID != host.PID })
	d.awaitLog(filepath.Join(filepath.Dir(c.StateDir), "host.log"), "host half runs")
	d.post("/kill", `{"half":"dnp","signal":"STOP"}`)
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM with a stopped half", code)
	}
}

// The halves survive the daemon, which is killed; a second daemon is refused while one lives. With GOMAXPROCS=1 a real-time half does
// not execute its program a second time.
func TestHalvesSurviveDaemon(t *testing.T) {
	for _, threads := range []string{"", "1"} {
		t.Run("GOMAXPROCS="+threads, func(t *testing.T) {
			t.Setenv("GOMAXPROCS", threads)
			halvesSurvive(t)
		})
	}
}

func halvesSurvive(t *testing.T) {
	t.Helper()
	c := node(t)
	d := startDaemon(t, c)
	host, dnp := d.await("both halves run", func(h, n halfState) bool { return h.Running && n.Running })
	refusal(t, 1, []string{"run.lock", "another lofamo-agent run"}, "run", "--config", filepath.Join(filepath.Dir(c.StateDir), "agent.yaml"))
	f, err := regfile.OpenReadOnly(filepath.Join(c.StateDir, "registers"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	writes := func(half fault.Half, when string) {
		t.Helper()
		was, err := f.Progress(half)
		for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
			if now, nerr := f.Progress(half); err != nil || nerr != nil || now != was {
				err = errors.Join(err, nerr)
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the %s half writes nothing %s", half, when)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		writes(half, "before the daemon dies")
	}
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait()
	for half, pid := range map[fault.Half]int{fault.HalfHost: host.PID, fault.HalfDNP: dnp.PID} {
		writes(half, "after the daemon died")
		if gone(pid) {
			t.Errorf("process %d died with the daemon", pid)
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		awaitGone(t, "a half", pid) // it writes into the test's directory until then
	}
}

// A log without a reader does not stop a half: its watchdog word stays valid.
func TestHalfDoesNotWaitForItsLog(t *testing.T) {
	c := node(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	cmd := agentCommand(t, "host", "--config", write(t, c, ""), "--log-level", "debug", "--scheduling", "default")
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := os.MkdirAll(c.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	registers, err := regfile.Open(filepath.Join(c.StateDir, "registers"), fault.HalfDNP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = registers.Close() }()
	validated := func(times int) {
		t.Helper()
		for end := time.Now().Add(bound); times > 0; <-time.After(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the host half has stopped to validate its word within %s", bound)
			}
			if _, s, err := registers.TakeHost(); err == nil && s.Valid {
				times--
			}
		}
	}
	validated(2)
	noise, err := net.Dial("udp4", c.Service.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = noise.Close() }()
	for range 2000 { // a line each, and more than pipe and queue hold
		if _, err := noise.Write([]byte("noise")); err != nil {
			t.Fatal(err)
		}
	}
	// The half logs this under its mutex.
	for range 10 {
		if err := registers.StoreDNP(watchdog.DNPWord{Valid: true}); err != nil {
			t.Fatal(err)
		}
		validated(2)
	}
}
