package config

import "time"

// NodeExecutor configures actions on nodes. The agents' own configurations (responses) list the allowed ones.
type NodeExecutor struct {
	// MaskChannels allows node.mask-channel: links are masked in the supervisors' name. Default false.
	MaskChannels bool `json:"maskChannels,omitempty"`
	// AskFor is the time for an agent to answer a query before an attempt fails without any order, 100ms to 1m. 0
	// stands for 10s, the default.
	AskFor Duration `json:"askFor,omitzero"`
}

// Filled returns the configuration with its defaults filled in.
func (c NodeExecutor) Filled() NodeExecutor {
	if c.AskFor == 0 {
		c.AskFor = Duration(10 * time.Second)
	}
	return c
}

// Validate names every bad field.
func (c NodeExecutor) Validate() error {
	var p problems
	if d := c.Filled().AskFor.D(); d < 100*time.Millisecond || d > time.Minute {
		p.bad("askFor", c.AskFor, "100ms to 1m, or 0 for 10s")
	}
	return p.err()
}
