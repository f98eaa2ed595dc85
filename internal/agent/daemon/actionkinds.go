package daemon

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/sensor/script"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/config"
)

func resultUnchanged(format string, args ...any) actions.Result {
	return actions.Result{State: actions.Unchanged, Detail: fmt.Sprintf(format, args...)}
}

func resultDone(format string, args ...any) actions.Result {
	return actions.Result{State: actions.Done, Detail: fmt.Sprintf(format, args...)}
}

// restart restarts a half.
func (d *ActionRunner) restart(ctx context.Context, o *actions.Order) actions.Result {
	half, err := fault.ParseHalf(o.Parameters["half"])
	if err != nil {
		return resultUnchanged("half: given %q: want host or dnp", o.Parameters["half"])
	}
	if d.cfg.Restart == nil || o.Undo {
		return resultUnchanged("a restart of the %s half cannot be made, or undone, here", half)
	}
	note := ""
	if o.Recheck {
		before, err := d.earlier(o)
		if err != nil {
			return resultUnchanged("%v", err)
		}
		if i := slices.IndexFunc(before, func(e actions.Entry) bool { return e.Note != "" }); i >= 0 {
			note = before[i].Note
		}
	}
	return d.cfg.Restart(ctx, half, note, d.note(o.Attempt))
}

// check runs a program from the configuration's list. Exit code 0 means that all is well, or is well now; 1 that it is
// not; 2 that it is not, and that the program has changed something. With any other code, or after a time-out, the
// outcome is not known.
func (d *ActionRunner) check(ctx context.Context, o *actions.Order) actions.Result {
	checks := d.allowed.Load().Checks
	i := slices.IndexFunc(checks, func(c config.ResponseCheck) bool { return c.Name == o.Parameters["script"] })
	if i < 0 {
		return resultUnchanged("script: given %q: the agent's configuration has none of that name", o.Parameters["script"])
	}
	c := checks[i]
	if o.Undo {
		return resultUnchanged("a check cannot be undone")
	}
	if o.Recheck {
		before, err := d.earlier(o)
		if err != nil {
			return resultUnchanged("%v", err)
		}
		if len(before) > 0 && before[0].State == actions.Done {
			return resultDone("%s", before[0].Detail)
		}
	}
	limit := min(c.Limit(), o.Timeout())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.AfterFunc(limit, cancel)
	defer timer.Stop()
	r, err := script.New(script.Config{
		Component: fault.ComponentHost, Command: c.Command, Timeout: 2 * limit, Env: append(slices.Clone(d.cfg.Env),
			"LOFAMO_NODE="+string(d.cfg.Node), "LOFAMO_TARGET="+o.Target, "LOFAMO_RESPONSE="+o.Response,
			"LOFAMO_ATTEMPT="+strconv.Itoa(o.Attempt.Attempt)),
	}).Read(ctx)
	return judge(c, r, err, ctx.Err() != nil)
}

// judge converts a program's end into a result.
func judge(c config.ResponseCheck, r sensor.Reading, err error, late bool) actions.Result {
	var exit *exec.ExitError
	switch {
	case err == nil && r.State == fault.Normal:
		return resultDone("%s: %s", c.Name, r.Detail)
	case err == nil && r.State == fault.Sick:
		return resultUnchanged("%s reports a fault: %s", c.Name, r.Detail)
	case err == nil && r.State == fault.Failed:
		return actions.Result{State: actions.Partly, Detail: fmt.Sprintf("%s reports a fault, and has changed something: %s", c.Name, r.Detail)}
	case late:
		return actions.Result{State: actions.NotKnown, Detail: fmt.Sprintf("%s has not ended in time, and was killed", c.Name)}
	case errors.As(err, &exit):
		return actions.Result{State: actions.NotKnown, Detail: fmt.Sprintf("%s: %v: want exit code 0, 1 or 2: %s", c.Name, exit, r.Detail)}
	}
	return resultUnchanged("%s cannot be run: %v", c.Name, err)
}
