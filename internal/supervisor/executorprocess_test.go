package supervisor_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// executorProcess runs an executor process with the cluster's certificates. Its command makes a directory with the
// attempt's name, and fails if the directory exists.
func executorProcess(t *testing.T, pki, made string, change ...func(*process.Config)) string {
	cfg := process.Default()
	cfg.Cluster, cfg.Listen, cfg.StateDir = supervisortest.Name, freeport.Addr(t).String(), filepath.Join(t.TempDir(), "state")
	cfg.TLS = config.SupervisorTLS{CA: filepath.Join(pki, "ca.pem"), Cert: filepath.Join(pki, "executor.pem"),
		Key: filepath.Join(pki, "executor.key")}
	cfg.Commands = []process.Command{{
		Name: "repair", Path: "/bin/mkdir", Args: []string{made + "/${node}.${attempt}"},
		Parameters: map[string]string{"node": "n[0-9-]+", "attempt": "[0-9]+"},
	}}
	for _, f := range change {
		f(&cfg)
	}
	_, err := process.Init(cfg.StateDir, cfg.Cluster, false, time.Now())
	var p *process.Process
	if err == nil {
		p, err = process.New(cfg, slog.New(slog.DiscardHandler))
	}
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Error(err)
		return cfg.Listen
	}
	t.Cleanup(func() { _ = p.Stop() })
	return cfg.Listen
}

// TestExecutorProcessActsOncePerFault: a fault runs a command at the executor process, once. The next leader has a higher token
// there, and the previous token is refused.
func TestExecutorProcessActsOncePerFault(t *testing.T) {
	t.Parallel()
	made := t.TempDir()
	var once sync.Once
	var address string
	var tls config.SupervisorTLS
	c, replicas, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		once.Do(func() { address = executorProcess(t, filepath.Dir(cfg.TLS.CA), made) })
		tls = cfg.TLS
		r := &cfg.Responses
		r.Grace, r.StormDelay, r.MaxNodes, r.MaxPercent, r.MaxPerDomain, r.MaxPerPlane, r.BreakerPercent, r.BreakerNodes = 0, 0, 4,
			100, 4, 4, 50, 4
		cfg.Responses.Executors.Process = &config.ExecutorClient{Address: address}
	}})
	follower := (leader + 1) % 3
	s := storedPolicy(t, c.Configs[follower], `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: repair}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: repair, executor: command, parameters: {command: repair}, timeout: 20s}
`)
	// repaired reports faults of nodes until one of them had its command. If the lead moves in the middle of an
	// attempt, as it may on a busy machine, the outcome of the command is unknown, and it is not repeated.
	repaired := func(by int, ids ...fault.NodeID) *response.Response {
		t.Helper()
		var r *response.Response
		for _, id := range ids {
			a := c.Agents[id]
			report, b := a.Report(t, fault.HalfHost, false,
				fault.Observation{Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf})
			a.Deliver(t, report, b, c.Configs[by].Report)
			for deadline := time.Now().Add(supervisortest.Wait / 2); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				got, err := s.OwnResponses(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, rec := range got.Records {
					if is, ok := rec.(*response.Response); ok && is.Target.Node == id {
						r = is
					}
				}
				if r != nil && r.Target.Node == id && r.State == response.Done {
					if st := r.Steps[0]; st.Attempt != 1 || !strings.Contains(st.Detail, "repair: exit code 0") {
						t.Errorf("%+v", st)
					}
					return r
				}
			}
			t.Logf("%s: %+v", id, r)
		}
		t.Fatal("no command is done")
		return nil
	}
	first := repaired(leader, "n0-0-0", "n0-1-0")
	stop(t, replicas[leader])
	next := c.AwaitLeader(t, (leader+1)%3, (leader+2)%3)
	second := repaired(next, "n1-0-0", "n1-1-0")
	if second.Token <= first.Token {
		t.Errorf("tokens %d, %d", first.Token, second.Token)
	}
	x, err := executor.NewRemote(config.ExecutorClient{Address: address}, supervisortest.Name, tls, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	late := executor.Job{Cluster: supervisortest.Name, Policy: "repair", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseMemory}}
	late.Attempt = response.Attempt{Response: first.ID, Attempt: 2}
	late.Kind, late.Token, late.Timeout, late.IdempotencyKey, late.Target = response.Command, first.Token, supervisortest.Wait, "k",
		first.Target
	late.Parameters = map[string]string{"command": "repair"}
	if r := x.Do(t.Context(), late); r.Outcome != response.StaleToken {
		t.Errorf("under the token of the leader before: %+v", r)
	}
	for _, r := range []*response.Response{first, second} {
		if _, err := os.Stat(filepath.Join(made, string(r.Target.Node)+".1")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(made, string(r.Target.Node)+".2")); err == nil {
			t.Errorf("%s: a second time", r.Target)
		}
	}
}
