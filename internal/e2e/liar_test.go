package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// harsh are policies that act at once on a node with one bad link: actions that may end work, and actions that remove
// capacity.
const harsh = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reset-for-link}
spec:
  mode: enforce
  match: fault.component.startsWith("link/") && fault.state == "FAILED" && fault.cause == "LINK"
  steps:
  - {name: reset, executor: power.reset, parameters: {method: redfish}}
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reset-node}
spec:
  mode: enforce
  match: fault.component == "node" && (fault.state == "FAILED" || fault.state == "SICK" && (fault.cause == "LINK" || fault.cause == "HOST"))
  steps:
  - {name: reset, executor: power.reset, parameters: {method: redfish}}
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: cordon-sick-node}
spec:
  mode: enforce
  match: fault.component == "node" && fault.state == "SICK" && (fault.cause == "LINK" || fault.cause == "HOST")
  steps:
  - {name: cordon, executor: kubernetes.cordon}
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: drain-dead-host}
spec:
  mode: enforce
  match: fault.component == "host" && fault.state == "FAILED"
  steps:
  - {name: drain, executor: slurm.drain, parameters: {reason: host}}
`

// powered is a cluster whose supervisors reset nodes by an executor process and one Redfish service per node.
type powered struct {
	trial
	bmcs map[string]*powertest.Emulator
	// harmed are the healthy nodes whose power was reset.
	harmed map[string]bool
}

// withPower starts a cluster, its executor process and the Redfish services, and puts the harsh policies in force. Of
// the limits on responses, only the witnesses and the breaker have their defaults.
func withPower(t *testing.T, dims string) powered {
	t.Helper()
	address := freeport.Addr(t).String()
	l := clusterOf(t, dims, cluster.Options{Supervisors: 3, Periods: patient(), Supervisor: func(cfg *config.Supervisor) {
		r := &cfg.Responses
		r.Grace, r.StormDelay, r.Cooldown = 0, 0, 0
		r.MaxNodes, r.MaxPercent, r.MaxPerDomain, r.MaxPerPlane, r.Rate = 100, 100, 100, 100, 1000
		r.Executors.Process = &config.ExecutorClient{Address: address}
	}})
	p := powered{begin(t, l), map[string]*powertest.Emulator{}, map[string]bool{}}
	p.runExecutor(address)
	answer, err := operator(t, l).ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: harsh})
	if err != nil {
		t.Fatalf("apply the policies: %v: %v", err, answer)
	}
	return p
}

// runExecutor runs the executor process until the test ends.
func (p powered) runExecutor(address string) {
	p.Helper()
	dir, info := p.TempDir(), p.Cluster.Info()
	ca, err := pki.LoadCA(p.Cluster.PKI("ca.pem"), p.Cluster.PKI("ca.key"))
	if err != nil {
		p.Fatal(err)
	}
	cert, key := filepath.Join(dir, "x.pem"), filepath.Join(dir, "x.key")
	if err := ca.IssueTo(cert, key, pki.Identity{Cluster: info.Cluster, Role: pki.RoleExecutor, Name: "x0"}, []net.IP{freeport.IP().AsSlice()},
		nil); err != nil {
		p.Fatal(err)
	}
	var file strings.Builder
	fmt.Fprintf(&file, "cluster: %s\nlisten: %s\nstateDir: %s\ntls: {ca: %s, cert: %s, key: %s}\npower:\n  enabled: true\n  nodes:\n",
		info.Cluster, address, filepath.Join(dir, "state"), p.Cluster.PKI("ca.pem"), cert, key)
	for _, n := range info.Nodes {
		e := powertest.New(p)
		p.bmcs[string(n.ID)] = e
		fmt.Fprintf(&file, "    %s: {method: redfish, address: %q, system: %s, username: root, passwordFile: %s, caFile: %s}\n",
			n.ID, e.URL, powertest.System, filepath.Join(e.Dir, "password"), filepath.Join(e.Dir, "ca.pem"))
	}
	name := filepath.Join(dir, "executor.yaml")
	if err := os.WriteFile(name, []byte(file.String()), 0o600); err != nil {
		p.Fatal(err)
	}
	program := filepath.Join(binaries, "lofamo-executor")
	if out, err := exec.CommandContext(p.Context(), program, "init", "--config", name).CombinedOutput(); err != nil {
		p.Fatalf("lofamo-executor init: %v\n%s", err, out)
	}
	// Make the ledger older than all attempts. With a new ledger, a person would have to settle an attempt that a change of leader
	// interrupts.
	if err := os.WriteFile(filepath.Join(dir, "state", "created"), []byte("2026-01-01T00:00:00Z"), 0o600); err != nil {
		p.Fatal(err)
	}
	c := exec.CommandContext(context.WithoutCancel(p.Context()), program, "run", "--config", name)
	c.Stdout, c.Stderr = p.Output(), p.Output()
	if err := c.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if err := c.Process.Signal(unix.SIGTERM); err != nil {
			p.Error(err)
		}
		if err := c.Wait(); err != nil {
			p.Errorf("executor process: %v", err)
		}
	})
}

// resets are those that a node's Redfish service carried out.
func (p powered) resets(node string) int { return len(p.bmcs[node].CarriedOut()) }

// liar holds the keys of a node whose halves continue as before. Its reports have the numbers of a half far in the
// future, so that the supervisors take the half's own reports for old ones.
type liar struct {
	id   fault.NodeID
	sign map[fault.Half]*pki.Signer
	// epoch is that of each half as it runs.
	epoch map[fault.Half]fault.Epoch
	seq   fault.Seq
	conn  *net.UDPConn
	to    []netip.AddrPort
}

func (t trial) newLiar(node string) *liar {
	t.Helper()
	st := t.asks(node)
	l := &liar{
		id: fault.NodeID(node), seq: 1 << 40, sign: map[fault.Half]*pki.Signer{},
		epoch: map[fault.Half]fault.Epoch{fault.HalfHost: fault.Epoch(st.Host.Epoch), fault.HalfDNP: fault.Epoch(st.DNP.Epoch)},
	}
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		name := t.Cluster.PKI(node + "-" + h.String())
		s, err := pki.LoadSigner(name+".pem", name+".key")
		if err != nil {
			t.Fatal(err)
		}
		l.sign[h] = s
	}
	var err error
	if l.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.conn.Close() })
	for _, s := range t.Cluster.Info().Supervisors {
		l.to = append(l.to, netip.MustParseAddrPort(s.Report))
	}
	return l
}

// say sends observations to all supervisors, as a report and as a digest of a half.
func (l *liar) say(t *testing.T, h fault.Half, obs ...fault.Observation) {
	t.Helper()
	for _, digest := range []bool{false, true} {
		l.seq++
		r := fault.Report{
			ID: fault.ReportID{Origin: fault.Origin{Node: l.id, Half: h}, Epoch: l.epoch[h], Seq: l.seq}, Digest: digest, Partial: digest,
			Observations: obs, Uptime: time.Hour,
		}
		var status *lofamov1.DeliveryStatus
		if digest {
			status = &lofamov1.DeliveryStatus{State: lofamov1.PathState_MIGRATED, Primary: "eth0>s1"}
		}
		b, err := servicenet.SealReports([]fault.Report{r}, status, l.sign[h], servicenet.SealOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range l.to {
			if _, err := l.conn.WriteToUDPAddrPort(b, to); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// lie is a set of statements that a liar repeats.
type lie struct {
	name string
	// says has the observations of each half, in one report.
	says map[fault.Half][]fault.Observation
	// refused are statements that no half may make: each is a report of the host half.
	refused []fault.Observation
	// node, component, kind: where the map has the accusation, as which evidence; empty: it is refused.
	node, component, kind string
	// disputed: the map must weigh the other end's report against it.
	disputed bool
}

// neighbours are the neighbours of n0-0-0 in a 2x2x2 torus, with their links to that node.
var neighbours = map[fault.NodeID]grid.Direction{"n1-0-0": grid.XMinus, "n0-1-0": grid.YMinus, "n0-0-1": grid.ZMinus}

// lies are those of n0-0-0 about its links and its neighbours, one on top of the other.
func lies() []lie {
	const self = "n0-0-0"
	bad := func(node fault.NodeID, c fault.Component, k fault.Kind) fault.Observation {
		return fault.Observation{Node: node, Component: c, State: fault.Failed, Kind: k, Detail: "a lie"}
	}
	links := func(k fault.Kind) (out []fault.Observation) {
		for d := grid.XPlus; d.Valid(); d++ {
			out = append(out, bad(self, fault.Link(d), k))
		}
		return out
	}
	var hosts, others []fault.Observation
	for node, d := range neighbours {
		for _, c := range []fault.Component{fault.ComponentHost, fault.ComponentMemory, fault.ComponentServiceNetwork} {
			hosts = append(hosts, bad(node, c, fault.KindDescriptor))
		}
		others = append(others, bad(node, fault.Link(d), fault.KindSelf), bad(node, fault.Link(d), fault.KindErrorRatio),
			bad(node, fault.Link(d), fault.KindSilence),
			bad(node, fault.ComponentHost, fault.KindSelf), bad(node, fault.ComponentHost, fault.KindWatchdog),
			bad(node, fault.ComponentNode, fault.KindVotes))
	}
	type by = map[fault.Half][]fault.Observation
	return []lie{
		{"my link X+ FAILED by SELF", by{fault.HalfHost: links(fault.KindSelf)[:1]}, nil, self, "link/X+", "SELF", true},
		{"all my links FAILED by SELF", by{fault.HalfHost: links(fault.KindSelf)}, nil, self, "link/Z+", "SELF", true},
		{"all my links silent", by{fault.HalfHost: links(fault.KindSilence), fault.HalfDNP: links(fault.KindHandshake)}, nil, self, "link/Y+",
			"SILENCE", false},
		{"my neighbours' hosts FAILED by DESCRIPTOR", by{fault.HalfHost: hosts, fault.HalfDNP: hosts}, nil, "n1-0-0", "host",
			"DESCRIPTOR", false},
		{"statements in my neighbours' place", nil, others, "", "", "", false},
	}
}

// TestLiarHarmsNoNeighbour gives a liar both keys of a node, with policies that reset the power of a node with a FAILED
// link. Despite its claims about its links and its neighbours, these stay NORMAL, no step begins on them, their power
// stays on, the breaker stays closed, and the map shows the accuser. The same policies reset the power of a node that
// is really dead.
func TestLiarHarmsNoNeighbour(t *testing.T) {
	t.Parallel()
	const self, dead = "n0-0-0", "n1-1-1"
	p := withPower(t, "2x2x2")
	p.settled()
	l := p.newLiar(self)
	for _, lie := range lies() {
		t.Run(lie.name, func(t *testing.T) {
			p.trial = begin(t, p.Lab)
			p.lied(l, lie)
			p.unharmed(self)
		})
	}
	p.trial = begin(t, p.Lab)
	p.inject(dead, simple(cluster.KillNode))
	p.becomes(dead, "node", failed)
	eventually(t, "the power of the dead node to be reset", func() bool { return p.resets(dead) == 1 })
	p.unharmed(self, dead)
}

// lied repeats a lie until the map shows it, and then for as long as a response would take to begin.
func (p powered) lied(l *liar, what lie) {
	p.Helper()
	const pause, after = 100 * time.Millisecond, 4 * time.Second
	before, start := p.refusedStatements(), time.Now()
	var shown time.Time
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 0; shown.IsZero() || time.Since(shown) < after; i++ {
		for h, obs := range what.says {
			l.say(p.T, h, obs...)
		}
		if len(what.refused) > 0 {
			l.say(p.T, fault.HalfHost, what.refused[i%len(what.refused)])
		}
		if shown.IsZero() && p.shows(l, what, before) {
			shown = time.Now()
			p.Logf("shown after %s", shown.Sub(start).Round(time.Millisecond))
		}
		if shown.IsZero() && time.Since(start) > patience {
			p.Errorf("the map shows nothing of the accusation")
			return
		}
		for node := range neighbours {
			if id := string(node); p.resets(id) > 0 && !p.harmed[id] {
				p.harmed[id] = true
				p.Errorf("the power of healthy %s is reset after %s", id, time.Since(start).Round(10*time.Millisecond))
			}
		}
		<-tick.C
	}
	n := p.node(string(l.id))
	p.Logf("%s is %s, cause %s", n.GetId(), n.GetState(), n.GetCause())
	for _, c := range n.GetComponents() {
		if strings.HasPrefix(c.GetName(), "link/") && c.GetState() != normal {
			p.Logf("%s is %s: %s", c.GetName(), c.GetState(), c.GetReason())
		}
	}
}

// shows reports whether the map names the liar as the observer of its accusations, or the supervisors have refused and
// counted every statement.
func (p powered) shows(l *liar, what lie, before float64) bool {
	if len(what.refused) > 0 {
		return p.refusedStatements() >= before+float64(len(what.refused))
	}
	c := p.component(p.node(what.node), what.component)
	return restsOn(c, what.kind, string(l.id)+"/host", lofamov1.Path_PATH_UNSPECIFIED) &&
		(!what.disputed || c.GetState() == sick && c.GetReason() == "disputed")
}

// refusedStatements sums the refusals of the class field over all supervisors.
func (p powered) refusedStatements() (sum float64) {
	p.Helper()
	for _, s := range p.Cluster.Info().Supervisors {
		sum += scrape(p.T, s.HTTP).refused("field")
	}
	return sum
}

// unharmed checks that since the trial began nothing happened to nodes other than the guilty ones.
func (p powered) unharmed(guilty ...string) {
	p.Helper()
	for _, s := range p.Since(p.mark) {
		// On a busy machine a node may report that it waits for answers of supervisors.
		busy := s.GetTo() != failed && (s.GetComponent() == "service-network" || s.GetCause() == lofamov1.Cause_SERVICE_NETWORK)
		// A bad link shows at both ends until the honest one's next report. Links to a dead node are not at fault
		// themselves.
		_, shared := neighbours[fault.NodeID(s.GetNode())]
		link := strings.HasPrefix(s.GetComponent(), "link/") && (shared || s.GetCause() != lofamov1.Cause_LINK)
		if !slices.Contains(guilty, s.GetNode()) && (s.GetTo() == sick || s.GetTo() == failed) && !busy && !link {
			p.Errorf("a healthy node was accused: %s", s)
		}
	}
	b, err := p.Client.GetBreaker(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	if b.GetOpen() {
		p.Errorf("the circuit breaker is open: %s", b.GetDetail())
	}
	list, err := p.Client.ListResponses(p.Context(), &lofamov1.ListResponsesRequest{})
	if err != nil {
		p.Fatal(err)
	}
	for _, r := range list.GetResponses() {
		for _, s := range r.GetSteps() {
			if s.GetAttempt() == 0 {
				continue
			}
			if slices.Contains(guilty, r.GetNode()) {
				p.Logf("%s began on %s for %s: %s", s.GetExecutor(), r.GetNode(), r.GetComponent(), s.GetDetail())
				continue
			}
			p.Errorf("%s began on healthy %s for %s: %s", s.GetExecutor(), r.GetNode(), r.GetComponent(), s.GetDetail())
		}
	}
	for node := range p.bmcs {
		if n := p.resets(node); n > 0 && !slices.Contains(guilty, node) {
			p.Errorf("the power of healthy %s was reset %d times", node, n)
		}
	}
}
