package executor

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/pkg/fault"
)

// MaxSuspects is the number of nodes that one call of Controllers may name.
const MaxSuspects = 4096

// controllersTime bounds one call. The process answers from its memory.
const controllersTime = 5 * time.Second

// maxReadingAge bounds the ages in a reading.
const maxReadingAge = 30 * 24 * time.Hour

// Controllers names nodes whose management controllers the process reads soon and often, and returns the readings after a version of a
// run. A process of an earlier version, which has no such call, has no controllers.
func (x *Remote) Controllers(ctx context.Context, suspects []fault.NodeID, run string, after uint64) (controller.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, controllersTime)
	defer cancel()
	req := &lofamov1.ExecutorControllersRequest{Cluster: x.cluster, Run: run, After: after}
	for _, id := range suspects[:min(len(suspects), MaxSuspects)] {
		req.Suspects = append(req.Suspects, string(id))
	}
	resp, err := x.client.Controllers(ctx, req)
	if status.Code(err) == codes.Unimplemented {
		return controller.Batch{}, nil
	}
	if err != nil {
		return controller.Batch{}, err
	}
	return batchOf(resp, time.Now()), nil
}

// batchOf returns the readings with the caller's times: clocks of two hosts may differ, and ages do not.
func batchOf(resp *lofamov1.ExecutorControllersResponse, now time.Time) controller.Batch {
	out := controller.Batch{Run: resp.GetRun(), Configured: int(resp.GetConfigured())}
	at := func(ms uint64) time.Time {
		return now.Add(-time.Duration(min(ms, uint64(maxReadingAge.Milliseconds()))) * time.Millisecond) //nolint:gosec // bounded
	}
	for _, r := range resp.GetReadings() {
		reading := controller.Reading{
			Answer: controller.Answer{Finding: findingOf(r.GetFinding()), Health: healthOf(r.GetHealth()), Detail: r.GetDetail(), Log: r.GetLog(),
				Sensors: r.GetSensors()},
			Node: fault.NodeID(r.GetNode()), At: at(r.GetAgeMs()), Since: at(max(r.GetSinceMs(), r.GetAgeMs())),
			HealthSince: at(max(r.GetHealthSinceMs(), r.GetAgeMs())), Version: r.GetVersion(),
		}
		if last := findingOf(r.GetLastPlain()); last.Plain() {
			reading.Last, reading.LastAt = last, at(r.GetLastPlainAgeMs())
		}
		out.Readings = append(out.Readings, reading)
	}
	return out
}

// findingOf returns a finding, or zero for one of a later version.
func findingOf(f lofamov1.ControllerFinding) controller.Finding {
	if f < 0 || f > lofamov1.ControllerFinding(controller.Wrong) {
		return 0
	}
	return controller.Finding(f) //nolint:gosec // in range
}

// healthOf returns a health, or zero for one of a later version.
func healthOf(h lofamov1.ControllerHealth) controller.Health {
	if h < 0 || h > lofamov1.ControllerHealth(controller.Critical) {
		return 0
	}
	return controller.Health(h) //nolint:gosec // in range
}
