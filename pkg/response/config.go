package response

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Config holds the limits that apply regardless of policies.
type Config struct {
	// MaxNodes and MaxPercent limit the nodes under response at once. A node is under response if a step took all or
	// part of it out of use and has not been undone. MaxPercent is relative to the nodes of the topology, rounded
	// down, but always allows one.
	MaxNodes, MaxPercent int
	// MaxPerDomain limits them among the nodes that share a value of one of DomainLabels, MaxPerPlane among the nodes
	// of a plane of the torus, in each of its three dimensions.
	MaxPerDomain, MaxPerPlane int
	DomainLabels              []string

	// At most Rate steps that are more than notifications begin within RateWindow, and at most NotifyRate
	// notifications. Kubernetes conditions and events (Traits.Always) do not count.
	Rate, NotifyRate int
	RateWindow       time.Duration

	// The breaker opens when BreakerPercent of the nodes, but at least BreakerNodes, went bad within BreakerWindow.
	BreakerPercent, BreakerNodes int
	BreakerWindow                time.Duration

	Grace      time.Duration // from the start of a leader to its first step
	StormDelay time.Duration // minimum age of a fault before a step that is more than a notification
	Cooldown   time.Duration // between two responses on one node that are more than notifications
	// MaxEvidenceAge is the maximum age of a fault's evidence at a step. LookAgain is the interval of requests to the
	// caller for newer evidence while there is none; the first requests follow much sooner.
	MaxEvidenceAge, LookAgain time.Duration
	// Silence is how long the accused must have signed nothing before a step that may end work, unless its own
	// statement supports the fault.
	Silence time.Duration
	// FenceMargin is added to the time after which a node that fences itself is down: see Watchdog.DownAfter.
	FenceMargin time.Duration
	// SharedMargin is the minimum of FenceMargin while there are other supervisors. A node may regain contact with another supervisor just
	// before its reset, and this leader must notice in time that the other supervisor is gone.
	SharedMargin time.Duration
	// Approvals that every response with a step that may end work needs, even if its policy requires fewer: 0 to 2.
	Approvals        int
	ApprovalTime     time.Duration // how long a response waits for approvals
	RetryAfter       time.Duration // after a failed attempt; doubles with each failure of the step, up to RetryMost
	RetryMost        time.Duration
	ResultTime       time.Duration // extends a step's timeout, after which its outcome counts as unknown
	RecurrenceWindow time.Duration // see Subject.Recurrence
	// MaxActive limits the responses that are running or waiting. Separate limits of the same size apply to responses
	// with notifications only, and to open responses of policies that only observe. A fault beyond the limit waits.
	MaxActive int
	// Keep is how long the record of a closed response is kept, at least as long as the longest of the windows. The
	// record of a policy with a longer cooldown is kept for that cooldown. Of responses that have done nothing, or have only notified, the
	// newest 20,000 are kept.
	Keep time.Duration
	// OptOutLabel is the key whose value "true" exempts a node from everything but notifications.
	OptOutLabel string
}

// Default returns limits for a production cluster of any size. They are cautious: one node in twenty.
func Default() Config {
	return Config{
		MaxNodes: 50, MaxPercent: 5, MaxPerDomain: 2, MaxPerPlane: 4, DomainLabels: fault.DomainLabels(),
		Rate: 30, NotifyRate: 10_000, RateWindow: time.Hour,
		BreakerPercent: 20, BreakerNodes: 3, BreakerWindow: 5 * time.Minute,
		Grace: 30 * time.Second, StormDelay: 10 * time.Second, Cooldown: 30 * time.Minute,
		MaxEvidenceAge: 30 * time.Second, LookAgain: 10 * time.Second, Silence: 2 * time.Second, FenceMargin: 30 * time.Second,
		ApprovalTime: 4 * time.Hour, RetryAfter: 5 * time.Second, RetryMost: 5 * time.Minute, ResultTime: 5 * time.Second,
		RecurrenceWindow: 24 * time.Hour, MaxActive: 2000, Keep: 7 * 24 * time.Hour,
		OptOutLabel: "lofamo.io/no-response",
	}
}

// Validate names every bad field.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	for _, f := range []struct {
		name     string
		n        int
		min, max int
	}{
		{"MaxNodes", c.MaxNodes, 1, 1 << 20}, {"MaxPercent", c.MaxPercent, 1, 100}, {"MaxPerDomain", c.MaxPerDomain, 1, 1 << 20},
		{"MaxPerPlane", c.MaxPerPlane, 1, 1 << 20}, {"Rate", c.Rate, 1, 1 << 20}, {"NotifyRate", c.NotifyRate, 1, 1 << 20},
		// More than half of the cluster is a storm by any standard.
		{"BreakerPercent", c.BreakerPercent, 1, 50}, {"BreakerNodes", c.BreakerNodes, 1, 1 << 20},
		{"Approvals", c.Approvals, 0, MaxApprovals}, {"MaxActive", c.MaxActive, 1, 1 << 20},
	} {
		if f.n < f.min || f.n > f.max {
			bad(f.name, f.n, fmt.Sprintf("%d to %d", f.min, f.max))
		}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
		min  time.Duration
	}{
		{"RateWindow", c.RateWindow, time.Second}, {"BreakerWindow", c.BreakerWindow, time.Second}, {"Grace", c.Grace, 0}, {"StormDelay",
			c.StormDelay, 0},
		{"Cooldown", c.Cooldown, 0}, {"MaxEvidenceAge", c.MaxEvidenceAge, time.Millisecond}, {"LookAgain", c.LookAgain,
			time.Millisecond}, {"Silence", c.Silence, 0}, {"FenceMargin", c.FenceMargin, time.Second}, {"SharedMargin", c.SharedMargin, 0},
		{"ApprovalTime", c.ApprovalTime, time.Second}, {"RetryAfter", c.RetryAfter, time.Millisecond}, {"RetryMost", c.RetryMost, c.RetryAfter},
		{"ResultTime", c.ResultTime, 0}, {"RecurrenceWindow", c.RecurrenceWindow, time.Second}, {"Keep", c.Keep,
			max(c.RateWindow, c.Cooldown, c.BreakerWindow)},
	} {
		if f.d < f.min {
			bad(f.name, f.d, f.min.String()+" or more")
		}
	}
	for i, k := range c.DomainLabels {
		if err := fault.CheckLabelKey(k); err != nil || slices.Contains(c.DomainLabels[:i], k) {
			bad(fmt.Sprintf("DomainLabels[%d]", i), fmt.Sprintf("%q", k), "distinct label keys")
		}
	}
	if err := fault.CheckLabelKey(c.OptOutLabel); err != nil {
		bad("OptOutLabel", fmt.Sprintf("%q", c.OptOutLabel), "a label key")
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("response limits: %w", err)
	}
	return nil
}

// MaxApprovals is the maximum number of subjects that must approve a response.
const MaxApprovals = 2

// retryAfter returns the pause after that many failures of a step.
func (c Config) retryAfter(failures int) time.Duration {
	return min(c.RetryAfter<<min(max(failures-1, 0), 20), c.RetryMost)
}

// percentOf returns the number of nodes that the percentage of n allows: at least one.
func percentOf(percent, n int) int { return max(1, n*percent/100) }

// breakerAt returns how many of n nodes must go bad to open the breaker.
func (c Config) breakerAt(n int) int { return max(c.BreakerNodes, (n*c.BreakerPercent+99)/100) }

// canLose returns how many of n supervisors may fail without loss of the quorum.
func canLose(n int) int { return max(0, (n-1)/2) }
