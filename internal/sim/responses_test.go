package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Policies that would take every bad node out of use: only the engine restrains them.
const eager = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: dead}
spec:
  mode: enforce
  match: fault.component == "node" && (fault.state == "FAILED" || fault.state == "UNKNOWN")
  steps:
  - {name: tell, executor: kubernetes.condition, parameters: {type: LofamoNode}, timeout: 5s, retries: 2}
  - {name: cordon, executor: kubernetes.cordon, timeout: 5s, retries: 2}
  - {name: drain, executor: kubernetes.drain, timeout: 5s, retries: 2}
  undo: {onRecovery: true, after: 1s}
---
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: memory}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: taint, executor: kubernetes.taint, parameters: {key: lofamo.io/memory, effect: NoSchedule}, timeout: 5s, retries: 2}
  undo: {onRecovery: true, after: 1s}
`

// responseLimits are limits for short tests: of 64 nodes 6 may be under response, and 13 bad nodes are a storm.
func responseLimits() response.Config {
	c := response.Default()
	c.MaxNodes, c.MaxPercent, c.MaxPerPlane, c.Rate = 10, 10, 2, 1000
	c.BreakerPercent, c.BreakerWindow = 20, 5*time.Minute
	c.Grace, c.StormDelay, c.Cooldown = time.Second, 500*time.Millisecond, 0
	c.LookAgain, c.RetryAfter, c.ResultTime = 200*time.Millisecond, 200*time.Millisecond, time.Second
	return c
}

// stormStory is one storm: a fault on a number of nodes.
type stormStory struct {
	name      string
	percent   int
	slowly    bool   // one after the other
	bad, good string // the commands that make a node bad, and that mend it
	all, mend string // alternatively, the command for all at once, and its repair
	falsely   bool   // the nodes live, and no response may end work there
}

var stormStories = func() (out []stormStory) {
	dead := stormStory{bad: "kill %s node", good: "start %s node"}
	memory := stormStory{bad: "sensor %s memory FAILED", good: "sensor %s memory NORMAL", falsely: true}
	for _, percent := range []int{10, 30, 60, 100} {
		for _, of := range []struct {
			name   string
			story  stormStory
			slowly bool
		}{{"%d%% die at once", dead, false}, {"%d%% die one by one", dead, true}, {"%d%% complain at once", memory, false},
			{"%d%% complain one by one", memory, true}} {
			s := of.story
			s.name, s.percent, s.slowly = fmt.Sprintf(of.name, percent), percent, of.slowly
			out = append(out, s)
		}
	}
	return append(out, stormStory{name: "100% silent", percent: 100, all: "cut-supervisor", mend: "mend-supervisor", falsely: true})
}()

// TestStormsOfResponses: 10, 30, 60 or 100 % of the nodes go bad, truly or falsely, at once or one after the other, and
// leaders die and are stopped meanwhile. In all cases, the number of nodes under response stays within the limits, no
// action runs twice or without its intent in the store, and no action begins while the breaker is open. A storm opens
// the breaker. Once all nodes are good again, and a person has closed the breaker, everything is undone.
func TestStormsOfResponses(t *testing.T) {
	tell := make([]string, len(stormStories))
	few := testing.Short()
	t.Cleanup(func() { t.Logf("what was done to 64 nodes, and why no more:\n%s", strings.Join(tell, "\n")) })
	for i, story := range stormStories {
		if few && i != 13 { // 100 % die one by one
			continue
		}
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			tell[i] = fmt.Sprintf("%-28s %s", story.name, playStorm(t, story))
		})
	}
}

// playStorm plays one, and describes the actions.
func playStorm(t *testing.T, story stormStory) string {
	docs, err := policy.Parse([]byte(eager))
	if err != nil {
		t.Fatal(err)
	}
	periods, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(uint64(story.percent), 6))
	w, err := New(Config{
		Dims: grid.Dims{X: 4, Y: 4, Z: 4}, Periods: periods, Seed: uint64(story.percent), Responses: &Responses{Limits: responseLimits(),
			Policies: policy.Policies(docs)},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{World: w, periods: periods}
	do := func(line string) {
		t.Helper()
		if err := r.do(strings.Fields(line)); err != nil || len(w.broken) > 0 {
			t.Fatalf("%s: %v\n%s", line, err, strings.Join(w.broken, "\n"))
		}
	}
	do("settle")
	do("run 30s") // a supervisor that has just started counts no SICK node
	bad := w.rnd.Perm(len(w.nodes))[:max(1, len(w.nodes)*story.percent/100)]
	for i, rank := range bad {
		if story.all != "" {
			break
		}
		do(fmt.Sprintf(story.bad, w.nodes[rank].topo.Coord))
		if story.slowly {
			do(fmt.Sprintf("run %dms", 200+rnd.IntN(1200)))
		}
		if i == len(bad)/3 || i == len(bad)/2 {
			do("kill-supervisor leader")
		}
		if i == len(bad)*2/3 {
			do("stop-supervisor leader") // a leader that resumes late
		}
		if i%5 == 4 {
			mendSupervisors(do)
		}
	}
	if story.all != "" {
		do(story.all)
	}
	do("run 10s")
	mendSupervisors(do)
	do("run 20s")
	s := w.responses
	storm := len(bad) > 64/5
	if got := !s.opened.IsZero(); got != storm {
		t.Errorf("the breaker has opened: %t, want %t: %s", got, storm, s.breaker.Detail)
	}
	if ended := s.acts[response.Destroy]; story.falsely && ended > 0 {
		t.Errorf("work was ended %d times on nodes that live", ended)
	}
	if !storm && !story.falsely && s.acts[response.Reduce] == 0 {
		t.Error("nothing was done for nodes that died: the test shows nothing")
	}
	said := fmt.Sprintf("%d nodes at once at most\n%s", s.most, s.table())
	for _, rank := range bad {
		if story.all == "" {
			do(fmt.Sprintf(story.good, w.nodes[rank].topo.Coord))
		}
	}
	if story.all != "" {
		do(story.mend)
	}
	do("settle 60s")
	if s.breaker.Open {
		if err := w.ask(response.Asked{Subject: "alice", Verb: response.CloseBreaker, Reason: "it is over"}); err != nil {
			t.Fatal(err)
		}
	}
	if !w.RunUntil(5*time.Minute, func() bool { return len(s.done) == 0 }) {
		t.Errorf("not put back on %v\n%s", slices.Sorted(maps.Keys(s.done)), strings.Join(w.broken, "\n"))
	}
	return said
}

// mendSupervisors has all of them run.
func mendSupervisors(do func(string)) {
	for i := range 3 {
		do(fmt.Sprint("start-supervisor s", i))
		do(fmt.Sprint("continue-supervisor s", i))
	}
}
