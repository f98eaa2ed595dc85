package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// agentOn is lofamo-agent with the configuration of a node; it is killed when the test ends.
func (t trial) agentOn(node string, args ...string) *exec.Cmd {
	config := filepath.Join(t.Cluster.Dir(), "nodes", node, "agent.yaml")
	return exec.CommandContext(t.Context(), filepath.Join(binaries, "lofamo-agent"), append(args, "--config", config)...)
}

type heardEureka struct {
	Watching bool   `json:"watching"`
	Topic    string `json:"topic"`
	Body     string `json:"body"`
	Node     string `json:"node"`
}

// listensForEurekas runs lofamo-agent eureka --watch on a node, and returns once the watch has begun.
func (t trial) listensForEurekas(node, job string) <-chan heardEureka {
	t.Helper()
	cmd := t.agentOn(node, "eureka", "--watch", "--job", job)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines, done := make(chan heardEureka, 256), make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			var h heardEureka
			if err := json.Unmarshal(s.Bytes(), &h); err != nil {
				t.Errorf("%s prints %q: %v", cmd, s.Text(), err)
				return
			}
			lines <- h
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	if h := t.hearsEureka(node, lines); !h.Watching {
		t.Fatalf("%s: the watch begins with %+v", node, h)
	}
	return lines
}

func (t trial) hearsEureka(node string, lines <-chan heardEureka) heardEureka {
	t.Helper()
	select {
	case h := <-lines:
		return h
	case <-time.After(patience):
		t.Fatalf("%s hears nothing for %s", node, patience)
		return heardEureka{}
	}
}

func (t trial) nodeIDs() (out []string) {
	for _, n := range t.Cluster.Info().Nodes {
		out = append(out, string(n.ID))
	}
	return out
}

// barrierOn arrives at a barrier on a node, and sends the result to the channel.
func (t trial) barrierOn(node, name string, members []string, args ...string) <-chan barrierEnd {
	cmd := t.agentOn(node, append([]string{"barrier", "--job", "e2e", "--name", name, "--members", strings.Join(members, ",")}, args...)...)
	done := make(chan barrierEnd, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		if err == nil {
			done <- barrierEnd{said: string(out)}
			return
		}
		done <- barrierEnd{cmd.ProcessState.ExitCode(), string(out)}
	}()
	return done
}

type barrierEnd struct {
	code int
	said string
}

// TestEurekasAndBarriersOfRealProcesses: eurekas and barriers between real processes, over the links alone.
func TestEurekasAndBarriersOfRealProcesses(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 1, Periods: patient()})
	try(t, l, "a eureka of any node is heard by all, without a service network", func(t trial) {
		var all []<-chan heardEureka
		for _, id := range t.nodeIDs() {
			all = append(all, t.listensForEurekas(id, "e2e"))
		}
		for _, id := range t.nodeIDs() {
			t.inject(id, simple(cluster.CutService))
		}
		for _, from := range t.nodeIDs() {
			if out, err := t.agentOn(from, "eureka", "--job", "e2e", "--topic", "found", "--body", from, "--timeout",
				patience.String()).CombinedOutput(); err != nil {
				t.Fatalf("%s raises: %v: %s", from, err, out)
			}
			for i, to := range t.nodeIDs() {
				if h := t.hearsEureka(to, all[i]); h != (heardEureka{Topic: "found", Body: from, Node: from}) {
					t.Errorf("%s hears %+v: want that of %s", to, h, from)
				}
			}
		}
	})
	try(t, l, "a barrier with links cut in the middle", func(t trial) {
		ids := t.nodeIDs()
		var waiting []<-chan barrierEnd
		for _, id := range ids[1:] {
			waiting = append(waiting, t.barrierOn(id, "cut", ids))
		}
		// n0-0-0 keeps one cable of six, n1-1-1 two.
		for _, d := range []grid.Direction{grid.XPlus, grid.XMinus, grid.YPlus, grid.YMinus, grid.ZPlus} {
			t.inject("0,0,0", cluster.Fault{Kind: cluster.CutLink, Dir: d})
		}
		for _, d := range []grid.Direction{grid.XPlus, grid.XMinus, grid.YPlus, grid.YMinus} {
			t.inject("1,1,1", cluster.Fault{Kind: cluster.CutLink, Dir: d})
		}
		var e barrierEnd
		defer func() {
			if t.Failed() {
				t.Logf("while %s was missing: %+v", ids[0], e)
			}
		}()
		eventually(t.T, "a barrier to name "+ids[0]+" as missing", func() bool {
			e = <-t.barrierOn(ids[1], "cut", ids, "--participant", "asks", "--timeout", "2s")
			return e.code == 1 && strings.Contains(e.said, "missing: ") && strings.Contains(e.said, ids[0])
		})
		for i, w := range waiting {
			if len(w) > 0 {
				t.Errorf("%s comes back without %s: %+v", ids[i+1], ids[0], <-w)
			}
		}
		waiting = append(waiting, t.barrierOn(ids[0], "cut", ids))
		t.allComplete(waiting)
	})
	try(t, l, "a member dies", func(t trial) {
		ids := t.nodeIDs()
		var waiting []<-chan barrierEnd
		for _, id := range ids[:7] {
			waiting = append(waiting, t.barrierOn(id, "dead", ids))
		}
		t.inject("1,1,1", simple(cluster.KillNode))
		t.becomes("n1-1-1", "node", failed)
		for i, w := range waiting {
			select {
			case e := <-w:
				if e.code != 1 || !strings.Contains(e.said, "gone: n1-1-1") {
					t.Errorf("%s: %+v", ids[i], e)
				}
			case <-time.After(patience):
				t.Fatalf("%s waits for a dead node", ids[i])
			}
		}
	})
	barriers(t, l)
	try(t, l, "wrong usage", func(t trial) {
		for _, args := range [][]string{
			{"eureka"}, {"eureka", "--job", "A"}, {"eureka", "--job", "e2e", "--priority", "9"}, {"barrier", "--job", "e2e"},
			{"barrier", "--job", "e2e", "--members", "n1-0-0"}, {"barrier", "--job", "e2e", "--members", "n0-0-0", "--participants", "0"},
		} {
			cmd := t.agentOn("n0-0-0", args...)
			if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 {
				t.Errorf("%q ends with %d: %s", args, cmd.ProcessState.ExitCode(), out)
			}
		}
	})
}

func (t trial) allComplete(waiting []<-chan barrierEnd) {
	t.Helper()
	for i, w := range waiting {
		select {
		case e := <-w:
			if e.code != 0 || !strings.HasPrefix(e.said, "complete: ") {
				t.Errorf("number %d: %+v", i, e)
			}
		case <-time.After(patience):
			t.Fatalf("number %d still waits", i)
		}
	}
}

// TestCheckpointedJobSurvivesDeaths runs the example: a job on eight nodes that checkpoints at barriers, loses two of them one after the
// other, and ends with the same result as a single process.
func TestCheckpointedJobSurvivesDeaths(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "checkpoint")
	if out, err := exec.Command("go", "build", "-o", program, "../../examples/checkpoint").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	size := []string{"-cells", "1000", "-steps", "120", "-every", "10"}
	want, err := exec.Command(program, append(size, "-serial")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 1, Periods: patient()})
	try(t, l, "two nodes die", func(t trial) {
		dir := t.TempDir()
		procs, logs := map[string]*exec.Cmd{}, map[string]*progress{}
		var result bytes.Buffer
		for i, id := range t.nodeIDs() {
			cmd := exec.CommandContext(t.Context(), program,
				append(size, "-job", "e2e-ring", "-node", id, "-members", strings.Join(t.nodeIDs(), ","), "-dir", dir,
					"-pause", "100ms", "-socket", filepath.Join(t.Cluster.Dir(), "nodes", id, "state", "local.sock"))...)
			logs[id] = &progress{t: t, steps: make(chan int, 1024)}
			if cmd.Stderr = logs[id]; i == 0 {
				cmd.Stdout = &result
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			procs[id] = cmd
		}
		first := logs["n0-0-0"]
		for _, lost := range []struct {
			id, at string
			step   int
		}{{"n1-0-1", "1,0,1", 30}, {"n0-1-0", "0,1,0", 70}} {
			first.reaches(lost.step)
			t.inject(lost.at, simple(cluster.KillNode))
			_ = procs[lost.id].Process.Kill()
			_ = procs[lost.id].Wait()
			delete(procs, lost.id)
			t.mayFail(lost.id, "node")
			// Its disk is lost too.
			if err := os.RemoveAll(filepath.Join(dir, lost.id)); err != nil {
				t.Fatal(err)
			}
		}
		for id, cmd := range procs {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		if result.String() != string(want) {
			t.Errorf("the result is %q, want %q", &result, want)
		}
		for _, said := range []string{"gone: n1-0-1", "gone: n0-1-0", "roll back to step "} {
			if !strings.Contains(first.text(), said) {
				t.Errorf("it never said %q:\n%s", said, first.text())
			}
		}
	})
}

// progress takes the output of a process of the example.
type progress struct {
	t     trial
	mu    sync.Mutex
	all   bytes.Buffer
	steps chan int
}

var _ io.Writer = (*progress)(nil)

func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.Write(b)
	for line := range strings.Lines(string(b)) {
		var step int
		if _, rest, ok := strings.Cut(line, "checkpoint at "); ok {
			if _, err := fmt.Sscanf(rest, "step %d is complete", &step); err == nil {
				p.steps <- step
			}
		}
	}
	return len(b), nil
}

func (p *progress) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all.String()
}

// reaches waits until a checkpoint at that step or a later one is complete.
func (p *progress) reaches(step int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), settling)
	defer cancel()
	for {
		select {
		case s := <-p.steps:
			if s >= step {
				return
			}
		case <-ctx.Done():
			p.t.Fatalf("no checkpoint at step %d:\n%s", step, p.text())
		}
	}
}
