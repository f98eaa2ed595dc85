package executor_test

import (
	"os"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/executortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestExampleKeepsExecutorContract: the example of docs/extending.md has all duties of an executor.
func TestExampleKeepsExecutorContract(t *testing.T) {
	executortest.Run(t, executortest.Fenced|executortest.Remembers, func(t *testing.T) executortest.Harness {
		dir := t.TempDir()
		return executortest.Harness{
			Executor: &Beacons{Dir: dir},
			Job: executor.Job{Effect: response.Effect{
				Attempt: response.Attempt{Response: "r5-1", Attempt: 1}, Kind: beacon, Token: 5, Timeout: time.Minute,
				Target: response.Target{Node: "n1", Component: fault.ComponentHost},
			}},
			Acts: func() int {
				lit, err := os.ReadDir(dir)
				if err != nil {
					t.Fatal(err)
				}
				return len(lit)
			},
		}
	})
}
