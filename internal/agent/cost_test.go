package agent

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/config"
)

// TestIdleCost measures what an idle node costs, with real processes: CPU of both halves together,
// and their resident memory. It asserts nothing, takes a while and wants a quiet machine, so it runs
// only where LOFAMO_COST names the agent's program; LOFAMO_COST_DIMS sets the torus.
func TestIdleCost(t *testing.T) {
	program := os.Getenv("LOFAMO_COST")
	if program == "" {
		t.Skip("LOFAMO_COST does not name the agent's program")
	}
	dims := grid.Dims{X: 2, Y: 2, Z: 2}
	if s := os.Getenv("LOFAMO_COST_DIMS"); s != "" {
		var err error
		if dims, err = grid.ParseDims(s); err != nil {
			t.Fatal(err)
		}
	}
	var n *testNet
	var joins []string
	n = newTestNet(t, dims, func(c *config.Agent) {
		if os.Getenv("LOFAMO_COST_GOSSIP") == "" {
			return
		}
		c.Service.GossipListen = freePort(t)
		joins = append(joins, c.Service.GossipListen)
		c.Service.GossipJoin = joins[:1]
		c.Service.GossipKeyFile = filepath.Join(filepath.Dir(c.StateDir), "gossip.key")
		if err := os.WriteFile(c.Service.GossipKeyFile, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	var pids [][2]int
	for rank := range dims.Nodes() {
		cfg := n.cfgs[dims.At(rank)]
		b, err := yaml.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(filepath.Dir(cfg.StateDir), "agent.yaml")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var pair [2]int
		for i, half := range []string{"host", "dnp"} {
			cmd := exec.Command(program, half, "--config", file, "--log-level", "warn", "--scheduling", cmp.Or(os.Getenv("LOFAMO_COST_SCHEDULING"), "prompt"))
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pair[i] = cmd.Process.Pid
			t.Cleanup(func() {
				_ = cmd.Process.Signal(os.Interrupt)
				_ = cmd.Wait()
			})
		}
		pids = append(pids, pair)
	}
	time.Sleep(8 * time.Second)
	const window = 20 * time.Second
	before := make([][2]time.Duration, len(pids))
	for i, p := range pids {
		before[i] = [2]time.Duration{cpuTime(t, p[0]), cpuTime(t, p[1])}
	}
	time.Sleep(window)
	var sum [2]time.Duration
	for i, p := range pids {
		for h := range p {
			sum[h] += cpuTime(t, p[h]) - before[i][h]
		}
	}
	for h, name := range []string{"host", "dnp"} {
		fmt.Printf("%s %s: %.2f %% of one core, %d kB resident, %d threads\n", dims, name,
			100*float64(sum[h])/float64(window)/float64(len(pids)), status(t, pids[0][h], "VmRSS"), status(t, pids[0][h], "Threads"))
	}
}

func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	_ = b
	if err != nil {
		t.Fatal(err)
	}
	// schedstat is of the main thread only: sum over the threads.
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var ns int64
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		v, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ns += v
	}
	return time.Duration(ns)
}

func status(t *testing.T, pid int, key string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			v, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}
