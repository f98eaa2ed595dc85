package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
)

func TestCommandKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Fenced, func(t *testing.T) executortest.Harness {
		log := filepath.Join(t.TempDir(), "acts")
		x, err := NewCommands([]Command{{Name: "x", Path: "/bin/sh", Args: []string{"-c", "echo act >> " + log}}})
		if err != nil {
			t.Fatal(err)
		}
		return executortest.Harness{Executor: x, Job: job(nil), Acts: func() int {
			b, err := os.ReadFile(log)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			return strings.Count(string(b), "act")
		}}
	})
}

func TestRedfishKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Fenced, func(t *testing.T) executortest.Harness {
		e := powertest.New(t)
		return executortest.Harness{Executor: onePower(t, bmcAt(e)), Job: powerJob(methodRedfish),
			Acts: func() int { return len(e.CarriedOut()) }}
	})
}

func TestIPMIKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Fenced, func(t *testing.T) executortest.Harness {
		i := newIPMI(t)
		return executortest.Harness{Executor: onePower(t, i.bmc()), Job: powerJob(methodIPMI), Acts: func() int {
			cycles, resets := i.counts()
			return cycles + resets
		}}
	})
}

func TestSlurmKeepsExecutorContract(t *testing.T) {
	const node = "n16"
	c := slurmCluster(t)
	executortest.Run(t, executortest.Fenced, func(t *testing.T) executortest.Harness {
		c.idle(t, node)
		j := slurmJob(node, "r5-1", 1, false)
		j.Timeout = 30 * time.Second
		return executortest.Harness{Executor: c.executor(t), Job: j, Acts: func() int {
			if c.node(t, node).drained {
				return 1
			}
			return 0
		}}
	})
}
