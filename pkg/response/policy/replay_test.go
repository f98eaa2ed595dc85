package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var start = time.Unix(1_800_000_000, 0).UTC()

func defaultPolicies(t *testing.T) []*response.Policy {
	t.Helper()
	docs, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	return Policies(docs)
}

func options(t *testing.T, dims grid.Dims) ReplayOptions {
	t.Helper()
	o := ReplayOptions{Config: response.Default(), Policies: defaultPolicies(t), Topology: response.TopologyChanged{Dims: dims},
		Supervisors: []response.SupervisorInfo{{ID: "s1", Alive: true}}}
	for rank := range dims.Nodes() {
		at := dims.At(rank)
		o.Topology.Nodes = append(o.Topology.Nodes, response.NodeInfo{ID: fault.DefaultNodeID(at), Coord: at,
			Labels: map[string]string{"rack": fmt.Sprintf("r%d", at.X)}})
	}
	return o
}

func change(at time.Duration, node fault.NodeID, c fault.Component, s fault.State) Recorded {
	f := response.Fault{
		Node: node, Component: c, State: s, Cause: c.Cause(), Since: start.Add(at), Platform: fault.PlatformDPU,
		Evidence: response.Evidence{At: start.Add(at), Kind: fault.KindWatchdog, Witnesses: []string{string(node) + "/dnp", "supervisor/s1"}},
	}
	if s == fault.Normal {
		f.Cause = fault.CauseNone
	}
	return Recorded{start.Add(at), response.FaultChanged{Fault: f}}
}

// TestReplayTables plays testdata/replay/*.txt: "run [enforce] [approve=NAME,...] DIMS", then "TIME NODE COMPONENT STATE" lines, and
// the expected table.
func TestReplayTables(t *testing.T) {
	golden.Files(t, "testdata/replay/*.txt", func(t *testing.T, text string) string {
		var out []string
		for part := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n====\n") {
			in, _, _ := strings.Cut(part, "\n----")
			r, err := Replay(parseRecording(t, in))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, in+"\n----\n"+strings.TrimSuffix(r.Table(), "\n"))
		}
		return strings.Join(out, "\n====\n") + "\n"
	})
}

func parseRecording(t *testing.T, text string) ([]Recorded, ReplayOptions) {
	t.Helper()
	var events []Recorded
	var o ReplayOptions
	for line := range strings.SplitSeq(text, "\n") {
		line, _, _ := strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "run":
			dims, err := grid.ParseDims(words[len(words)-1])
			if err != nil {
				t.Fatal(err)
			}
			o = options(t, dims)
			for _, w := range words[1 : len(words)-1] {
				names, approve := strings.CutPrefix(w, "approve=")
				o.Enforce = o.Enforce || w == "enforce"
				if approve {
					o.Approve = strings.Split(names, ",")
				}
			}
		default:
			at, err := time.ParseDuration(words[0])
			if err != nil {
				t.Fatal(err)
			}
			c, err := fault.ParseComponent(words[2])
			if err != nil {
				t.Fatal(err)
			}
			s, err := fault.ParseState(words[3])
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, change(at, fault.NodeID(words[1]), c, s))
		}
	}
	return events, o
}

// TestReplayIsDeterministic checks that the same recording gives the same report, in any order of its events.
func TestReplayIsDeterministic(t *testing.T) {
	o := options(t, grid.Dims{X: 4, Y: 4, Z: 4})
	o.Enforce = true
	var events, backwards []Recorded
	for i, n := range o.Topology.Nodes[:20] {
		events = append(events, change(time.Duration(i)*time.Minute, n.ID, fault.ComponentMemory, fault.Failed))
	}
	for i := range events {
		backwards = append(backwards, events[len(events)-1-i])
	}
	a, err := Replay(events, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Replay(backwards, o)
	if err != nil {
		t.Fatal(err)
	}
	if a.Table() != b.Table() || len(a.Decisions) < 20 {
		t.Errorf("%s\nand then\n%s", a.Table(), b.Table())
	}
	if a.Most == 0 || a.Most > 3 {
		t.Errorf("%d nodes under response at once: want 1 to 3, 5%% of 64", a.Most)
	}
}

func TestReplayRefusesInvalidInput(t *testing.T) {
	if _, err := Replay(nil, ReplayOptions{Config: response.Default()}); err == nil {
		t.Error("no events, no error")
	}
	if _, err := Replay([]Recorded{{start, response.Tick{}}}, ReplayOptions{}); err == nil {
		t.Error("limits that allow nothing, and no error")
	}
}

// TestReplayAssumesKernelDead: recordings do not say whether a kernel died, so a policy that asks for that acts only on the assumption.
func TestReplayAssumesKernelDead(t *testing.T) {
	docs, err := Parse(policyWith(`fault.component == "host" && fault.kernelDead == "yes"`))
	if err != nil {
		t.Fatal(err)
	}
	for assumed, want := range map[fault.KernelDead]int{0: 0, fault.KernelIsAlive: 0, fault.KernelIsDead: 1} {
		o := options(t, grid.Dims{X: 2, Y: 2, Z: 2})
		o.Policies, o.KernelDead = Policies(docs), assumed
		r, err := Replay([]Recorded{change(0, "n1-0-0", fault.ComponentHost, fault.Failed), change(time.Second, "n0-0-0", fault.ComponentMemory,
			fault.Failed)}, o)
		if err != nil {
			t.Fatal(err)
		}
		proposed := 0
		for _, d := range r.Decisions {
			if d.Act == response.Proposes {
				proposed++
			}
		}
		if proposed != want {
			t.Errorf("assumed %q: %d responses, want %d", assumed, proposed, want)
		}
	}
}
