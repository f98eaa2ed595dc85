package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/order"
)

// buildOrderTest builds the programs with the kind of order that only tests have (pkg/order/ordertest), and returns
// their directory.
func buildOrderTest(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-tags", "lofamo_ordertest", "-o", bin+"/", "../../cmd/lofamo-agent",
		"../../cmd/lofamo-supervisor").CombinedOutput(); err != nil {
		t.Fatalf("build with the kind for tests: %v\n%s", err, out)
	}
	return bin
}

// TestNewOrderKindReachesNodes: a kind that only this build knows goes from the leader to the nodes, which validate it,
// store it, bring it into force and answer, over the real channel. A node refuses bad content, keeps the order over a
// restart of its half, and follows a new leader.
func TestNewOrderKindReachesNodes(t *testing.T) {
	bin, dir := buildOrderTest(t), t.TempDir()
	for _, sub := range []string{"want", "marked", "said"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LOFAMO_ORDERTEST_DIR", dir)
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: patient(), Command: func(_ string, argv []string) []string {
		argv = slices.Clone(argv)
		argv[0] = filepath.Join(bin, filepath.Base(argv[0]))
		return argv
	}})
	nodes := []string{"n0-0-0", "n1-0-0", "n0-1-0", "n1-1-0"}
	want := func(t testing.TB, node, word string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "want", node), []byte(word), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// awaits waits until a file contains a text.
	awaits := func(t testing.TB, sub, node, text string) {
		t.Helper()
		var got []byte
		for end := time.Now().Add(settling); ; time.Sleep(20 * time.Millisecond) {
			got, _ = os.ReadFile(filepath.Join(dir, sub, node))
			if strings.Contains(string(got), text) && len(got) > 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s of %s: %q, want %q", sub, node, got, text)
			}
		}
	}
	holds := func(t testing.TB, node, word string) {
		t.Helper()
		awaits(t, "marked", node, word)
		awaits(t, "said", node, fmt.Sprintf("%x ", order.Sum(order.Content(node+":"+word))))
	}
	for _, n := range nodes {
		want(t, n, "blue")
	}
	for _, n := range nodes {
		holds(t, n, "blue")
	}

	want(t, "n0-0-0", "no.word")
	awaits(t, "said", "n0-0-0", "want a word without blanks")
	awaits(t, "marked", "n0-0-0", "blue")
	want(t, "n0-0-0", "red")
	holds(t, "n0-0-0", "red")

	try(t, l, "a half that starts again applies its stored order", func(t trial) {
		if err := os.Remove(filepath.Join(dir, "marked", "n1-1-0")); err != nil {
			t.Fatal(err)
		}
		t.inject("n1-1-0", simple(cluster.KillDNP))
		if err := t.Cluster.HealAll(t.Context()); err != nil { // which starts it
			t.Fatal(err)
		}
		holds(t, "n1-1-0", "blue")
	})

	try(t, l, "the next leader goes on", func(t trial) {
		leader := t.leader()
		if err := t.Cluster.KillSupervisor(t.Context(), leader); err != nil {
			t.Fatal(err)
		}
		want(t, "n0-1-0", "green")
		holds(t, "n0-1-0", "green")
		if err := t.Cluster.StartSupervisor(leader); err != nil {
			t.Fatal(err)
		}
	})
}
