package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// printed has the output of a program, with the time of each part.
type printed struct {
	mu   sync.Mutex
	text strings.Builder
	seen map[string]time.Time // when a word was first printed
}

// What live views say when all supervisors are lost, and when one answers again.
const (
	saysBlind  = "BLIND since"
	saysSeeing = "answers: the view was blind for"
)

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.text.Write(b)
	for _, w := range []string{saysBlind, saysSeeing} {
		if _, ok := p.seen[w]; !ok && strings.Contains(p.text.String(), w) {
			p.seen[w] = time.Now()
		}
	}
	return n, err
}

// at returns when a word was first printed; zero: not yet.
func (p *printed) at(word string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[word]
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// TestLiveViewsSayThatTheyAreBlind kills all supervisors while every live view of lofamoctl runs, and starts them again. Each view says
// that it is blind, since when, and that it sees again.
func TestLiveViewsSayThatTheyAreBlind(t *testing.T) {
	l := startCluster(t, "2", 3)
	ctx, cancel := context.WithCancel(t.Context())
	views := map[string]*printed{}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	program := func(args string) *exec.Cmd {
		return exec.CommandContext(ctx, filepath.Join(binaries, "lofamoctl"), append(strings.Fields(args), "--dir", l.Cluster.Dir())...)
	}
	for _, view := range []string{"status -w", "watch --initial", "get nodes -w", "get links -w", "get incidents -w", "get events -w --all",
		"get supervisors -w", "get topology -w"} {
		out := &printed{seen: map[string]time.Time{}}
		views[view] = out
		cmd := program(view)
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := cmd.Wait(); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v\n%s", view, err, out)
			}
		})
	}
	top := inTerminal(t, 100, 24, program("top"))
	top.shows(t, "a healthy cluster", func(s string) bool { return liveFrom.MatchString(s) })
	if _, err := l.Cluster.Inject(t.Context(), "n1-0-0", cluster.Fault{Kind: cluster.KillNode}); err != nil {
		t.Fatal(err)
	}
	top.shows(t, "the node that was killed", func(s string) bool { return strings.Contains(s, "X n1-0-0 FAILED NODE") })
	for view, out := range views {
		agenttest.Await(t, view+" to show what it knows", func() bool { return out.String() != "" })
	}
	for _, s := range l.Cluster.Info().Supervisors {
		kill(t, s.PID)
	}
	killed := time.Now()
	quickest := time.Hour // the machine may be busy
	for view, out := range views {
		agenttest.Await(t, view+" to say that it is blind", func() bool { return !out.at(saysBlind).IsZero() })
		took := out.at(saysBlind).Sub(killed)
		quickest = min(quickest, took)
		t.Logf("%s: blind %v after the kill", view, took.Round(time.Millisecond))
	}
	if quickest > 2*time.Second {
		t.Errorf("live views need %v or more to say that they are blind: want at most 2s", quickest)
	}
	top.shows(t, "that no supervisor answers", func(s string) bool { return strings.Contains(s, "LOST: no supervisor answers") })
	for _, s := range l.Cluster.Info().Supervisors {
		if err := l.Cluster.StartSupervisor(s.ID); err != nil {
			t.Fatal(err)
		}
	}
	for view, out := range views {
		agenttest.Await(t, view+" to say that it sees again", func() bool { return !out.at(saysSeeing).IsZero() })
	}
	top.shows(t, "the cluster again", func(s string) bool { return liveFrom.MatchString(s) })
}
