package deaths

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/trial"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestPlanRepeatsAndCoversAllKinds: a seed gives the same rounds again, and every sequence of all kinds has each once.
func TestPlanRepeatsAndCoversAllKinds(t *testing.T) {
	for _, cards := range []bool{false, true} {
		a, b, other := plan(t, 3, cards, ""), plan(t, 3, cards, ""), plan(t, 4, cards, "")
		differs := false
		for range 20 {
			seen := map[string]bool{}
			for range Kinds(cards) {
				s := a.Next()
				if again := b.Next(); !reflect.DeepEqual(s, again) {
					t.Fatalf("%+v and then %+v from one seed", s, again)
				}
				differs = !reflect.DeepEqual(s, other.Next()) || differs
				seen[s.Kind.Name] = true
				if s.Node < 0 || s.Node >= LeastNodes || s.Dark && (!s.Kind.kills() || s.Kind.End == 0) {
					t.Errorf("%+v: want a node of the ring, and a paused supervisor only beside a dead kernel of a host", s)
				}
			}
			if len(seen) != len(Kinds(cards)) {
				t.Errorf("%d kinds of %d in a sequence", len(seen), len(Kinds(cards)))
			}
		}
		if !differs {
			t.Errorf("cards %t: another seed gives the same plan", cards)
		}
	}
}

// plan returns the plan of a seed, of kinds that match only.
func plan(t *testing.T, seed uint64, cards bool, only string) *Plan {
	t.Helper()
	p, err := NewPlan(seed, LeastNodes, cards, regexp.MustCompile(only))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanOfSomeKinds(t *testing.T) {
	p, seen := plan(t, 1, false, "^panic: "), map[string]bool{}
	for range 6 {
		seen[p.Next().Kind.Name] = true
	}
	if want := map[string]bool{"panic: sysrq": true, "panic: null dereference": true, "panic: NMI": true}; !maps.Equal(seen, want) {
		t.Errorf("a plan of panics has %v: want %v", seen, want)
	}
	_, err := NewPlan(1, LeastNodes, false, regexp.MustCompile("earthquake"))
	if err == nil || !strings.Contains(err.Error(), `"earthquake"`) {
		t.Errorf("a plan of no kind: %v: want an error with the expression", err)
	}
}

// TestPlanKillsEveryNode: nodes of larger rings die too.
func TestPlanKillsEveryNode(t *testing.T) {
	p, err := NewPlan(1, MostNodes, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	var died [MostNodes]int
	for range 20 * MostNodes {
		died[p.Next().Node]++
	}
	if slices.Contains(died[:], 0) {
		t.Errorf("deaths by node: %v: want at least one of each", died)
	}
}

// TestTruthOfTwoKernelsAccusesOnlyTheBrokenPart: of nodes with two kernels, the checker accepts FAILED only of the part that a round
// breaks.
func TestTruthOfTwoKernelsAccusesOnlyTheBrokenPart(t *testing.T) {
	may := map[string][]string{
		"host": {"n1-0-0 host"},
		"dnp":  {"n1-0-0 dnp", "n1-0-0 dnp-core", "n1-0-0 link/X+", "n1-0-0 link/X-", "n0-0-0 link/X+", "n2-0-0 link/X-"},
		"node": {"n1-0-0 node", "n1-0-0 host", "n1-0-0 dnp", "n1-0-0 dnp-core", "n1-0-0 link/X+", "n1-0-0 link/X-", "n0-0-0 link/X+",
			"n2-0-0 link/X-"},
		"bus": {"n1-0-0 bus"},
		"":    {},
	}
	fails := map[string]bool{}
	for _, k := range Kinds(true) {
		fails[k.Fails] = true
		truth := trial.NewTruth(grid.Dims{X: LeastNodes, Y: 1, Z: 1}, false)
		if f, ok := k.fault(1); ok {
			truth.Begin(f)
		}
		for i := range LeastNodes {
			for _, component := range []string{"node", "host", "dnp", "dnp-core", "bus", "link/X+", "link/X-", "service-network", "memory"} {
				part := nodeID(i) + " " + component
				if got, want := truth.MayFail(nodeID(i), component), slices.Contains(may[k.Fails], part); got != want {
					t.Errorf("%s: %s may be FAILED: %t, want %t", k.Name, part, got, want)
				}
			}
		}
		if k.kills() != (k.Fails != "" && k.Fails != "bus" && !strings.HasPrefix(k.Name, "control: ")) {
			t.Errorf("%s: a kernel dies: %t", k.Name, k.kills())
		}
		if k.Fails != "" && k.cause() == lofamov1.Cause_CAUSE_UNSPECIFIED {
			t.Errorf("%s: no cause", k.Name)
		}
		if k.on == onCard && (k.End != 0 || k.Words) {
			t.Errorf("%s: want no end of a boot and no last words: the host lives", k.Name)
		}
	}
	if len(fails) != len(may) {
		t.Errorf("kinds break %v: want each of %v", fails, may)
	}
}

func TestOnlyTheRightNameCounts(t *testing.T) {
	sysrq := Kinds(false)[0]
	for _, tc := range []struct {
		end    lofamov1.BootEnd
		detail string
		want   bool
	}{
		{lofamov1.BootEnd_BOOT_PANIC, "Kernel panic - not syncing: sysrq triggered crash", true},
		{lofamov1.BootEnd_BOOT_PANIC, "Kernel panic - not syncing: Fatal exception", false},
		{lofamov1.BootEnd_BOOT_POWER_LOSS, "", false},
		{lofamov1.BootEnd_BOOT_WATCHDOG, "watchdog0 (i6300ESB)", false},
	} {
		if got := sysrq.named(&lofamov1.LastBoot{End: tc.end, Detail: tc.detail}); got != tc.want {
			t.Errorf("%s %q: named rightly: %v", tc.end, tc.detail, got)
		}
	}
}

// TestReportsAreBalanced: of the reports that nodes kept, those that the supervisor did not commit are lost, unless they were younger than
// the spool's delay when the node died.
func TestReportsAreBalanced(t *testing.T) {
	r := newReports(t.TempDir(), "n0", "n1", "n2")
	kept := func(machine, id string) {
		r.agent(machine, fmt.Appendf(nil, `{"level":"DEBUG","msg":"reports kept","reports":["%s"]}`+"\r\n", id))
	}
	r.agent("n0", []byte("half started\n"))
	r.agent("n0", []byte(`{"msg":"reports kept","reports":["cut off`))
	kept("n0", "n0-0-0/host@1#1")
	kept("n0", "n0-0-0/host@1#2")
	kept("n1", "n1-0-0/host@1#1")
	kept("n1", "n1-0-0/host@1#2")
	kept("n2", "n2-0-0/host@1#1")
	r.agent("n2", []byte(`{"msg":"reports replaced","reports":["n2-0-0/host@1#1"]}`))
	for _, id := range []string{"n0-0-0/host@1#1", "n1-0-0/host@1#1", "n1-0-0/host@1#1"} {
		r.supervisor(fmt.Appendf(nil, `{"msg":"report taken","term":1,"report":"%s","content":"c"}`, id))
		r.supervisor(fmt.Appendf(nil, `{"msg":"reports committed","term":1,"reports":["%s"]}`, id))
	}
	r.dies("n0", time.Now().Add(2*notOnDisk))
	r.dies("n1", time.Now().Add(notOnDisk/2))
	got, err := r.count()
	want := Reports{Kept: 5, Accepted: 2, Replaced: 1, Cut: 1, Lost: []string{"n0-0-0/host@1#2"},
		Doubled: []string{"n1-0-0/host@1#1, 2 times"},
		waiting: map[string]int{"n0": 1}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
	if seen := r.more.since(0); len(seen) != 5 || seen[4].of != "n2" {
		t.Errorf("%d notices of kept reports, want 5 and the last of n2", len(seen))
	}
}

func TestRecordSurvivesItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	if lines, err := Read(path); err != nil || lines != nil {
		t.Fatalf("a missing record: %v, %v", lines, err)
	}
	want := []Line{{Begin: &Begin{Campaign: "c", Seed: 1, Bound: time.Second}}, {Round: &Round{Campaign: "c", Number: 1, Right: true}},
		{End: &End{Campaign: "c", Took: time.Minute}}}
	for _, l := range want {
		if err := Append(path, l); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(path)
	if err != nil || !slices.EqualFunc(got, want, func(a, b Line) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
	for _, bad := range []string{"{", "{}"} {
		if err := os.WriteFile(path, []byte(bad+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// TestDebuggerChangesKernelOnly plays QEMU's part of the debugger's protocol.
func TestDebuggerChangesKernelOnly(t *testing.T) {
	for _, tc := range []struct {
		name string
		cs   byte
		act  func(*debugger, processor) error
		want []string
		err  error
	}{
		{"loop with interrupts", 0x10, spin(true), []string{"?", "g", "M1122334455667788,2:ebfe", "D"}, nil},
		{"loop without interrupts", 0x10, spin(false), []string{"?", "g", registers(0x1122334455667788, 0x46, 0x10),
			"M1122334455667788,2:ebfe", "D"}, nil},
		{"null", 0x10, jumpToNull, []string{"?", "g", registers(0, 0x246, 0x10), "D"}, nil},
		{"user mode", 0x33, jumpToNull, []string{"?", "g", "D"}, errUnfit},
	} {
		path, got := fakeDebugger(t, tc.cs)
		if err := debugOnce(t.Context(), path, tc.act); !errors.Is(err, tc.err) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.err)
		}
		if asked := <-got; !slices.Equal(asked, tc.want) {
			t.Errorf("%s: asked %q, want %q", tc.name, asked, tc.want)
		}
	}
}
