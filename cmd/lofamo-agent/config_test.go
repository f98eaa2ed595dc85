package main

import "testing"

// TestMissingConfigurationIsNamed: without --config and settings in the environment, one line names what is missing, not every key.
func TestMissingConfigurationIsNamed(t *testing.T) {
	for _, command := range []string{"status", "faults", "acts", "restart"} {
		refusal(t, 2, []string{"--config: given nothing: want the configuration file", "/etc/lofamo/agent.yaml", agentEnv}, command)
	}
	refusal(t, 78, []string{"--config: given nothing: want the configuration file"}, "run")
	t.Setenv(agentEnv+"STATEDIR", t.TempDir())
	refusal(t, 2, []string{"configuration from the environment: cluster: given nothing"}, "status")
}
