package config

import "time"

// NodeExecutor is what responses may do to nodes. What agents may be ordered is in their own configurations (responses).
type NodeExecutor struct {
	// MaskChannels allows node.mask-channel: links are masked in the supervisors' name. Default false.
	MaskChannels bool `json:"maskChannels,omitempty"`
	// AskFor is how long an agent may take to say that it is there, until an attempt fails with nothing ordered, 100ms to 1m. 0 stands for 10s, the default.
	AskFor Duration `json:"askFor,omitzero"`
}

// Filled returns it with what 0 stands for.
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
