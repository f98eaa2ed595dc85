package campaign

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/campaign/account"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/netfaults"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

// bad is the network of the campaign, in each direction.
var bad = udplink.Faults{Drop: 0.2, Corrupt: 0.01, Duplicate: 0.05, Reorder: 0.1, Jitter: 3 * time.Millisecond}

// patience is the timeout of every wait.
const patience = 4 * time.Minute

// supervisor is the path of the program under test; main sets it once.
var supervisor string

func TestMain(m *testing.M) {
	if text := os.Getenv(asSender); text != "" {
		os.Exit(runSender(text))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir := os.Getenv(cluster.EnvBinDir)
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "lofamo-campaign-bin-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-o", dir+"/", "../../cmd/lofamo-supervisor")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the supervisor:", err)
			return 1
		}
	}
	supervisor = filepath.Join(dir, "lofamo-supervisor")
	return m.Run()
}

// process is a process that is killed and restarted.
type process struct {
	cmd  *exec.Cmd
	stop io.Closer  // a sender's stdin
	done chan error // receives the result of Wait
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.done
}

// campaign is the state of a campaign.
type campaign struct {
	*supervisortest.Cluster
	dir     string // of the logs
	lines   []*netfaults.Line
	sups    []*process
	senders map[fault.NodeID]*process
	orders  map[fault.NodeID]order
	starts  int

	mu        sync.Mutex
	committed int
	leftOut   int
	done      bool // a flood is over
	caughtUp  map[fault.NodeID]bool
	more      chan struct{} // closed and replaced when these change
}

func newCampaign(t *testing.T, kept int) *campaign {
	t.Helper()
	c := &campaign{
		Cluster: supervisortest.New(t, supervisortest.Options{Replicas: 3, Preset: config.PresetDefault}), dir: t.TempDir(),
		senders: map[fault.NodeID]*process{}, orders: map[fault.NodeID]order{}, caughtUp: map[fault.NodeID]bool{}, more: make(chan struct{}),
	}
	reports := map[string]string{}
	for i := range c.Configs {
		cfg := &c.Configs[i]
		cfg.Log = config.LogConfig{Level: "debug", Format: "json"}
		line, err := netfaults.Listen(netip.MustParseAddrPort(cfg.Report), uint64(i)+1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := line.Close(); err != nil {
				t.Error(err)
			}
		})
		c.lines = append(c.lines, line)
		reports[cfg.ID] = line.Addr().String()
		c.sups = append(c.sups, nil)
		c.startSupervisor(t, i)
	}
	for id := range c.Agents {
		dir := filepath.Join(c.dir, string(id))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		c.orders[id] = order{
			Dir: dir, PKI: c.Dir, Node: id, Kept: kept / len(c.Agents), Supervisors: reports,
		}
	}
	return c
}

// set applies faults to the network, or none.
func (c *campaign) set(t *testing.T, f udplink.Faults) {
	t.Helper()
	for _, l := range c.lines {
		for _, d := range []netfaults.Direction{netfaults.ToTarget, netfaults.FromTarget} {
			if err := l.Set(d, f); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// start starts a program with its own log. A caller that kills it must receive from done.
func (c *campaign) start(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	c.starts++
	log, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("%s.%d.log", name, c.starts)))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &process{cmd: cmd, done: make(chan error, 1)}
}

func (c *campaign) startSupervisor(t *testing.T, i int) {
	t.Helper()
	cfg := c.Configs[i]
	p := c.start(t, cfg.ID, exec.Command(supervisor, "run", "--config", c.WriteConfig(t, cfg)))
	go func() { p.done <- p.cmd.Wait() }()
	c.sups[i] = p
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
}

func (c *campaign) startSender(t *testing.T, id fault.NodeID) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(c.orders[id])
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asSender+"="+string(text))
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := c.start(t, string(id), cmd)
	p.stop = stop
	c.note(func() { c.caughtUp[id] = false })
	go func() {
		for lines := bufio.NewScanner(said); lines.Scan(); {
			text, n := lines.Text(), 0
			if _, err := fmt.Sscanf(text, saysCommitted+" %d", &n); err == nil {
				c.note(func() { c.committed += n })
			}
			if _, err := fmt.Sscanf(text, saysLeftOut+" %d", &n); err == nil {
				c.note(func() { c.leftOut += n })
			}
			if text == saysCaughtUp {
				c.note(func() { c.caughtUp[id] = true })
			}
			if text == saysDone {
				c.note(func() { c.done = true })
			}
		}
		p.done <- cmd.Wait()
	}()
	c.senders[id] = p
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
}

// note makes a change and wakes the waiters.
func (c *campaign) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.more)
	c.more = make(chan struct{})
}

// await waits until ok returns true.
func (c *campaign) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(patience)
	for {
		c.mu.Lock()
		done, more, committed := ok(), c.more, c.committed
		c.mu.Unlock()
		if done {
			return
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("waited %s for %s; %d reports are committed%s", patience, what, committed, c.ends())
		}
	}
}

func (c *campaign) awaitCommitted(t *testing.T, n int) {
	t.Helper()
	c.await(t, fmt.Sprintf("%d committed reports", n), func() bool { return c.committed >= n })
}

// killSupervisor kills a replica with SIGKILL and restarts it at once.
func (c *campaign) killSupervisor(t *testing.T, leading bool) {
	t.Helper()
	i := c.AwaitLeader(t)
	if !leading {
		i = (i + 1) % len(c.sups)
	}
	c.sups[i].kill(t)
	c.startSupervisor(t, i)
}

// killSender kills a sender and restarts it. It first waits until the reports of earlier runs are committed: after too
// many restarts they would be sent under new IDs, and the test could not tell them from new reports.
func (c *campaign) killSender(t *testing.T, id fault.NodeID) {
	t.Helper()
	c.await(t, string(id)+" to catch up", func() bool { return c.caughtUp[id] })
	c.senders[id].kill(t)
	c.startSender(t, id)
}

// stopSenders stops the senders and waits until all their reports are committed.
func (c *campaign) stopSenders(t *testing.T) {
	t.Helper()
	for _, p := range c.senders {
		if err := p.stop.Close(); err != nil {
			t.Fatal(err)
		}
	}
	timeout := time.After(patience)
	for id, p := range c.senders {
		select {
		case err := <-p.done:
			if err != nil {
				t.Fatalf("sender of %s: %v%s", id, err, c.ends())
			}
		case <-timeout:
			t.Fatalf("sender of %s is not done after %s%s", id, patience, c.ends())
		}
	}
}

// ends returns the ends of the senders' logs.
func (c *campaign) ends() string {
	var b strings.Builder
	paths, _ := filepath.Glob(filepath.Join(c.dir, "n*.log"))
	for _, p := range paths {
		text, _ := os.ReadFile(p)
		fmt.Fprintf(&b, "\n%s: %s", filepath.Base(p), text[max(0, len(text)-1000):])
	}
	return b.String()
}

// reports can be larger, for a run of some minutes: go test ./internal/campaign -run EveryReportOnce -reports 200000.
var reports = flag.Int("reports", 20000, "how many reports TestEveryReportOnce has delivered")

// TestEveryReportOnce is the campaign: tens of thousands of reports pass a network that loses a fifth of its packets,
// damages one in a hundred, duplicates and reorders, while senders and supervisors are killed with SIGKILL. No report
// is lost, accepted twice or altered.
func TestEveryReportOnce(t *testing.T) {
	t.Parallel()
	total := *reports
	if testing.Short() {
		total = 5000
	}
	c := newCampaign(t, total)
	c.AwaitLeader(t)
	c.set(t, bad)
	begin := time.Now()
	for id := range c.orders {
		c.startSender(t, id)
	}
	nodes := []fault.NodeID{"n0-0-0", "n1-0-0", "n0-1-0", "n1-1-0"}
	const rounds = 12
	for i := range rounds {
		c.awaitCommitted(t, total*(i+1)/(rounds+2))
		if i%2 == 0 {
			c.killSupervisor(t, i%4 == 0)
		} else {
			c.killSender(t, nodes[i/2%len(nodes)])
			c.killSender(t, nodes[(i/2+1)%len(nodes)])
		}
	}
	c.awaitCommitted(t, total*(rounds+1)/(rounds+2))
	c.set(t, udplink.Faults{})
	c.stopSenders(t)
	took := time.Since(begin)
	for i := range c.sups {
		c.sups[i].kill(t) // acknowledged reports survive the kill
	}
	n := c.check(t, total)
	t.Logf("%d reports in %s: %.0f a second", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
}

// audit reads the supervisors' logs.
func (c *campaign) audit(t *testing.T) *account.Audit {
	t.Helper()
	a := account.NewAudit()
	logs, err := filepath.Glob(filepath.Join(c.dir, "s?.*.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range logs {
		if err := a.Read(path); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// check compares the made and kept reports with the accepted ones, and returns the number of accepted ones.
func (c *campaign) check(t *testing.T, total int) int {
	t.Helper()
	a := c.audit(t)
	accepted := a.Accepted()
	made, kept := map[string]string{}, 0
	for id := range c.orders {
		j, err := readJournal(journalPath(c.orders[id].Dir))
		if err != nil {
			t.Fatal(err)
		}
		for n := range j.kept {
			kept++
			if len(accepted[j.ids[n]]) == 0 {
				t.Errorf("%s, number %d of %s, was kept and never accepted", j.ids[n], n, id)
			}
		}
		maps.Copy(made, j.made)
	}
	for id, contents := range accepted {
		if len(contents) > 1 {
			t.Errorf("%s was accepted %d times", id, len(contents))
		}
		if made[id] != contents[0] {
			t.Errorf("%s was accepted as %s, made as %q", id, contents[0], made[id])
		}
	}
	if kept < total {
		t.Errorf("%d reports were kept, want %d", kept, total)
	}
	c.checkNetwork(t, a)
	t.Logf("made %d, kept %d, accepted %d, in %d terms; %d packets were damaged, refused %v", len(made), kept, len(accepted), a.Terms(),
		a.Damaged, a.Refusals)
	return len(accepted)
}

// checkNetwork checks that the network was as bad as configured, and that the supervisors mistook no damaged packet for
// a forgery.
func (c *campaign) checkNetwork(t *testing.T, a *account.Audit) {
	t.Helper()
	for i, l := range c.lines {
		for _, d := range []netfaults.Direction{netfaults.ToTarget, netfaults.FromTarget} {
			n := l.Counts(d)
			t.Logf("%s, %s: %+v", c.Configs[i].ID, d, n)
			if n.Corrupted == 0 || n.Doubled == 0 || n.Overtaken == 0 || n.Lost == 0 {
				t.Errorf("%s, %s: the network was too good: %+v", c.Configs[i].ID, d, n)
			}
		}
	}
	if a.Damaged == 0 {
		t.Error("no supervisor has met damage")
	}
	for class, n := range a.Refusals {
		if class == "signature" || class == "role" || class == "field" {
			t.Errorf("%d packets were refused as %s: nobody has forged any", n, class)
		}
	}
}
