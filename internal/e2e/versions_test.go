package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/previous"
)

// newer lists the configuration keys of version N that version N-1 refuses. An operator who upgrades still has the old
// files; here version N writes them. Those of the 2x2x1 torus name ends of links in Z, which only version N keeps for
// nodes that may join.
var newer = []string{}

// previousConfig writes a configuration as version N-1 knows it, and returns the new file's name.
func previousConfig(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if b, err = yaml.Marshal(strip(doc)); err != nil {
		t.Fatal(err)
	}
	path += ".previous"
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func strip(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range newer {
			delete(v, key)
		}
		for key, child := range v {
			v[key] = strip(child)
		}
	case []any:
		for i, child := range v {
			v[i] = strip(child)
		}
	}
	return v
}

// logged waits until the log of a node's DNP half has more lines with a text than before, and returns their number.
func (t trial) logged(node, text string, before int) (lines int) {
	t.Helper()
	return t.loggedWithin(patience, node, text, before)
}

// loggedWithin is logged with another bound.
func (t trial) loggedWithin(bound time.Duration, node, text string, before int) (lines int) {
	t.Helper()
	path := filepath.Join(t.Cluster.Dir(), "nodes", node, "dnp.log")
	for end := time.Now().Add(bound); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if lines = strings.Count(string(b), text); err == nil && lines > before {
			return lines
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %d lines with %q, want more than %d: %v", path, lines, text, before, err)
		}
	}
}

// takesOrders has nodes of both versions carry out the leader's orders of all kinds but procedures. Of mapping, each
// stage has one mapper: of N in the even ones, of N-1 in the odd ones.
func (t trial) takesOrders(stage int) {
	t.Helper()
	t.takesMasks()
	t.until("a diagnosis of 4 nodes, none silent", func() bool { // a node that was too late for one diagnosis answers the next
		r := t.diagnose(&lofamov1.DiagnoseRequest{}, nil)
		return r.GetNodes() == 4 && len(r.GetSilent()) == 0
	})
	t.takesPeers()
	t.takesActs()
	if stage%2 == 0 {
		t.takesMapping("n0-0-0", "n0-1-0", "n1-0-0")
	} else {
		t.takesMapping("n0-1-0", "n0-0-0", "n1-1-0")
	}
}

// takesPeers lets a spare of each version take over the place of a node, and gives the places back. The two nodes that
// keep their places, one of each version, get the spares as peers.
func (t trial) takesPeers() {
	t.Helper()
	const word = "peers by order"
	c := operator(t.T, t.Lab)
	swap := map[string]string{"n1-1-0": "spare-0", "n1-0-0": "spare-1"}
	stay := []string{"n0-0-0", "n0-1-0"} // of N-1, of N
	for range 2 {                        // there and back
		before := map[string]int{}
		for _, n := range stay {
			before[n] = t.logged(n, word, -1)
		}
		top, err := c.GetTopology(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]*lofamov1.TopologyNode{}
		for _, n := range top.GetNodes() {
			at[n.GetId()] = n
		}
		for a, b := range swap {
			at[a].Coord, at[b].Coord = at[b].GetCoord(), at[a].GetCoord()
		}
		if _, err := c.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: top, IfRevision: top.GetRevision()}); err != nil {
			t.Fatal(err)
		}
		for _, n := range stay {
			t.logged(n, word, before[n])
		}
		t.settled()
	}
}

// raise is a policy that lets a neighbour of a hot node notify all jobs.
const raise = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: raise}
spec:
  mode: enforce
  match: fault.component == "temperature" && fault.state == "FAILED"
  steps:
  - {name: raise, executor: eureka, parameters: {text: hot}}
`

// takesActs has a node of each version act: of the two hot nodes' neighbours that are well, each has one.
func (t trial) takesActs() {
	t.Helper()
	c := operator(t.T, t.Lab)
	raisedBy := map[string]string{"n1-1-0": "n0-1-0", "n1-0-0": "n0-0-0"} // of N, of N-1
	acted := func(hot string) (done int) {
		list, err := c.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.GetResponses() {
			if r.GetNode() == hot && r.GetState() == lofamov1.ResponseState_RESPONSE_DONE && strings.Contains(r.String(), "by "+raisedBy[hot]) {
				done++
			}
		}
		return done
	}
	before := map[string]int{}
	for hot := range raisedBy {
		before[hot] = acted(hot)
		t.inject(hot, sensor("temperature", 110))
	}
	for hot := range raisedBy {
		t.becomes(hot, "temperature", failed)
		t.until("a neighbour of "+hot+" acts", func() bool { return acted(hot) > before[hot] })
	}
	if err := t.Cluster.HealAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.settled()
}

// takesMapping takes a node off every rail, and has one of its neighbours map it.
func (t trial) takesMapping(lost string, neighbours ...string) {
	t.Helper()
	t.agentMasks(lost, "--reason", "a test", "--force")
	t.inject(lost, simple(cluster.CutService))
	t.becomes(lost, "node", unknown)
	t.until(lost+" is mapped", func() bool {
		dnp := t.component(t.node(lost), "dnp")
		return slices.ContainsFunc(neighbours, func(n string) bool { return restsOn(dnp, "MAPPED", n+"/dnp", lofamov1.Path_PATH_UNSPECIFIED) })
	})
	t.agentMasks(lost, "--unmask")
	t.heal(lost)
}

// agentMasks changes the own mask of all links of a node.
func (t trial) agentMasks(node string, args ...string) {
	t.Helper()
	if out, err := t.agentOn(node, append([]string{"mask", "X+", "X-", "Y+", "Y-"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("mask of %s: %v\n%s", node, err, out)
	}
}

// configurationBound bounds the wait for a torus configuration. Each change of a stage doubles the leader's pause between
// two of them, up to a minute.
const configurationBound = time.Minute + patience

// takesMasks has the leader set and restore the masks of both ends of a link. The torus configuration follows from them.
func (t trial) takesMasks() {
	t.Helper()
	const word, told = "channel mask: ", "places absent, 2 nodes with masks"
	nodes := []string{"n0-0-0", "n0-1-0"} // of N-1, of N
	c, err := t.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, masked := range []bool{true, false} {
		masks, configurations := map[string]int{}, map[string]int{}
		for _, n := range nodes {
			masks[n], configurations[n] = t.logged(n, word, -1), t.logged(n, told, -1)
		}
		req := &lofamov1.SetMaskRequest{Links: []*lofamov1.LinkName{{Node: nodes[0], Direction: "Y+"}}, Masked: masked, Reason: "a test"}
		if _, err := c.SetMask(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			t.logged(n, word, masks[n])
			if masked { // the leader may pause for long before it sends the next one
				t.loggedWithin(configurationBound, n, told, configurations[n])
			}
		}
	}
}

// quick takes away the limits of responses that would make the tests wait.
func quick(cfg *config.Supervisor) {
	r := &cfg.Responses
	r.Grace, r.StormDelay, r.Cooldown = 0, 0, 0
	r.MaxNodes, r.MaxPercent, r.MaxPerDomain, r.MaxPerPlane, r.Rate = 100, 100, 100, 100, 1000
}

// raises allows a node to notify jobs for responses.
func raises(cfg *config.Agent) { cfg.Responses.Eureka = true }

// TestVersionsMixed: row 19. A cluster of version N-1 is upgraded replica by replica, and then one half of one node. At
// every stage the verdicts are the same.
func TestVersionsMixed(t *testing.T) {
	old := previous.Build(t, "../..", t.TempDir(), "lofamo-agent", "lofamo-supervisor") // before others run beside it
	t.Parallel()
	var mu sync.Mutex
	isOld := map[string]bool{"sup-0": true, "sup-1": true, "sup-2": true, "n0-0-0": true, "n1-1-0": true, "spare-0": true}
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Spares: 2, Periods: patient(), Supervisor: quick,
		Agent: raises, Command: func(member string, argv []string) []string {
			mu.Lock()
			defer mu.Unlock()
			if isOld[member] {
				argv = slices.Clone(argv)
				argv[0] = filepath.Join(old, filepath.Base(argv[0]))
				i := slices.Index(argv, "--config") + 1
				argv[i] = previousConfig(t, argv[i])
			}
			return argv
		}})
	if answer, err := operator(t, l).ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: raise}); err != nil {
		t.Fatalf("apply the policy: %v: %v", err, answer)
	}
	stages := 0
	stage := func(name string) {
		try(t, l, name, func(t trial) {
			t.takesOrders(stages)
			stages++
			t = begin(t.T, l)
			for _, n := range []string{"n0-0-0", "n0-1-0"} { // of N-1, of N
				t.inject(n, simple(cluster.KillHost))
				t.becomes(n, "host", failed)
				t.is(n, sick, lofamov1.Cause_HOST)
			}
			t.neverFailed()
			t.othersWereSpared("n0-0-0", "n0-1-0")
		})
	}
	stage("supervisors N-1, nodes mixed")
	for i, s := range l.Cluster.Info().Supervisors {
		mu.Lock()
		isOld[s.ID] = false
		mu.Unlock()
		if err := l.Cluster.KillSupervisor(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if err := l.Cluster.StartSupervisor(s.ID); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			stage(s.ID + " upgraded")
		}
	}
	stage("supervisors N, nodes mixed")
	try(t, l, "procedure of a supervisor N through nodes of both versions", func(t trial) {
		t.clears(4)
	})
	mu.Lock()
	isOld["n0-0-0"] = false
	mu.Unlock()
	stage("the next start of n0-0-0's host half is N") // after its death in this stage
	stage("n0-0-0's host half N, its DNP half N-1")
}
