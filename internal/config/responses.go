package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// ResponsesConfig lists the actions that supervisors may order this node to take in response to a fault
// (docs/responses-node.md). All are off by default, and the recovery daemon (lofamo-agent run) carries them out. Masks
// of links need no permission here.
type ResponsesConfig struct {
	// RestartHalf allows node.restart-half: one half at a time is ended and started again. Default false.
	RestartHalf bool `json:"restartHalf,omitempty"`
	// LimitFrequency allows node.limit-frequency: the agent lowers scaling_max_freq of all cpufreq policies below
	// sensors.sysfs, and restores it later. The user of lofamo-agent run needs write access there. Default false.
	LimitFrequency bool `json:"limitFrequency,omitempty"`
	// LowestFrequency is the lower limit of the frequency, in percent of the processors' maximum. 10 to 100. Default
	// 40.
	LowestFrequency int `json:"lowestFrequency,omitempty"`
	// Eureka allows eureka: this node broadcasts a response's messages to jobs on all other nodes of the torus. Default
	// false.
	Eureka bool `json:"eureka,omitempty"`
	// Checks allow node.check, each for one program. At most 32. Default none.
	Checks []ResponseCheck `json:"checks,omitempty"`
}

// ResponseCheck is a program that node.check may run, without a shell, with this environment's variables and
// LOFAMO_NODE, LOFAMO_TARGET, LOFAMO_RESPONSE and LOFAMO_ATTEMPT. Its exit code is 0 if all is well, or is now; 1 if
// not, and nothing was changed; 2 if not, and something was changed.
type ResponseCheck struct {
	// Name for use in policies: 1 to 63 of a-z, 0-9 and '-', the first and last no '-'. Required.
	Name string `json:"name"`
	// Command is the program's absolute path, then its arguments. Required.
	Command []string `json:"command"`
	// Timeout is the time after which it is killed, with its process group, unless the policy's step ends before. 100ms
	// to 1h. Default 30s.
	Timeout Duration `json:"timeout,omitempty"`
}

// Defaults and bounds.
const (
	defaultLowestFrequency = 40
	maxResponseChecks      = 32
)

// LowestPercent returns LowestFrequency, or its default for 0.
func (r ResponsesConfig) LowestPercent() int {
	if r.LowestFrequency == 0 {
		return defaultLowestFrequency
	}
	return r.LowestFrequency
}

// Limit returns Timeout, or its default for 0.
func (c ResponseCheck) Limit() time.Duration {
	if c.Timeout == 0 {
		return 30 * time.Second
	}
	return c.Timeout.D()
}

// Kinds returns the allowed kinds of actions, ascending.
func (r ResponsesConfig) Kinds() []string {
	var out []string
	for _, k := range []struct {
		name string
		may  bool
	}{{"eureka", r.Eureka}, {"node.check", len(r.Checks) > 0}, {"node.limit-frequency", r.LimitFrequency},
		{"node.restart-half", r.RestartHalf}} {
		if k.may {
			out = append(out, k.name)
		}
	}
	return out
}

func (r ResponsesConfig) validate(p *problems) {
	if f := r.LowestFrequency; f != 0 && (f < 10 || f > 100) {
		p.bad("responses.lowestFrequency", f, "10 to 100 percent")
	}
	if n := len(r.Checks); n > maxResponseChecks {
		p.bad("responses.checks", n, "at most %d", maxResponseChecks)
	}
	var names []string
	for i, c := range r.Checks {
		field := fmt.Sprintf("responses.checks[%d]", i)
		if !fault.IsNameWith(c.Name, false, "-") {
			p.bad(field+".name", c.Name, "1 to 63 of a-z, 0-9 and '-', the first and last no '-'")
		}
		if slices.Contains(names, c.Name) {
			p.bad(field+".name", c.Name, "each name once")
		}
		names = append(names, c.Name)
		if len(c.Command) == 0 || !filepath.IsAbs(c.Command[0]) {
			p.bad(field+".command", fmt.Sprint(c.Command), "a program's absolute path, then its arguments")
		}
		if l := c.Limit(); l < 100*time.Millisecond || l > time.Hour {
			p.bad(field+".timeout", l, "100ms to 1h")
		}
	}
}
